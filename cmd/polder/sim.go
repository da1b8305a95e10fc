package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"polder/internal/progress"
	"polder/measure/simcluster"
	"polder/measure/simfinemem"
	"polder/measure/simlatency"
)

func newSim() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Reproduce published figures in virtual time",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSimLatency(), newSimFineMem(), newSimKV(), newSimSwap())
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
		Args: noArgs,
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
		Args: noArgs,
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
		Args: noArgs,
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
		Args: cobra.MaximumNArgs(1),
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
