package measuring

import (
	"github.com/spf13/cobra"

	"polder/measure/sharebench"
)

// benchShareWorker is the hidden subcommand of "polder share" that the benchmark
// runs as its worker processes.
const benchShareWorker = "bench-worker"

func newBenchShare() *cobra.Command {
	var opt sharebench.Options
	cmd := newBenchmark("share", "Compare shared memory with memcpy and redis-server, or replay a trace of LLM requests", func(cmd *cobra.Command, b bench) error {
		opt.Short, opt.Out, opt.Progress = b.short, b.out, b.progress
		opt.Daemon, opt.WorkerCommand = []string{b.self, "share"}, []string{b.self, "share", benchShareWorker}
		return sharebench.Run(cmd.Context(), opt)
	})
	fs := cmd.Flags()
	fs.StringVar(&opt.Trace, "trace", "", "replay this `file` of JSON lines with hash_ids instead")
	fs.IntVar(&opt.Chunk, "chunk", 16<<10, "bytes that a block of the trace stands for")
	fs.IntVar(&opt.Workers, "workers", 4, "processes that replay the trace")
	fs.IntSliceVar(&opt.Capacities, "capacity", []int{10, 25, 50, 75, 100}, "sizes of the pool, in per cent of all distinct blocks of the trace")
	fs.StringVar(&opt.Dir, "log-dir", "", "`directory` on the disk that the daemon's log is to be on; the default is the temporary one")
	return cmd
}

// ShareWorker returns the command of a worker process.
func ShareWorker() *cobra.Command {
	return &cobra.Command{
		Use: benchShareWorker, Short: "Be a worker of bench share, until standard input ends", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return sharebench.Worker(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
