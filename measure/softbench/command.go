package softbench

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"polder/measure/benchout"
)

// Command returns the command soft for polder bench, with its subcommands.
// Progress, which may be nil, makes what shows how far a benchmark is, and a
// function that removes it.
func Command(progress func(*cobra.Command) (show func(done, total int, what string), end func())) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "soft",
		Short: "Measure soft memory: pointers, reclamation, pressure, coordination",
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Args:  cobra.NoArgs,
	}
	for _, b := range []struct {
		name, short string
		run         func(context.Context, Options) error
		plots       bool // something happens over time
	}{
		{"ptr", "Compare a soft pointer with a plain one", RunPtr, false},
		{"reclaim", "Measure how fast memory is taken back", RunReclaim, false},
		{"pressure", "Run a service beside an antagonist under a hard limit", RunPressure, true},
		{"coordinate", "Divide too little memory among four applications", RunCoordinate, true},
	} {
		var asJSON, short bool
		var plots string
		sub := &cobra.Command{
			Use: b.name, Short: b.short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("cannot find this program's file: %w", err)
				}
				o := Options{Printer: benchout.New(cmd.OutOrStdout(), asJSON), Short: short, Polder: self, Args: workerArgs(cmd)}
				if progress != nil {
					show, end := progress(cmd)
					defer end()
					o.Progress, o.Printer = show, clearing{o.Printer, end}
				}
				if plots != "" {
					f, err := os.Create(plots)
					if err != nil {
						return fmt.Errorf("cannot write plots: %w", err)
					}
					defer f.Close()
					o.Plots = f
				}
				return b.run(cmd.Context(), o)
			},
		}
		sub.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line instead of a table")
		sub.Flags().BoolVar(&short, "short", false, "end within 45 seconds")
		if b.plots {
			sub.Flags().StringVar(&plots, "plots", "", "draw what happens over time into this SVG `file`")
		}
		cmd.AddCommand(sub)
	}
	cmd.AddCommand(&cobra.Command{
		Use: "worker", Short: "A process that a benchmark starts", Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return Worker(cmd.Context(), cmd.OutOrStdout(), args)
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
