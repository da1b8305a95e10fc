package measuring

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/usage"
	"polder/measure/softbench"
)

func newBenchSoft() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "soft",
		Short: "Measure soft memory: pointers, reclamation, pressure, files, rebuilding, coordination",
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Args:  usage.NoArgs,
	}
	for _, b := range []struct {
		name, short string
		run         func(context.Context, softbench.Options) error
		plots       bool // the benchmark can draw what happens over time
	}{
		{"ptr", "Compare a soft pointer with a plain one", softbench.RunPtr, false},
		{"reclaim", "Measure how fast memory is taken back", softbench.RunReclaim, false},
		{"pressure", "Run a service beside an antagonist under a hard limit", softbench.RunPressure, true},
		{"files", "Serve files from soft memory, beside the kernel's page cache and a scan", softbench.RunFiles, false},
		{"rebuild", "Sweep what rebuilding an object costs", softbench.RunRebuild, false},
		{"coordinate", "Divide too little memory among four applications", softbench.RunCoordinate, true},
	} {
		var plots string
		sub := newBenchmark(b.name, b.short, func(cmd *cobra.Command, with bench) error {
			o := softbench.Options{Printer: with.out, Short: with.short, Progress: with.progress, Polder: with.self, Args: workerArgs(cmd)}
			return withPlots(plots, func(w io.Writer) error {
				o.Plots = w
				return b.run(cmd.Context(), o)
			})
		})
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

// workerArgs are the arguments with which this program runs the command worker.
func workerArgs(cmd *cobra.Command) (args []string) {
	for p := cmd.Parent(); p != nil && p.HasParent(); p = p.Parent() {
		args = append([]string{p.Name()}, args...)
	}
	return args
}
