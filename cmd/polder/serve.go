package main

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/daemon"
	"polder/far"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/pool"
	"polder/soft"
)

// The default addresses of serve and up.
const (
	defaultRedis = "127.0.0.1:6379"
	defaultAdmin = "127.0.0.1:7079"
)

func newServe() daemonCommand {
	var op operator.Flags
	tier, cfg := tierFar, daemon.DefaultCache()
	cfg.Listen = defaultRedis
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve Redis clients from memory borrowed from nodes, or from what is idle here",
		Long: "Serves the Redis protocol. What is used often stays within the local budget; the\n" +
			"rest lies in memory that the nodes lend. Memory of a node on this machine is best\n" +
			"reached through its Unix socket; " + daemon.DefaultSocket + " is used by itself if it is\n" +
			"there and --far is not given.\n\n" +
			"With --tier soft it is a cache in memory that is idle on this machine: what a\n" +
			"coordinator takes back is a miss, and maxmemory is what it grants at the moment.\n" +
			"Without --coordinator, the coordinator is used that listens where one does by\n" +
			"default; if none does, the cache has the budget and keeps it.\n" +
			"It then serves memcached's clients, too, if --memcached is given. With --origin it\n" +
			"is a cache before a Redis that runs elsewhere: GET and MGET are answered here, and\n" +
			"everything else is passed on. Clients then give that Redis's passwords, if it has any.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(checkTier(cmd.Flags(), tier, cfg), checkOrigin(cmd.Flags(), cfg.Origin)); err != nil {
				return err
			}
			if tier == tierSoft {
				return op.Run(cmd, func(c *operator.Control) error {
					cfg.Control = c
					cfg.Coordinator = coordinatorOf(cfg.Coordinator, cfg.Budget, c.Logger)
					return daemon.RunCache(cmd.Context(), cfg)
				})
			}
			if err := farAddresses(&cfg.BorrowConfig); err != nil {
				return err
			}
			return op.Run(cmd, func(c *operator.Control) error {
				cfg.Control = c
				return daemon.RunServe(cmd.Context(), cfg.ServeConfig)
			})
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewFarAddresses(&cfg.Far), "far", farUsage)
	serveFlags(fs, &cfg.ServeConfig)
	fs.Var(config.NewChoice(&tier, tierFar, tierSoft), "tier", "which memory to serve from: far or soft")
	fs.Var(config.NewSize(&cfg.Budget, daemon.MinCacheBudget, 0), "budget", "with --tier soft, memory to use while no coordinator says otherwise")
	coordinatorFlag(fs, &cfg.Coordinator, "with --tier soft, ")
	fs.Var(config.NewDoor(&cfg.Memcached, true), "memcached", "with --tier soft, where memcached's clients connect, HOST:PORT or unix:PATH")
	originFlags(fs, &cfg.Origin)
	op.Add(fs, defaultAdmin, listen.Node, listen.Client)
	op.AddPassword(fs)
	cmd.AddCommand(newFiles().Command)
	return daemonCommand{cmd, func() error {
		return errors.Join(checkTier(fs, tier, cfg), checkOrigin(fs, cfg.Origin), cfg.Check(), op.Check(fs,
			operator.Address{Role: listen.Client, Flag: "listen", Addr: cfg.Listen}, operator.Address{Role: listen.Client, Flag: "memcached", Addr: cfg.Memcached}))
	}}
}

// coordinatorFlag is the flag that says which coordinator a cache goes by.
func coordinatorFlag(fs *pflag.FlagSet, path *string, when string) {
	fs.StringVar(path, "coordinator", "", when+"`path` of the coordinator's socket, or \"off\"; the default is where one listens by default, if one does")
}

// coordinatorOf is the path of the coordinator's socket that a cache goes by, which has so
// many bytes without; "" for none.
func coordinatorOf(path string, budget int64, log *slog.Logger) string {
	switch path {
	case "off":
		return ""
	case "":
		path = soft.FindCoordinator()
		if path == "" {
			log.Warn("there is no coordinator: the memory of the cache is fixed; start polder coordinator before it, or say --coordinator PATH or off",
				"bytes", budget, "looked at", soft.CoordinatorSockets())
		}
		return path
	}
	return path
}

// The memory that serve can serve from.
const (
	tierFar  = "far"
	tierSoft = "soft"
)

// checkTier refuses what makes no sense together. It does not look at flags
// with which nothing is asked for, such as a budget: the environment may hold
// them for other commands.
func checkTier(fs *pflag.FlagSet, tier string, cfg daemon.CacheConfig) error {
	only := map[string]string{"far": tierFar, "manager": tierFar, "device": tierFar, "coordinator": tierSoft, "memcached": tierSoft, "origin": tierSoft}
	given := map[string]bool{
		"far": len(cfg.Far) > 0, "manager": cfg.Manager != "", "device": cfg.Device != "",
		"coordinator": cfg.Coordinator != "", "memcached": cfg.Memcached != "", "origin": cfg.Origin.URL != "",
	}
	for _, name := range []string{"far", "manager", "device", "coordinator", "memcached", "origin"} {
		if given[name] && only[name] != tier {
			return &usageError{&config.Error{Source: "--" + name, Value: fs.Lookup(name).Value.String(),
				Err: fmt.Errorf("expected none without --tier %s", only[name])}}
		}
	}
	return nil
}

// serveFlags are the flags of the heap and the Redis front end.
func serveFlags(fs *pflag.FlagSet, cfg *daemon.ServeConfig) {
	borrowFlags(fs, &cfg.BorrowConfig, "how long a command waits for far memory")
	fs.Var(config.NewSize(&cfg.MaxValue, 64, 512<<20), "max-value", "largest value, at most half of --client-memory; the default is a quarter of the budget, at most a third of --client-memory")
	fs.Var(config.NewDoor(&cfg.Listen, false), "listen", "where Redis clients connect, HOST:PORT or unix:PATH")
	fs.Var(config.NewInt(&cfg.MaxClients, 1, 1<<20), "max-clients", "most connections")
	fs.Var(config.NewSize(&cfg.OutputLimit, 64, 1<<30), "output-limit", "unread replies with which the commands of a client wait, less while clients hold much; one who reads less than 64KiB in 5s then is disconnected")
	fs.Var(config.NewSize(&cfg.ClientMemory, 4<<20, 1<<40), "client-memory", "most memory that clients hold in all: input, replies, transactions, watched keys; who holds most is disconnected first; more than the default needs more than 64MiB beside the budget")
	fs.Var(config.NewDuration(&cfg.IdleTimeout, 0), "idle-timeout", "disconnect clients that are silent for so long; 0 means never")
}

// farUsage is what --far says where it has to be given.
const farUsage = "nodes to borrow from, HOST:PORT, unix:PATH or rdma://HOST:PORT, with commas between, or broker:PATH for those of a broker"

// farAddresses looks for a node on this machine if no addresses were given.
func farAddresses(cfg *daemon.BorrowConfig) error {
	if addr, ok := daemon.NodeHere(); ok && len(cfg.Far) == 0 {
		cfg.Far = []string{addr}
	}
	if len(cfg.Far) == 0 {
		return &usageError{&config.Error{Source: "--far", Err: errors.New(
			"it is not given; expected the addresses of nodes such as 127.0.0.1:7070 (polder up needs none)")}}
	}
	return nil
}

// borrowFlags are the flags of a heap over borrowed memory, but for whom it is borrowed from.
func borrowFlags(fs *pflag.FlagSet, cfg *daemon.BorrowConfig, opTimeout string) {
	managerFlag(fs, &cfg.Manager)
	cfg.Groups, cfg.Pairs = pool.DefaultGroups, pool.DefaultPairs
	queuePairFlags(fs, &cfg.Groups, &cfg.Pairs, "")
	fs.Var(config.NewDuration(&cfg.FarWait, 0), "far-wait", "how long to try, at the start, until one of the nodes answers")
	deviceFlag(fs, &cfg.Device)
	fs.Var(config.NewSize(&cfg.Local, far.MinLocal, 0), "local", "budget of resident memory for data")
	fs.Var(config.NewDuration(&cfg.OpTimeout, time.Millisecond), "op-timeout", opTimeout)
}
