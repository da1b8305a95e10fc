package measuring

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/progress"
	"polder/measure/simcluster"
	"polder/measure/simfaults"
	"polder/measure/simfinemem"
	"polder/measure/simlatency"
)

// Sim is the command polder sim.
func Sim() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Reproduce published figures, and find faults, in virtual time",
		Args:  usage.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSimLatency(), newSimFineMem(), newSimKV(), newSimSwap(), newSimCluster())
	return cmd
}

func newSimLatency() *cobra.Command {
	var flags benchFlags
	var seed uint64
	cmd := &cobra.Command{
		Use:   "latency",
		Short: "Access and allocation latency of every way to manage remote memory",
		Long: "Runs the engines and chains on a model of the OneSidedMW paper's testbed, and\n" +
			"prints its figure 10: published beside simulated.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return simlatency.Run(cmd.Context(), simlatency.Options{
				Out: cmd.OutOrStdout(), JSON: flags.json, Seed: seed, Short: flags.short,
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().Uint64Var(&seed, "seed", 1, "of the threads' random pauses: the same gives the same output")
	return cmd
}

func newSimFineMem() *cobra.Command {
	var flags benchFlags
	var seed uint64
	cmd := &cobra.Command{
		Use:   "finemem",
		Short: "Allocation latency of FineMem and its rivals with up to 128 threads on 16 compute nodes",
		Long: "Runs FineMem's protocol, and what it is compared with, on a model of its testbed,\n" +
			"and prints latency and CAS retries: published beside simulated.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			show, done := progress.Steps(progress.Terminal(cmd.ErrOrStderr()))
			defer done()
			return simfinemem.Run(cmd.Context(), simfinemem.Options{
				Out: cmd.OutOrStdout(), JSON: flags.json, Seed: seed, Short: flags.short, Progress: show,
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().Uint64Var(&seed, "seed", 1, "of the threads' random pauses and of what they free: the same gives the same output")
	return cmd
}

func newSimKV() *cobra.Command {
	var flags benchFlags
	var seed uint64
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "A key-value store over every way to manage remote memory, with up to 288 threads",
		Long: "Runs the hash table of package race over the chains of memory nodes, and over what\n" +
			"they are compared with, on a model of the OneSidedMW paper's testbed, and prints its\n" +
			"figures 6 and 7, and the YCSB-A of FineMem's: published beside simulated, and what\n" +
			"bounds what is not reached.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			show, done := progress.Steps(progress.Terminal(cmd.ErrOrStderr()))
			defer done()
			return simlatency.RunKV(cmd.Context(), simlatency.Options{
				Out: cmd.OutOrStdout(), JSON: flags.json, Seed: seed, Short: flags.short, Progress: show,
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().Uint64Var(&seed, "seed", 1, "of keys, the threads' pauses and what they read: the same gives the same output")
	return cmd
}

func newSimSwap() *cobra.Command {
	var flags benchFlags
	var seed uint64
	cmd := &cobra.Command{
		Use:   "swap [CLUSTER.JSON]",
		Short: "Swapping to remote memory over every way to manage it, and a cluster that shares it",
		Long: "Runs tasks that swap over the chains of memory nodes, and over what they are compared\n" +
			"with, on a model of the OneSidedMW paper's testbed, and prints its figures 8 and 9:\n" +
			"published beside simulated, and what bounds what is not reached.\n\n" +
			"With a file that describes servers, jobs and published runs, it simulates FineMem's\n" +
			"cluster instead: how much sooner jobs are through when servers borrow far memory from\n" +
			"one pool than with a partition for each. docs/simulation.md has the format.",
		Args: usage.Args(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			show, done := progress.Steps(progress.Terminal(cmd.ErrOrStderr()))
			defer done()
			if len(args) == 1 {
				f, err := os.Open(args[0])
				if err != nil {
					return fmt.Errorf("cannot read a cluster: %w", err)
				}
				defer f.Close()
				spec, err := simcluster.Read(f)
				if err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
				return simcluster.Run(cmd.Context(), spec, simcluster.Options{
					Out: cmd.OutOrStdout(), JSON: flags.json, Seed: seed, Short: flags.short, Progress: show,
				})
			}
			return simlatency.RunSwap(cmd.Context(), simlatency.Options{
				Out: cmd.OutOrStdout(), JSON: flags.json, Seed: seed, Short: flags.short, Progress: show,
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().Uint64Var(&seed, "seed", 1, "of arrivals, the order of servers, the tasks' pauses and what they touch: the same gives the same output")
	return cmd
}

func newSimCluster() *cobra.Command {
	var flags benchFlags
	o := simfaults.Options{}
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "A heap with a name and copies in a cluster in which everything goes wrong",
		Long: "Runs the owner of a named heap, its copies and its log, as they are, over simulated nodes\n" +
			"and a simulated register: nodes die, stop, restart, are slow, full, cut off and drained,\n" +
			"servers are killed, stopped and superseded, messages are lost and repeated, clocks drift,\n" +
			"bytes change. It fails, and names the seed, if anything that was acknowledged is lost, if\n" +
			"bytes are wrong, if anything is given back twice or kept for ever, or if the cluster has\n" +
			"not recovered when the faults end. The same seed does the same again.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Hours < 0 || o.Hours > 1e6 {
				return &usage.Error{Err: &config.Error{Source: "--hours", Value: fmt.Sprint(o.Hours), Err: errors.New("expected 0 to a million; 0 is one cluster, for a few minutes")}}
			}
			show, done := progress.Steps(progress.Terminal(cmd.ErrOrStderr()))
			defer done()
			o.Out, o.JSON, o.Progress = cmd.OutOrStdout(), flags.json, show
			return simfaults.Run(cmd.Context(), o)
		},
	}
	cmd.Flags().BoolVar(&flags.json, "json", false, "print one JSON object for each figure, instead of a table")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of the first cluster; each other one has the next")
	cmd.Flags().Float64Var(&o.Hours, "hours", 1, "simulated hours, of all clusters together: about half a minute of a processor each; 0 is one cluster")
	cmd.Flags().BoolVar(&o.Trace, "trace", false, "print what happens in the first cluster")
	return cmd
}
