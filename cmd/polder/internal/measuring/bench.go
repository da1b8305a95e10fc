package measuring

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/progress"
	"polder/measure/allocbench"
	"polder/measure/benchout"
	"polder/measure/brokerbench"
	"polder/measure/respbench"
	"polder/measure/verbsbench"
	"polder/memnode"
)

// Bench is the command polder bench.
func Bench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this program beside a rival or a limit on this machine",
		Args:  usage.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchResp(), newBenchDurable(), newBenchCluster(), newBenchSurvive(), newBenchSurviveLinks(), newBenchVerbs(), newBenchVerbsServer(), newBenchAlloc(), newBenchMalloc(), newBenchFineMem(), newBenchBroker(),
		newBenchShare(), newBenchSoft(), newBenchFar(), newBenchPages(), newBenchSwapped(), newBenchKV())
	return cmd
}

// benchFlags are the flags of every benchmark.
type benchFlags struct{ json, short bool }

func (b *benchFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&b.json, "json", false, "print one JSON object a line instead of a table")
	cmd.Flags().BoolVar(&b.short, "short", false, "end within 45 seconds")
}

// bench is what a benchmark is run with.
type bench struct {
	self     string // this program's file
	out      benchout.Printer
	short    bool
	progress func(done, total int, what string) // nil: nobody looks
}

// newBenchmark returns the command of a benchmark.
func newBenchmark(use, short string, run func(cmd *cobra.Command, b bench) error) *cobra.Command {
	var flags benchFlags
	cmd := &cobra.Command{
		Use: use, Short: short, Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("cannot find this program's file: %w", err)
			}
			show, done := progress.Steps(progress.Terminal(cmd.ErrOrStderr()))
			defer done()
			b := bench{self: self, out: benchout.New(cmd.OutOrStdout(), flags.json), short: flags.short, progress: show}
			if show != nil {
				b.out = clearing{b.out, done}
			}
			return run(cmd, b)
		},
	}
	flags.add(cmd)
	return cmd
}

// clearing is a printer that removes the progress from the terminal before it
// prints there.
type clearing struct {
	benchout.Printer
	clear func()
}

func (p clearing) Print(r benchout.Row) error {
	p.clear()
	return p.Printer.Print(r)
}

func newBenchResp() *cobra.Command {
	return newBenchmark("resp", "Compare the Redis front end with redis-server: all local, and with a fifth local", func(cmd *cobra.Command, b bench) error {
		return respbench.Run(cmd.Context(), respbench.Config{Polder: b.self, Printer: b.out, Short: b.short, Progress: b.progress})
	})
}

func newBenchDurable() *cobra.Command {
	dir := os.TempDir()
	cmd := newBenchmark("durable", "Compare servers whose answers survive a crash, at nodes and on a disk, with redis-server, its append-only file and its replica", func(cmd *cobra.Command, b bench) error {
		return respbench.RunDurable(cmd.Context(), respbench.Config{Polder: b.self, Printer: b.out, Short: b.short, Progress: b.progress}, dir)
	})
	cmd.Flags().StringVar(&dir, "dir", dir, "a `directory` on the disk to measure")
	return cmd
}

func newBenchCluster() *cobra.Command {
	return newBenchmark("cluster", "Measure servers that share the partitions of a heap: what a command costs, and how long clients wait for moves and takeovers", func(cmd *cobra.Command, b bench) error {
		return respbench.RunCluster(cmd.Context(), respbench.Config{Polder: b.self, Printer: b.out, Short: b.short, Progress: b.progress})
	})
}

func newBenchSurvive() *cobra.Command {
	return newBenchmark("survive", "Compare far memory at one, two and three nodes, and redis-server with a replica; and kill a node", func(cmd *cobra.Command, b bench) error {
		return respbench.RunSurvive(cmd.Context(), respbench.Config{Polder: b.self, Printer: b.out, Short: b.short, Progress: b.progress, Note: func(what string) {
			fmt.Fprintln(cmd.ErrOrStderr(), what)
		}})
	})
}

func newBenchSurviveLinks() *cobra.Command {
	var gbits []int
	var size int64
	cmd := &cobra.Command{
		Use:    respbench.LinksCommand,
		Short:  "Be the part of bench survive that is in a network namespace of its own",
		Hidden: true,
		Args:   usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("cannot find this program's file: %w", err)
			}
			return respbench.RunLinks(cmd.Context(), respbench.Config{Polder: self, Printer: benchout.New(cmd.OutOrStdout(), true)}, gbits, size)
		},
	}
	cmd.Flags().IntSliceVar(&gbits, "gbits", nil, "rates of the links")
	cmd.Flags().Int64Var(&size, "bytes", 0, "of values")
	return cmd
}

func newBenchVerbs() *cobra.Command {
	return newBenchmark("verbs", "Compare READ, WRITE and CMP_SWAP over inproc, shm and tcp with plain TCP and plain memory", func(cmd *cobra.Command, b bench) error {
		return verbsbench.Run(cmd.Context(), verbsbench.Options{Short: b.short, Out: b.out, Server: []string{b.self, "bench", verbsServer}})
	})
}

// verbsServer is the subcommand that bench verbs runs as the other end of its connections.
const verbsServer = "verbs-server"

func newBenchVerbsServer() *cobra.Command {
	return &cobra.Command{
		Use:    verbsServer,
		Short:  "Be the far end of bench verbs, until standard input ends",
		Hidden: true,
		Args:   usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return verbsbench.Serve(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

func newBenchAlloc() *cobra.Command {
	var flags benchFlags
	var traces, sizes []string
	var verbose bool
	var replay allocbench.ReplayOptions
	cmd := &cobra.Command{
		Use:   "alloc [--trace FILE...]",
		Short: "Compare the ways of handing out memory: latency, throughput, cost to the node",
		Long: "Without --trace, clients allocate and free single chunks over tcp and shm. With it,\n" +
			"they replay over tcp what an allocator has asked its operating system for: a file\n" +
			"of lines, each a time of arrival in microseconds and a size class c for 4 KiB << c.\n" +
			"All is allocated, at those times or as fast as possible, and then freed in random\n" +
			"order. Managers whose chunks have one size give a request as many as it needs.\n" +
			"There is one line a manager; -v and --json have everything.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(traces) > 0 {
				return nil // further traces
			}
			for _, name := range []string{"asap", "chunk", "clients", "manager", "seed"} {
				if cmd.Flags().Changed(name) {
					return &usage.Error{Err: fmt.Errorf("--%s is for replaying a trace: say which by --trace FILE", name)}
				}
			}
			return usage.NoArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			var summary allocbench.Summary
			o := allocbench.Options{Short: flags.short, Out: &summary}
			if verbose || flags.json {
				o.Out = benchout.New(cmd.OutOrStdout(), flags.json)
			} else {
				defer func() {
					if err == nil {
						_, err = summary.WriteTo(cmd.OutOrStdout())
					}
				}()
			}
			show, done := progress.Steps(progress.Terminal(cmd.ErrOrStderr()))
			defer done()
			o.Progress = show
			if len(traces) == 0 {
				return allocbench.Run(cmd.Context(), o)
			}
			replay.Options = o
			for _, path := range append(traces, args...) {
				t, err := allocbench.ReadTraceFile(path)
				if err != nil {
					return err
				}
				replay.Traces = append(replay.Traces, t)
			}
			for _, s := range sizes {
				var n int64
				if err := config.NewPowerOfTwo(&n, memnode.MinChunkSize, memnode.MaxChunkSize).Set(s); err != nil {
					return &usage.Error{Err: fmt.Errorf("--chunk %s: %w", s, err)}
				}
				replay.ChunkSizes = append(replay.ChunkSizes, int(n))
			}
			return allocbench.Replay(cmd.Context(), replay)
		},
	}
	flags.add(cmd)
	fs := cmd.Flags()
	replay.Clients = allocbench.DefaultReplayClients
	fs.BoolVarP(&verbose, "verbose", "v", false, "print everything that was measured, not one line a manager")
	fs.StringArrayVar(&traces, "trace", nil, "replay the allocations of this `file`; may be repeated, and arguments are further files")
	fs.BoolVar(&replay.ASAP, "asap", false, "replay as fast as possible, not at the trace's times")
	fs.Var(config.NewInt(&replay.Clients, 1, allocbench.MaxReplayClients), "clients", "how many clients share a trace's requests")
	fs.StringSliceVar(&sizes, "chunk", nil, "chunk `sizes` of managers that have one (default 128KiB,2MiB)")
	fs.StringSliceVar(&replay.Managers, "manager", nil, "replay with these `managers` only")
	fs.Uint64Var(&replay.Seed, "seed", 1, "of the order in which a replay frees")
	return cmd
}

func newBenchMalloc() *cobra.Command {
	var flags benchFlags
	cmd := &cobra.Command{
		Use:   "malloc",
		Short: "Compare a heap of far blocks that takes memory as it needs it with one that takes coarse chunks",
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			show, done := progress.Steps(progress.Terminal(cmd.ErrOrStderr()))
			defer done()
			return allocbench.RunMalloc(cmd.Context(), allocbench.Options{
				Short:    flags.short,
				Out:      benchout.New(cmd.OutOrStdout(), flags.json),
				Progress: show,
			})
		},
	}
	flags.add(cmd)
	return cmd
}

func newBenchFineMem() *cobra.Command {
	return newBenchmark("finemem", "Measure what FineMem's metadata take, and the recovery of a client that dies", func(cmd *cobra.Command, b bench) error {
		return allocbench.RunFineMem(cmd.Context(), allocbench.Options{Short: b.short, Out: b.out, Progress: b.progress})
	})
}

func newBenchBroker() *cobra.Command {
	return newBenchmark("broker", "Measure what the broker adds to an allocation", func(cmd *cobra.Command, b bench) error {
		o := brokerbench.Options{Polder: b.self, Out: b.out}
		if b.short {
			o.Rounds = brokerbench.DefaultRounds / 4
		}
		return brokerbench.Run(cmd.Context(), o)
	})
}
