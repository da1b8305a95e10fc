package main

import (
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"polder/internal/keeper"
	"polder/internal/operator"
)

// runKeeper runs this program again without --keep, under a keeper in dir.
func runKeeper(cmd *cobra.Command, flags *operator.Flags, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program's file: %w", err)
	}
	op, err := flags.StartLog(cmd.Flags(), cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer op.Close()
	hangups := make(chan os.Signal, 1)
	op.OnReload("daemon", func() (string, error) {
		select {
		case hangups <- syscall.SIGHUP:
		default: // a SIGHUP is on its way already
		}
		return "told to reload", nil
	})
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool { return a == "--keep" || a == "--keep=true" })
	return keeper.Run(cmd.Context(), keeper.Options{Dir: dir, Path: self, Args: append(args, "--keep=false"), Log: op.Logger, Signals: hangups})
}
