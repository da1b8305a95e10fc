package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/demo"
	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/progress"
)

func newDemo() *cobra.Command {
	cfg := demo.Config{Local: 16 << 20}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Store every file of the Go source tree with little memory, read it back, compare",
		Long: "Starts a memory node and a server with a small local budget, each in a process of\n" +
			"its own, stores every file of a source tree under its path, reads all of it back,\n" +
			"and compares SHA-256 sums.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.Polder, err = os.Executable(); err != nil {
				return fmt.Errorf("cannot find this program's file: %w", err)
			}
			cfg.Out, cfg.Progress = cmd.OutOrStdout(), progress.Terminal(cmd.ErrOrStderr())
			return demo.Run(cmd.Context(), cfg)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cfg.Dir, "dir", "", "the `directory` to store; the default is Go's own sources")
	fs.Var(config.NewSize(&cfg.Local, 4<<20, 0), "local", "the server's budget of resident memory for data")
	return cmd
}
