package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"polder/internal/progress"
	"polder/measure/benchout"
	"polder/measure/softbench"
)

func newBenchSoft() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "soft",
		Short: "Measure soft memory: pointers, reclamation, pressure, coordination",
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Args:  noArgs,
	}
	for _, b := range []struct {
		name, short string
		run         func(context.Context, softbench.Options) error
		plots       bool // something happens over time
	}{
		{"ptr", "Compare a soft pointer with a plain one", softbench.RunPtr, false},
		{"reclaim", "Measure how fast memory is taken back", softbench.RunReclaim, false},
		{"pressure", "Run a service beside an antagonist under a hard limit", softbench.RunPressure, true},
		{"coordinate", "Divide too little memory among four applications", softbench.RunCoordinate, true},
	} {
		var flags benchFlags
		var plots string
		sub := &cobra.Command{
			Use: b.name, Short: b.short, Args: noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("cannot find this program's file: %w", err)
				}
				o := softbench.Options{Printer: benchout.New(cmd.OutOrStdout(), flags.json), Short: flags.short, Polder: self, Args: workerArgs(cmd)}
				if show, end := progress.Steps(progress.Terminal(cmd.ErrOrStderr())); show != nil {
					defer end()
					o.Progress, o.Printer = show, clearing{o.Printer, end}
				}
				return withPlots(plots, func(w io.Writer) error {
					o.Plots = w
					return b.run(cmd.Context(), o)
				})
			},
		}
		flags.add(sub)
		if b.plots {
			plotsFlag(sub, &plots)
		}
		cmd.AddCommand(sub)
	}
	cmd.AddCommand(&cobra.Command{
		Use: "worker", Short: "A process that a benchmark starts", Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return softbench.Worker(cmd.Context(), cmd.OutOrStdout(), args)
		},
	})
	return cmd
}

// clearing is a printer that has the progress removed from the terminal before
// it prints there.
type clearing struct {
	benchout.Printer
	clear func()
}

func (p clearing) Print(r benchout.Row) error {
	p.clear()
	return p.Printer.Print(r)
}

// workerArgs is how this program is called to come to the command worker.
func workerArgs(cmd *cobra.Command) (args []string) {
	for p := cmd.Parent(); p != nil && p.HasParent(); p = p.Parent() {
		args = append([]string{p.Name()}, args...)
	}
	return args
}
