package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/top"
	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/operator"
)

// usualShareAdmin is the administrative address of a share daemon in the documents. The
// daemon has none unless it is given one.
const usualShareAdmin = "127.0.0.1:7075"

// The administrative addresses that status and top ask by default: the defaults of up and
// serve, node, broker, coordinator, serve files and witness, and usualShareAdmin.
var usualAdmin = []string{defaultAdmin, defaultNodeAdmin, defaultBrokerAdmin, defaultCoordinatorAdmin, usualShareAdmin, defaultFilesAdmin, defaultWitnessAdmin}

func newStatus() *cobra.Command {
	var (
		file   string
		addrs  = usualAdmin
		asJSON bool
		access operator.Access
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the daemons of this or another host are doing",
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, token, err := access.Load()
			if err != nil {
				return err
			}
			var errs []error
			found := 0
			for _, addr := range addrs {
				s, err := console.Query(cmd.Context(), client, token, addr, 0)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				if found++; asJSON {
					err = json.NewEncoder(cmd.OutOrStdout()).Encode(s)
				} else {
					err = s.Print(cmd.OutOrStdout())
				}
				if err != nil {
					return fmt.Errorf("cannot print the status: %w", err)
				}
			}
			switch usual := slices.Equal(addrs, usualAdmin); {
			case usual && found > 0:
				return nil // not every host runs all daemons
			case usual:
				return fmt.Errorf("no daemon answers at the usual addresses: start one with polder up, or name its address with --admin\n%w",
					errors.Join(errs...))
			}
			return errors.Join(errs...)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&file, config.FileFlag, "", "read configuration from this YAML `file`; its keys are the names of the flags")
	fs.Var(config.NewAddresses(&addrs), "admin", "administrative addresses to ask, with commas between")
	fs.BoolVar(&asJSON, "json", false, "print one JSON object a daemon")
	access.Add(fs)
	return cmd
}

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
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if cfg.Count < 0 {
				return &usage.Error{Err: fmt.Errorf("cannot print %d times: --count wants a number, or 0 for no end", cfg.Count)}
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
