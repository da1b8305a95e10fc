package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/daemon"
	"polder/far"
	"polder/internal/config"
)

// The default addresses of serve and up.
const (
	defaultRedis = "127.0.0.1:6379"
	defaultAdmin = "127.0.0.1:7079"
)

func newServe() *cobra.Command {
	var c common
	cfg := daemon.DefaultServe()
	cfg.Listen, cfg.Admin = defaultRedis, defaultAdmin
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve Redis clients from memory borrowed from nodes",
		Long: "Serves the Redis protocol. What is used often stays within the local budget; the\n" +
			"rest lies in memory that the nodes lend. Memory of a node on this machine is best\n" +
			"reached through its Unix socket; " + daemon.DefaultSocket + " is used by itself if it is\n" +
			"there and --far is not given.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if addr, ok := daemon.NodeHere(); ok && len(cfg.Far) == 0 {
				cfg.Far = []string{addr}
			}
			if len(cfg.Far) == 0 {
				return &usageError{&config.Error{Source: "--far", Err: errors.New(
					"it is not given; expected the addresses of nodes such as 127.0.0.1:7070 (polder up needs none)")}}
			}
			var err error
			if cfg.Common, err = c.daemon(cmd, cfg.Common); err != nil {
				return err
			}
			return daemon.RunServe(cmd.Context(), cfg)
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewFarAddresses(&cfg.Far), "far", "nodes to borrow from, HOST:PORT or unix:PATH, with commas between, or broker:PATH for those of a broker")
	serveFlags(fs, &cfg)
	c.flags(fs)
	adminFlag(fs, &cfg.Common)
	return cmd
}

// serveFlags are the flags of the heap and the Redis front end.
func serveFlags(fs *pflag.FlagSet, cfg *daemon.ServeConfig) {
	managerFlag(fs, &cfg.Manager)
	fs.Var(config.NewSize(&cfg.Local, far.MinLocal, 0), "local", "budget of resident memory for data")
	fs.Var(config.NewSize(&cfg.MaxValue, 64, 512<<20), "max-value", "largest value; the default is a quarter of the budget, at most 32MiB")
	fs.Var(config.NewAddress(&cfg.Listen, false), "listen", "where Redis clients connect")
	fs.StringVar(&cfg.Password, "password", "", "what clients must present with AUTH; better given as POLDER_PASSWORD or in the file")
	fs.Var(config.NewInt(&cfg.MaxClients, 1, 1<<20), "max-clients", "most connections")
	fs.Var(config.NewSize(&cfg.OutputLimit, 64, 1<<30), "output-limit", "unread replies with which the commands of a client wait; one who reads nothing for 5s then is disconnected")
	fs.Var(config.NewDuration(&cfg.OpTimeout, time.Millisecond), "op-timeout", "how long a command waits for far memory")
	fs.Var(config.NewDuration(&cfg.IdleTimeout, 0), "idle-timeout", "disconnect clients that are silent for so long; 0 means never")
}
