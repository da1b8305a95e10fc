package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/top"
	"polder/internal/config"
	"polder/internal/operator"
)

func newTop() *cobra.Command {
	var (
		file   string
		access operator.Access
		addrs  = usualAdmin
		cfg    = top.Config{Every: 2 * time.Second, Count: 1}
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch what the daemons of this or another host are doing",
		Long: "Shows a line for each daemon, and all of one that is opened: memory, rates,\n" +
			"latencies, nodes, events. The key ? explains the others. Without a terminal it\n" +
			"prints the lines.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if cfg.Count < 0 {
				return &usageError{fmt.Errorf("cannot print %d times: --count wants a number, or 0 for no end", cfg.Count)}
			}
			cfg.Addrs, cfg.Usual = addrs, slices.Equal(addrs, usualAdmin)
			cfg.In, cfg.Out = os.Stdin, cmd.OutOrStdout()
			if cfg.TLS, cfg.Token, err = access.Load(); err != nil {
				return err
			}
			return top.Run(cmd.Context(), cfg)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&file, config.FileFlag, "", "read configuration from this YAML `file`; its keys are the names of the flags")
	fs.Var(config.NewAddresses(&addrs), "admin", "administrative addresses to ask, with commas between")
	fs.Var(config.NewDuration(&cfg.Every, 100*time.Millisecond), "every", "how often to ask")
	fs.IntVarP(&cfg.Count, "count", "n", cfg.Count, "without a terminal, how often to print; 0 means without end")
	access.Add(fs)
	return cmd
}
