package measuring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/usage"
	"polder/measure/farbench"
)

func newBenchFar() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "far",
		Short: "Measure far memory: dereferencing, evacuation, data structures",
		Args:  usage.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, b := range []struct {
		name, short string
		run         func(context.Context, farbench.Options) error
	}{
		{"deref", "Compare a remoteable pointer with a plain one", farbench.RunDeref},
		{"pause", "Measure what evacuation costs those who go on working, and whether it keeps up", farbench.RunPause},
		{"map", "Compare a map's gets with Go's map, redis-server and what raw reads allow", farbench.RunMap},
		{"set", "Measure SETs of random keys in a map a hundred times as large as its local memory, and what each moves", farbench.RunSet},
		{"words", "Build an inverted index in 8 MiB of local memory, beside Go's map", farbench.RunWords},
		{"scan", "Compare reading a far array in sequence with a slice, and compress files from one to another", farbench.RunScan},
		{"threads", "Measure a map's gets by the number of goroutines that wait for misses", farbench.RunThreads},
		{"component", "Compare lookups, sums and elements that are moved at the memory node with reading what they need", farbench.RunComponent},
		{"paging", "Compare far objects with pages that are brought when they are touched, and with the kernel's swapping", farbench.RunPaging},
		{"web", "Compare a web front end over a far map and array with one that has everything local", farbench.RunWeb},
	} {
		var plots, corpus string
		sub := newBenchmark(b.name, b.short, func(cmd *cobra.Command, with bench) error {
			o := farbench.Options{Short: with.short, Out: with.out, Polder: with.self, Corpus: corpus, Note: func(what string) { cmd.PrintErrln(what) }}
			return withPlots(plots, func(w io.Writer) error {
				o.Plots = w
				return b.run(cmd.Context(), o)
			})
		})
		if b.name == "scan" || b.name == "words" {
			sub.Flags().StringVar(&corpus, "corpus", "", "use the files under this `directory` (default the Go installation's source)")
		}
		if b.name == "pause" {
			plotsFlag(sub, &plots)
		}
		cmd.AddCommand(sub)
	}
	return cmd
}

func newBenchPages() *cobra.Command {
	return newBenchmark("pages", "Measure page faults beside raw READs, and programs with a part of their pages local beside ordinary memory", func(cmd *cobra.Command, b bench) error {
		return farbench.RunPages(cmd.Context(), farbench.Options{Short: b.short, Out: b.out, Polder: b.self, Note: func(what string) { cmd.PrintErrln(what) }})
	})
}

// newBenchSwapped returns the hidden command of a process whose memory the kernel swaps out, for benchmarks of pages.
func newBenchSwapped() *cobra.Command {
	return &cobra.Command{
		Use: farbench.SwappedCommand, Short: "Be a process whose memory is swapped out, until the benchmark ends", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := strconv.Atoi(args[0])
			if err != nil {
				return err
			}
			return farbench.Swapped(cmd.Context(), size, cmd.OutOrStdout())
		},
	}
}

func newBenchKV() *cobra.Command {
	return newBenchmark("kv", "Compare RACE hashing with the round trips that it must make, a far map and redis-server: YCSB A to D", func(cmd *cobra.Command, b bench) error {
		return farbench.RunKV(cmd.Context(), farbench.Options{Short: b.short, Out: b.out, Polder: b.self, Note: func(what string) { cmd.PrintErrln(what) }})
	})
}

// plotsFlag is the flag of benchmarks in which something happens over time.
func plotsFlag(cmd *cobra.Command, plots *string) {
	cmd.Flags().StringVar(plots, "plots", "", "draw what happens over time into this SVG `file`")
}

// withPlots runs a benchmark that draws into the file of that name. If name is empty,
// the benchmark gets nil and does not draw.
func withPlots(name string, run func(io.Writer) error) error {
	if name == "" {
		return run(nil)
	}
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("cannot write plots: %w", err)
	}
	return errors.Join(run(f), f.Close())
}
