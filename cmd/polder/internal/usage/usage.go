// Package usage says what is wrong with the arguments of a command.
package usage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Error is a mistake on the command line or in the configuration.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// NoArgs refuses arguments with a message that says what they could be.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &Error{fmt.Errorf("%s takes no argument %q, only flags: see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())}
	}
	return nil
}

// Args refuses fewer than least and more than most arguments with a message that says what they are.
func Args(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if n := len(args); n < least || n > most {
			return &Error{fmt.Errorf("expected %s, and got %d arguments: see %s --help", strings.TrimSuffix(cmd.UseLine(), " [flags]"), n, cmd.CommandPath())}
		}
		return nil
	}
}
