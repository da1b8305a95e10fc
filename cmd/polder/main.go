// Command polder lends memory, borrows it, and serves it to Redis clients.
//
// Every subcommand parses its flags and calls a package; "polder help" lists
// them. Configuration comes from flags, then from environment variables
// POLDER_..., then from a YAML file (package config).
//
// The first SIGINT or SIGTERM ends a daemon cleanly, with exit code 0; the
// second one ends it at once, with 130. Other subcommands exit with 130 if they
// are interrupted. Errors exit with 1, and wrong arguments or configuration
// with 2.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"polder/cmd/polder/internal/usage"
	"polder/far/remote/scan"
	"polder/internal/config"
	"polder/memnode/component"
)

const (
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	component.Main(component.Set{scan.Name: scan.Component})
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		cancel(fmt.Errorf("%w (signal: %v)", errInterrupted, <-signals))
		<-signals
		os.Exit(exitInterrupted)
	}()
	os.Exit(run(ctx, os.Args[1:]))
}

var errInterrupted = errors.New("interrupted")

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	root := newRoot(os.Environ())
	root.SetArgs(goStyle(args))
	helped := sayHelp(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = helped()
	}
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(*usage.Error)), errors.As(err, new(*config.Error)):
		fmt.Fprintf(os.Stderr, "polder: %v\n", err)
		return exitUsage
	case errors.Is(err, errInterrupted), ctx.Err() != nil && errors.Is(err, context.Canceled):
		// For example a demonstration or benchmark that did not finish.
		fmt.Fprintf(os.Stderr, "polder: %v\n", context.Cause(ctx))
		return exitInterrupted
	}
	fmt.Fprintf(os.Stderr, "polder: %v\n", err)
	return exitFailure
}

// goStyle allows one dash, as well as two, before json, short and the flags of
// replays: the go command and the documents write them so.
func goStyle(args []string) []string {
	args = slices.Clone(args)
	for i, a := range args {
		name, _, _ := strings.Cut(a, "=")
		switch name {
		case "-json", "-short", "-trace", "-asap", "-clients":
			args[i] = "-" + a
		}
	}
	return args
}
