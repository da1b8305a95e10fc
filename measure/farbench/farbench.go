// Package farbench measures package far: what a dereference costs beside a plain
// pointer, and whether the evacuator keeps out of the mutators' way.
//
// How fast its structures are, beside Go's own, beside a redis-server, and beside
// what raw reads of the same run allow, it measures with the memory node in a
// process of its own, over tcp and over shm, and how far compression and a web
// front end get with a part of their data local.
//
// For the runtime alone, RunDeref and RunPause, the memory node is a far.MemStore
// in the same process. Rounds of what is compared alternate, and the median round
// counts. The more other work there is on the machine, the more the figures say
// about its scheduler: a program that waits for its node, or for another of its
// threads that was preempted, loses more than one that never waits.
package farbench

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"polder/measure/benchout"
)

// Options say how to run.
type Options struct {
	// Short ends within 45 s, at some cost in steadiness.
	Short bool
	// Out receives the figures.
	Out benchout.Printer
	// Polder is the file of the program, which runs the memory nodes. What needs
	// none does not look at it.
	Polder string
	// Note, if not nil, is told what is left out, and why.
	Note func(string)
	// Corpus is the directory of what far scan compresses. The default is
	// the source of the Go installation.
	Corpus string
	// Plots, if not nil, receives what RunPause has seen over time, as SVG.
	Plots io.Writer
}

func (o *Options) note(what string) {
	if o.Note != nil {
		o.Note(what)
	}
}

// Command returns the command far for polder bench, with its subcommands.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "far",
		Short: "Measure far memory: dereferencing, evacuation, data structures",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, b := range []struct {
		name, short string
		run         func(context.Context, Options) error
	}{
		{"deref", "Compare a remoteable pointer with a plain one", RunDeref},
		{"pause", "Measure what evacuation costs those who go on working, and whether it keeps up", RunPause},
		{"map", "Compare a map's gets with Go's map, redis-server and what raw reads allow", RunMap},
		{"scan", "Compare reading a far array in sequence with a slice, and compress files from one to another", RunScan},
		{"threads", "Measure a map's gets by the number of goroutines that wait for misses", RunThreads},
		{"component", "Compare a hash table and sums at the memory node with reading what they need", RunComponent},
		{"web", "Compare a web front end over a far map and array with one that has everything local", RunWeb},
	} {
		var asJSON, short bool
		var plots, corpus string
		sub := &cobra.Command{
			Use: b.name, Short: b.short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("cannot find this program's file: %w", err)
				}
				o := Options{Short: short, Out: benchout.New(cmd.OutOrStdout(), asJSON), Polder: self, Corpus: corpus,
					Note: func(what string) { cmd.PrintErrln(what) }}
				if plots == "" {
					return b.run(cmd.Context(), o)
				}
				f, err := os.Create(plots)
				if err != nil {
					return fmt.Errorf("cannot write plots: %w", err)
				}
				o.Plots = f
				if err := b.run(cmd.Context(), o); err != nil {
					f.Close()
					return err
				}
				return f.Close()
			},
		}
		sub.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line instead of a table")
		sub.Flags().BoolVar(&short, "short", false, "end within 45 seconds")
		if b.name == "scan" {
			sub.Flags().StringVar(&corpus, "corpus", "", "compress the files under this directory (default the Go installation's source)")
		}
		if b.name == "pause" {
			sub.Flags().StringVar(&plots, "plots", "", "draw what happens over time into this SVG `file`")
		}
		cmd.AddCommand(sub)
	}
	return cmd
}

// median is the middle of vs, which it sorts.
func median(vs []float64) float64 {
	slices.Sort(vs)
	return vs[len(vs)/2]
}
