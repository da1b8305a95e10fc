// Package farbench measures package far: what a dereference costs beside a plain
// pointer, and whether the evacuator keeps out of the mutators' way.
//
// It also measures how fast far's structures are, beside Go's own, beside a redis-server, and beside what raw reads
// of the same run allow; and how fast compression and a web front end are with a part of their data local. For that,
// the memory node runs in a process of its own, over tcp and over shm.
//
// To measure the runtime alone, in RunDeref and in part of RunPause, far memory is a far.MemStore in the same
// process. Rounds of what is compared alternate, and the median round counts. The more other work there is on the
// machine, the more the figures say about its scheduler: a program that waits for its node, or for another of its
// threads that was preempted, loses more than one that never waits.
package farbench

import (
	"io"
	"slices"

	"polder/measure/benchout"
)

// Options say how to run.
type Options struct {
	// Short ends within 45 s, at some cost in steadiness.
	Short bool
	// Out receives the figures.
	Out benchout.Printer
	// Polder is the path of the polder program, which runs the memory nodes. Benchmarks that need no node ignore it.
	Polder string
	// Note, if not nil, is told what is left out, and why.
	Note func(string)
	// Corpus is the directory of the files that far scan compresses and far words indexes. The default is the source
	// of the Go installation.
	Corpus string
	// Plots, if not nil, receives what RunPause has seen over time, as SVG.
	Plots io.Writer
}

func (o *Options) note(what string) {
	if o.Note != nil {
		o.Note(what)
	}
}

// median is the middle of vs, which it sorts.
func median(vs []float64) float64 {
	slices.Sort(vs)
	return vs[len(vs)/2]
}
