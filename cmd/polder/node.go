package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/daemon"
	"polder/internal/config"
	"polder/memnode"
	"polder/pool"
)

// The default addresses of node.
const (
	defaultVerbs     = "127.0.0.1:7070"
	defaultNodeAdmin = "127.0.0.1:7071"
)

func newNode() *cobra.Command {
	var c common
	cfg := daemon.NodeConfig{
		Listen: defaultVerbs,
		Lend:   daemon.DefaultLend(),
		Chunk:  memnode.DefaultChunkSize,
		Grace:  memnode.DefaultGrace,
	}
	cfg.Admin = defaultNodeAdmin
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Lend this host's memory to others",
		Long: "Lends memory: clients borrow chunks of it and read and write them by one-sided\n" +
			"operations. What is lent is touched when it is used, and given back to the\n" +
			"operating system when it is freed.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.Common, err = c.daemon(cmd, cfg.Common); err != nil {
				return err
			}
			return daemon.RunNode(cmd.Context(), cfg)
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewNodeAddress(&cfg.Listen), "listen", "where clients connect; with unix:PATH, clients on this machine, which map what they borrow")
	lendFlags(fs, &cfg)
	c.flags(fs)
	adminFlag(fs, &cfg.Common)
	return cmd
}

// lendFlags are the flags that say what to lend, and to whom.
func lendFlags(fs *pflag.FlagSet, cfg *daemon.NodeConfig) {
	fs.Var(config.NewSize(&cfg.Lend, memnode.MinChunkSize, 0), "lend", "memory to lend; the default is half of what is free now")
	fs.Var(config.NewPowerOfTwo(&cfg.Chunk, memnode.MinChunkSize, memnode.MaxChunkSize), "chunk", "unit of lending, a power of two")
	fs.Var(config.NewSize(&cfg.ClientBudget, 0, 0), "client-budget", "most memory that one client may hold; 0 means all")
	managerFlag(fs, &cfg.Manager)
	secretFlag(fs, &cfg.SecretFile)
	fs.Var(config.NewDuration(&cfg.Grace, time.Millisecond), "grace", "how long a client's memory outlives its connection")
}

// managerFlag is the flag that says how memory is managed. A node and those who
// borrow from it must agree.
func managerFlag(fs *pflag.FlagSet, name *string) {
	fs.Var(config.NewChoice(name, pool.Managers()...), "manager",
		"how memory is handed out, the same at a node and its borrowers: "+strings.Join(pool.Managers(), ", ")+
			"; the default is "+memnode.DefaultManager)
}

// secretFlag is the flag of what a node and its brokers have in common.
func secretFlag(fs *pflag.FlagSet, file *string) {
	fs.StringVar(file, "service-secret-file", "", "with the manager finemem: only brokers that know the secret in this `file` may allocate; 64 hexadecimal digits, with mode 0600")
}

func adminFlag(fs *pflag.FlagSet, c *daemon.Common) {
	fs.Var(config.NewAddress(&c.Admin, true), "admin", `where metrics, status, health and profiles are served over HTTP, or "off"`)
}

// daemon completes what every daemon is given.
func (c *common) daemon(cmd *cobra.Command, d daemon.Common) (daemon.Common, error) {
	logger, err := c.logger(cmd.ErrOrStderr())
	if err != nil {
		return d, err
	}
	d.Out, d.Logger, d.Security, d.ReadyFile = cmd.OutOrStdout(), logger, c.security, c.readyFile
	return d, nil
}
