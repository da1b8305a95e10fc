package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/doctor"
	"polder/cmd/polder/internal/usage"
)

func newDoctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host can do, and what Polder makes of it",
		Long: "Lists the RDMA devices of this host with their capabilities and limits, the limits\n" +
			"that the system sets, and what Polder will and will not do with them. Where\n" +
			"something is missing, it says how to get it. It changes nothing.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return doctor.Look().Print(cmd.OutOrStdout())
		},
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "polder %s (%s, %s/%s)\n",
				daemon.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
