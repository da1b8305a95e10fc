package main

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
)

// The default addresses of node.
const (
	defaultVerbs     = "127.0.0.1:7070"
	defaultNodeAdmin = "127.0.0.1:7071"
)

func newNode() daemonCommand {
	var op operator.Flags
	cfg := daemon.NodeConfig{
		Listen: []string{defaultVerbs},
		Lend:   daemon.DefaultLend(),
		Chunk:  memnode.DefaultChunkSize,
		Grace:  memnode.DefaultGrace,
		Fabric: daemon.FabricTCP,
	}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Lend this host's memory to others",
		Long: "Lends memory: clients borrow chunks of it and read and write them by one-sided\n" +
			"operations. What is lent is touched when it is used, and given back to the\n" +
			"operating system when it is freed.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Keep {
				if err := cfg.Check(); err != nil {
					return err
				}
				return runKeeper(cmd, &op, cfg.Dir)
			}
			return op.Run(cmd, func(c *operator.Control) error {
				cfg.Control = c
				return daemon.RunNode(cmd.Context(), cfg)
			})
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewAddresses(&cfg.Listen), "listen", "where clients connect, several with commas between; at unix:PATH, clients on this machine, which map what they borrow; if there are both kinds, each gets half of what is lent")
	fs.Var(config.NewChoice(&cfg.Fabric, daemon.FabricTCP, daemon.FabricRDMA), "fabric", "what clients reach the memory over: tcp, or rdma, by an RDMA device (see polder doctor)")
	deviceFlag(fs, &cfg.Device)
	fs.BoolVar(&cfg.TrustClients, "trust-clients", false, "lend to several clients although the RDMA device does not check the bounds of windows, so that each reaches all that is lent")
	fs.StringVar(&cfg.Zone, "zone", "", "what the node fails together with, such as a rack: clients keep copies in different zones; the default is nothing else")
	clusterFlag(fs, &cfg.Cluster, "the cluster that the node is of: clients that do not say the same are refused")
	fs.BoolVar(&cfg.InPlace, "in-place", false, "have clients of the same user, or root, that connect to HOST:PORT on this machine read in place: they are passed all that is lent, for reading only, and write over TCP; without huge pages")
	fs.BoolVar(&cfg.Keep, "keep", false, "run the node under a keeper, which holds its memory and starts it again if it dies, so that clients go on; a service manager with a descriptor store does the same")
	fs.StringVar(&cfg.Dir, "dir", "", "with --keep, a `directory` by which a new keeper finds a node whose keeper has died; the default is none")
	fs.Var(config.NewDuration(&cfg.Drain, 0), "drain", "when told to end by a signal, have clients move what they hold to other nodes first, and end when that is done within this time; otherwise stay, until a second signal; 0 ends at once")
	fs.Var(config.NewEtcd(&cfg.Directory), "directory", "announce the node in etcd, etcd://HOST:PORT/NAME, several HOST:PORT with commas between: those who borrow from --far etcd://HOST:PORT/NAME find it there; NAME is the cluster's")
	fs.StringVar(&cfg.Advertise, "advertise", "", "with --directory, the `address` at which clients reach the node, HOST:PORT; the default is the first of --listen")
	etcdAuthFlag(fs, &cfg.EtcdAuth)
	lendFlags(fs, &cfg)
	op.Add(fs, defaultNodeAdmin, listen.Node)
	return daemonCommand{cmd, func() error {
		var addrs []operator.Address
		for _, addr := range cfg.Elsewhere() {
			addrs = append(addrs, operator.Address{Role: listen.Node, Flag: "listen", Addr: addr})
		}
		return errors.Join(cfg.Check(), op.Check(fs, addrs...))
	}}
}

// etcdAuthFlag is the flag that says how to log in to etcd.
func etcdAuthFlag(fs *pflag.FlagSet, file *string) {
	fs.StringVar(file, "etcd-auth-file", "", "log in to etcd with what is in this `file` of mode 0600, NAME:PASSWORD")
}

// clusterFlag is the flag that says to which cluster a node or a borrower belongs.
func clusterFlag(fs *pflag.FlagSet, name *string, usage string) {
	fs.Var(config.NewName(name), "cluster", usage)
}

// deviceFlag is the flag that names an RDMA device.
func deviceFlag(fs *pflag.FlagSet, name *string) {
	fs.StringVar(name, "device", "", "the RDMA `device`, such as mlx5_0; the default is the only one")
}

// lendFlags are the flags that say what to lend, and to whom.
func lendFlags(fs *pflag.FlagSet, cfg *daemon.NodeConfig) {
	fs.Var(config.NewLend(&cfg.Lend, &cfg.Idle, memnode.MinChunkSize), "lend", "memory to lend; or idle:SIZE, at most so much of what this host does not need, which it gets back when it does; the default is half of what this process can allocate now, under the limits of its control groups")
	overcommitFlag(fs, &cfg.Overcommit)
	fs.Var(config.NewPowerOfTwo(&cfg.Chunk, memnode.MinChunkSize, memnode.MaxChunkSize), "chunk", "unit of lending, a power of two")
	cfg.ClientBudget = daemon.HalfOfAll
	fs.Var(config.NewSizeOr(&cfg.ClientBudget, 0, 0, "half"), "client-budget", "most memory that one client may hold: a size, half of what is lent, which leaves room for a second client, or 0 for all, where there is but one")
	cfg.MaxClients = memnode.DefaultMaxClients
	fs.Var(config.NewInt(&cfg.MaxClients, 1, 1<<16), "max-clients", "most clients, connected or in their grace period; an RDMA device must have queues for all of them")
	managerFlag(fs, &cfg.Manager)
	cfg.Groups, cfg.Pairs = memnode.DefaultMaxGroups, memnode.DefaultMaxPairs
	queuePairFlags(fs, &cfg.Groups, &cfg.Pairs, "most that a client may have: ")
	componentFlags(fs, &cfg.Components)
	secretFlag(fs, &cfg.SecretFile)
	fs.Var(config.NewDuration(&cfg.Grace, time.Millisecond), "grace", "how long a client's memory outlives its connection")
}

// overcommitFlag is the flag that lets a node lend more memory than there is.
func overcommitFlag(fs *pflag.FlagSet, p *bool) {
	fs.BoolVar(p, "overcommit", false, "lend more than this process can allocate; the kernel kills it when that is used")
}

// componentFlags are the flags that say what active components may use.
func componentFlags(fs *pflag.FlagSet, cfg *component.Config) {
	cfg.ClientMemory, cfg.Time = component.DefaultClientMemory, component.DefaultTime
	fs.Var(config.NewSize(&cfg.Memory, 0, 0), "component-memory", "part of --lend for the component scan, which looks through what clients have here; 0 means none")
	fs.Var(config.NewSize(&cfg.ClientMemory, component.MinClientMemory, 0), "component-client-memory", "part of --component-memory that each client who calls components gets")
	fs.Var(config.NewDurationWithin(&cfg.Time, component.MinTime, component.MaxTime), "component-time", "how long a call of a component may run before its client's objects are ended")
}

// managerFlag is the flag that says how memory is managed. A node and those who
// borrow from it must agree.
func managerFlag(fs *pflag.FlagSet, name *string) {
	fs.Var(config.NewChoice(name, pool.Managers()...), "manager",
		"how memory is handed out, the same at a node and its borrowers: "+strings.Join(pool.Managers(), ", ")+
			"; the default is "+memnode.DefaultManager+", or "+memnode.OtherManager+" over RDMA")
}

// queuePairFlags are the flags that say how many queue pairs a client has at a node.
func queuePairFlags(fs *pflag.FlagSet, groups, pairs *int, of string) {
	fs.Var(config.NewInt(groups, 1, pool.MaxGroups), "groups", of+"groups of queue pairs to reach a node's memory over")
	fs.Var(config.NewInt(pairs, 1, pool.MaxPairs), "alloc-pairs", of+"pairs of queue pairs to allocate and to free with, by the manager onesided")
}

// secretFlag is the flag for the file of the secret that a node and its brokers have in common.
func secretFlag(fs *pflag.FlagSet, file *string) {
	fs.StringVar(file, "service-secret-file", "", "with the manager finemem: only brokers that know the secret in this `file` may allocate; 64 hexadecimal digits, with mode 0600")
}
