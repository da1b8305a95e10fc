package main

import (
	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/doctor"
)

func newDoctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host can do, and what Polder makes of it",
		Long: "Lists the RDMA devices of this host with their capabilities and limits, the limits\n" +
			"that the system sets, and what Polder will and will not do with them. Where\n" +
			"something is missing, it says how to get it. It changes nothing.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return doctor.Look().Print(cmd.OutOrStdout())
		},
	}
}
