// Package softbench is polder bench soft: what soft memory costs and what it
// brings, beside the figures published for Midas.
//
//	ptr         a soft pointer beside a plain one
//	reclaim     how fast memory is taken back, cooperatively and directly
//	pressure    a service and an antagonist under a hard limit
//	files       a page cache in soft memory and the kernel's, beside a scan
//	rebuild     which part of the throughput remains, by the cost of rebuilding
//	coordinate  four applications that share too little memory
//
// Each is a function of a context and Options. A benchmark that needs processes of
// its own starts this program again with the hidden subcommand worker.
//
// Nothing here is for concurrent use.
package softbench

import (
	"io"

	"polder/measure/benchout"
)

// Options say what to measure and where to print it. Printer is required.
type Options struct {
	Printer benchout.Printer
	Short   bool // end within 45 s

	// Polder is the program to start for worker processes, and Args its arguments
	// before the worker's: "bench", "soft".
	Polder string
	Args   []string

	// Plots, if set, receives what happened over time, as SVG.
	Plots io.Writer

	// Progress, if set, is told what is being done.
	Progress func(done, total int, what string)
}

func (o *Options) progress(done, total int, what string) {
	if o.Progress != nil {
		o.Progress(done, total, what)
	}
}
