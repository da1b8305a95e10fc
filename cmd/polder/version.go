package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/daemon"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "polder %s (%s, %s/%s)\n",
				daemon.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
