package main

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/usage"
	"polder/far"
	"polder/far/copies"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/partition"
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
			"With --heap, --witness and --partitions any number of servers share a heap, as a Redis\n" +
			"Cluster: each has some of its partitions, and takes over those of a server that dies.\n\n" +
			"With --tier soft it is a cache in memory that is idle on this machine: what a\n" +
			"coordinator takes back is a miss, and maxmemory is what it grants at the moment.\n" +
			"Without --coordinator, the coordinator is used that listens where one does by\n" +
			"default; if none does, the cache has the budget and keeps it.\n" +
			"It then serves memcached's clients, too, if --memcached is given. With --origin it\n" +
			"is a cache before a Redis that runs elsewhere: GET and MGET are answered here, and\n" +
			"everything else is passed on. Clients then give that Redis's passwords, if it has any.",
		Args: usage.NoArgs,
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
	fs.Var(config.NewInt(&cfg.Partitions, 0, partition.MaxPartitions), "partitions", "with --heap and --witness, in how many partitions any number of servers share the heap, as a Redis Cluster does; the same for all of them")
	fs.Var(config.NewChoice(&tier, tierFar, tierSoft), "tier", "which memory to serve from: far or soft")
	fs.Var(config.NewSize(&cfg.Budget, daemon.MinCacheBudget, daemon.MaxCacheBudget), "budget", "with --tier soft, memory to use while no coordinator says otherwise")
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

// coordinatorFlag is the flag that says which coordinator a cache obeys.
func coordinatorFlag(fs *pflag.FlagSet, path *string, when string) {
	fs.StringVar(path, "coordinator", "", when+"`path` of the coordinator's socket, or \"off\"; the default is where one listens by default, if one does")
}

// coordinatorOf returns the path of the socket of the coordinator that a cache obeys, "" for
// none. budget is the cache's memory in bytes if there is no coordinator.
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

// checkTier refuses flags that ask for something that the tier does not have. It
// does not look at flags that only set a quantity, such as a budget: the
// environment may hold them for other commands.
func checkTier(fs *pflag.FlagSet, tier string, cfg daemon.CacheConfig) error {
	only := map[string]string{"far": tierFar, "disk": tierFar, "heap": tierFar, "witness": tierFar, "two-nodes": tierFar, "durable": tierFar, "manager": tierFar, "device": tierFar, "coordinator": tierSoft, "memcached": tierSoft, "origin": tierSoft}
	given := map[string]bool{
		"far": len(cfg.Far) > 0, "disk": cfg.Disk != "", "heap": cfg.Heap != "", "witness": len(cfg.Witness) > 0, "two-nodes": cfg.TwoNodes != "", "durable": cfg.Durable, "manager": cfg.Manager != "", "device": cfg.Device != "",
		"coordinator": cfg.Coordinator != "", "memcached": cfg.Memcached != "", "origin": cfg.Origin.URL != "",
	}
	for _, name := range []string{"far", "disk", "heap", "witness", "two-nodes", "durable", "manager", "device", "coordinator", "memcached", "origin"} {
		if given[name] && only[name] != tier {
			return &usage.Error{Err: &config.Error{Source: "--" + name, Value: fs.Lookup(name).Value.String(),
				Err: fmt.Errorf("expected none without --tier %s", only[name])}}
		}
	}
	return nil
}

// serveFlags are the flags of the heap and the Redis front end.
func serveFlags(fs *pflag.FlagSet, cfg *daemon.ServeConfig) {
	borrowFlags(fs, &cfg.BorrowConfig, "how long a command waits for far memory")
	heapFlags(fs, &cfg.BorrowConfig)
	fs.Var(config.NewDurable(&cfg.Durable, &cfg.DurableEvery), "durable", "with --heap, whether what was answered survives the server: yes, with --disk also a loss of power; every:100ms, but for the last 100 milliseconds; or no, back to the last checkpoint")
	fs.Lookup("durable").NoOptDefVal = "yes"
	cfg.Reads = daemon.Lease
	fs.Var(config.NewChoice(&cfg.Reads, daemon.Lease, daemon.Fenced), "reads", "with --witness, how the server knows that no other one has the heap before it answers: by what keeps the manifest, for half a second each time; or, with --durable, by asking the nodes once for all that is answered together, which trusts no clock")
	fs.Var(config.NewSize(&cfg.MaxValue, 64, 512<<20), "max-value", "largest value, at most half of --client-memory; the default is a quarter of the budget, at most a third of --client-memory")
	fs.Var(config.NewDoor(&cfg.Listen, false), "listen", "where Redis clients connect, HOST:PORT or unix:PATH")
	fs.StringVar(&cfg.Advertise, "advertise", "", "with --witness, the `address` at which clients reach this server, HOST:PORT, which servers that stand by tell them as Redis Sentinel does; the default is --listen, or if that is every address of this machine the one that witnesses see")
	fs.Var(config.NewInt(&cfg.MaxClients, 1, 1<<20), "max-clients", "most connections")
	fs.Var(config.NewSize(&cfg.OutputLimit, 64, 1<<30), "output-limit", "unread replies with which the commands of a client wait, less while clients hold much; one who reads less than 64KiB in 5s then is disconnected")
	fs.Var(config.NewSize(&cfg.ClientMemory, 4<<20, 1<<40), "client-memory", "most memory that clients hold in all: input, replies, transactions, watched keys; who holds most is disconnected first; more than the default needs more than 64MiB beside the budget")
	fs.Var(config.NewDuration(&cfg.IdleTimeout, 0), "idle-timeout", "disconnect clients that are silent for so long; 0 means never")
}

// nodesCluster is the usage of --cluster for borrowers.
const nodesCluster = "the cluster that the nodes are of, as their --cluster says: others are not used"

// farUsage is the usage of --far for commands that need it.
const farUsage = "nodes to borrow from, HOST:PORT, unix:PATH or rdma://HOST:PORT, also some so and others so, with commas between, or broker:PATH for those of a broker, or dns://NAME:PORT for those of a name in the DNS, or etcd://HOST:PORT/NAME for those of a cluster in etcd (polder node --directory), which may change"

// farAddresses looks for a node on this machine if no addresses were given, and
// fails if there is none. A heap on a disk needs no nodes.
func farAddresses(cfg *daemon.BorrowConfig) error {
	if cfg.Disk != "" && len(cfg.Witness) == 0 {
		return nil
	}
	if addr, ok := daemon.NodeHere(); ok && len(cfg.Far) == 0 {
		cfg.Far = []string{addr}
	}
	if len(cfg.Far) == 0 {
		return &usage.Error{Err: &config.Error{Source: "--far", Err: errors.New(
			"it is not given; expected the addresses of nodes such as 127.0.0.1:7070 (polder up needs none)")}}
	}
	return nil
}

// borrowFlags are the flags of a heap over borrowed memory, except --far. opTimeout is the usage of --op-timeout.
func borrowFlags(fs *pflag.FlagSet, cfg *daemon.BorrowConfig, opTimeout string) {
	fs.StringVar(&cfg.Disk, "disk", "", "a `directory` on a fast disk, to use in the place of nodes; or with --far and --witness beside them, for a copy of what they have that survives a loss of power")
	fs.Var(config.NewSize(&cfg.DiskSize, 16<<20, 0), "disk-size", "with --disk, the most to use of it; the default is what there is room for")
	clusterFlag(fs, &cfg.Cluster, nodesCluster)
	managerFlag(fs, &cfg.Manager)
	cfg.Groups, cfg.Pairs = pool.DefaultGroups, pool.DefaultPairs
	queuePairFlags(fs, &cfg.Groups, &cfg.Pairs, "")
	fs.Var(config.NewInt(&cfg.Copies, 1, copies.MaxCopies), "copies", "how many nodes, of different zones, have what is evacuated, so that all but one of them may be lost; the default is 2 if there are two nodes or more, else 1")
	fs.Var(config.NewInt(&cfg.MinCopies, 1, copies.MaxCopies), "min-copies", "with how many to go on while nodes do not answer")
	fs.Var(config.NewDuration(&cfg.CopyLate, time.Millisecond), "copy-late", "for how long one copy may be behind another until it is done without")
	fs.Var(config.NewDuration(&cfg.RepairAfter, time.Millisecond), "repair-after", "how long a node may be away until what it has is copied to others")
	fs.Var(config.NewDuration(&cfg.FarWait, 0), "far-wait", "how long to try, at the start, until one of the nodes answers")
	deviceFlag(fs, &cfg.Device)
	etcdAuthFlag(fs, &cfg.EtcdAuth)
	fs.Var(config.NewSize(&cfg.Local, far.MinLocal, 0), "local", "budget of resident memory for data")
	fs.Var(config.NewDuration(&cfg.OpTimeout, time.Millisecond), "op-timeout", opTimeout)
}

// twoNodesFlag is the flag that says what becomes of a heap with two nodes and no witnesses.
func twoNodesFlag(fs *pflag.FlagSet, choice *string) {
	fs.Var(config.NewChoice(choice, daemon.Stop, daemon.GoOn), "two-nodes", "with --heap, in the place of --witness: the two nodes of --far keep what it takes to open the heap again; while one does not answer, writing stops, or the server goes on alone and no other takes over without an operator's word")
}

// heapFlags are the flags of a heap that outlives its process.
func heapFlags(fs *pflag.FlagSet, cfg *daemon.BorrowConfig) {
	fs.StringVar(&cfg.Heap, "heap", "", "with --disk or --witness, the `name` of the heap, which is there again after a restart, as its last checkpoint has it; without, what is stored ends with the process")
	fs.Var(config.NewHolders(&cfg.Witness), "witness", "with --heap, the witnesses that keep what it takes to open the heap again in the memory of nodes, HOST:PORT or unix:PATH, with commas between, or a cluster in etcd that does, etcd://HOST:PORT/NAME")
	twoNodesFlag(fs, &cfg.TwoNodes)
	fs.BoolVar(&cfg.Standby, "standby", false, "with --witness, wait until the process that has the heap is gone, and take over from it")
	fs.Var(config.NewDuration(&cfg.Checkpoint, 0), "checkpoint", "with --heap, how often a checkpoint is taken while something changes, beside that at the end; 0 means at the end")
	fs.Var(config.NewDuration(&cfg.EndWithin, 100*time.Millisecond), "end-within", "how long the end may take, with the last checkpoint and all else that belongs to it; what is not finished by then is said, and left")
}
