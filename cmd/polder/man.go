package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"polder/cmd/polder/internal/usage"
)

// newMan returns "polder man", which "make install" runs.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write manual pages of all commands into a directory",
		Args:  usage.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := os.MkdirAll(args[0], 0o755)
			if err == nil {
				root := cmd.Root()
				root.DisableAutoGenTag = true // the same sources give the same pages
				err = doc.GenManTree(root, &doc.GenManHeader{Title: "POLDER", Section: "1", Source: "Polder", Manual: "Polder"}, args[0])
			}
			if err != nil {
				return fmt.Errorf("cannot write the manual pages: %w", err)
			}
			return nil
		},
	}
}
