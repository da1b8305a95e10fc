package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/measuring"
	"polder/cmd/polder/internal/usage"
	"polder/internal/admin"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/systemd"
	"polder/share"
	"polder/share/resource"
	"polder/share/server"
)

// defaultShareDir is where the daemon keeps its log and its secret.
const defaultShareDir = "/var/lib/polder/share"

// shareFlags are the flags of share's daemon.
type shareFlags struct {
	operator   operator.Flags
	dir        string
	socket     string
	socketMode string
	pools      []string
	allow      []string
	quotas     []string
	lru        bool
	sync       bool
	keep       bool
	listen     string
	grace      time.Duration
	settle     time.Duration
	checkpoint int64
	poll       time.Duration
	maru       maruFlags
}

// newShare returns "polder share" with the tools that look into a running daemon.
func newShare() daemonCommand {
	f := shareFlags{
		dir: defaultShareDir, socket: share.DefaultSocket, socketMode: "0600", pools: []string{"memfd:1GiB"},
		grace: 30 * time.Second, settle: 30 * time.Second, checkpoint: 16 << 20, poll: 300 * time.Microsecond,
	}
	cmd := &cobra.Command{
		Use:   "share",
		Short: "Hold memory that processes of this host have in common",
		Long: "Serves regions of shared memory, and the names of what is in them, to the processes\n" +
			"of this host. What it has acknowledged survives it: in files and on DAX devices by\n" +
			"themselves, in memory with --keep or under a service manager with a descriptor store.\n" +
			"SIGHUP also makes it look for pools that have appeared or grown.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("polder share takes no argument %q: see polder share --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.dir, "dir", f.dir, "`directory` of the log, the checkpoints and the secret")
	fs.StringVar(&f.socket, "socket", f.socket, "`path` of the socket that local clients connect to")
	fs.StringVar(&f.socketMode, "socket-mode", f.socketMode, "permissions of the socket, in `octal`")
	fs.StringSliceVar(&f.pools, "pool", f.pools, "memory: memfd:`SIZE`, hugetlb:SIZE, file:DIRECTORY[:SIZE], dax:DEVICE[:SIZE]; may be repeated, paths may be patterns")
	fs.StringSliceVar(&f.allow, "allow-uid", nil, "`user` ids that may connect, beside root and the daemon's own")
	fs.StringSliceVar(&f.quotas, "quota", nil, "bytes of a tenant's regions: uid:1000=2GiB, cn:NAME=SIZE, maru=SIZE for clients of Maru's by TCP, or `*=SIZE` for all others")
	fs.BoolVar(&f.lru, "lru", false, "when the pool is full, evict unpinned keys that were not used for longest")
	fs.BoolVar(&f.sync, "sync", false, "sync every record of the log about keys, also about memory that does not survive the loss of power")
	fs.Var(config.NewDuration(&f.poll, 0), "poll", "how long to look in shared memory for the next request of a busy client before it has to wake the daemon; 0 never does")
	fs.BoolVar(&f.keep, "keep", false, "run the daemon under a keeper, which holds its memory and starts it again if it dies")
	fs.Var(config.NewAddress(&f.listen, true), "listen", `where remote metadata clients connect, or "off"`)
	fs.Var(config.NewDuration(&f.grace, time.Millisecond), "grace", "how long a remote client lives without a connection")
	fs.Var(config.NewDuration(&f.settle, time.Millisecond), "settle", "how long to wait, after a restart, for clients that are alive and do not come back; then they are fenced")
	fs.Var(config.NewSize(&f.checkpoint, 4<<10, 0), "checkpoint", "the least log that is worth a checkpoint; besides, more of it must be dead than alive, or the disk be full")
	f.maru.add(fs)
	f.operator.Add(fs, "", listen.Client)
	cmd.AddCommand(newShareLs(), newShareStats(), newShareRm(), newShareKick(), measuring.ShareWorker())
	return daemonCommand{cmd, func() error {
		_, err := f.options()
		return errors.Join(err, f.operator.Check(fs, operator.Address{Role: listen.Client, Flag: "listen", Addr: f.listen}))
	}}
}

// run runs the daemon, or, with --keep, its keeper.
func (f *shareFlags) run(cmd *cobra.Command) error {
	if _, err := f.options(); err != nil {
		return err
	}
	if f.keep {
		return runKeeper(cmd, &f.operator, f.dir)
	}
	return f.operator.Run(cmd, func(op *operator.Control) error { return f.runDaemon(cmd.Context(), op) })
}

func (f *shareFlags) runDaemon(ctx context.Context, op *operator.Control) error {
	opt, err := f.options()
	if err != nil {
		return err
	}
	opt.Insecure, opt.Log = op.Security.Insecure, op.Logger
	if f.listen != "" {
		if err := f.remote(&opt, op); err != nil {
			return err
		}
	}
	if opt.Store, err = systemd.OpenStore(); err != nil {
		return err
	}
	if opt.Store == nil && slices.ContainsFunc(opt.Pools, func(s resource.Spec) bool { return s.Kind == resource.Memfd || s.Kind == resource.Hugetlb }) {
		op.Logger.Warn("nothing keeps the memory of memfd and hugetlb pools while the daemon restarts: use --keep or a service manager's descriptor store")
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	opt.HandedOver = end
	read := op.Waiting("reading what " + f.dir + " keeps")
	s, err := server.Start(opt)
	read()
	if err != nil {
		if opt.Remote != nil {
			opt.Remote.Close()
		}
		return err
	}
	return f.serve(ctx, s, opt, op)
}

// serve serves until ctx is done, and looks for new pools on SIGHUP. Then it closes s.
func (f *shareFlags) serve(ctx context.Context, s *server.Server, opt server.Options, op *operator.Control) (err error) {
	defer func() { err = errors.Join(err, s.Close()) }()
	began := time.Now()
	addrs := map[string]string{"share": f.socket}
	collectors := s.Collectors()
	door, err := f.maru.start(s, opt, op)
	if err != nil {
		return err
	}
	if door != nil {
		defer door.Close()
		directory, resources := door.Addrs()
		addrs["maru"], addrs["maru-resources"] = strings.Join(directory, ","), resources
		collectors = append(collectors, door.Collectors()...)
	}
	if opt.Remote != nil {
		addrs["remote"] = opt.Remote.Addr().String()
	}
	if op.Admin != "" {
		a, err := serveAdmin(op, "share", began, addrs, admin.Config{Collectors: collectors})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.Close()) }()
		fmt.Fprintf(op.Out, "admin   %s  (console; /metrics, /status, /healthz)\n", op.Security.URL(addrs["admin"]))
	}
	if opt.Remote != nil {
		fmt.Fprintf(op.Out, "remote  %s\n", opt.Remote.Addr())
	}
	op.OnReload("pools", func() (string, error) {
		if err := s.Rescan(); err != nil {
			return "", fmt.Errorf("cannot rescan all pools: %w", err)
		}
		return "looked for new ones", nil
	})
	fmt.Fprintf(op.Out, "share   %s\nready. Try: polder share stats --socket %s\n", f.socket, f.socket)
	if err := op.Ready(addrs); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// options are the daemon's options, except the ones that need something opened.
func (f *shareFlags) options() (server.Options, error) {
	opt := server.Options{
		Dir: f.dir, Socket: f.socket, LRU: f.lru, Sync: f.sync,
		Grace: f.grace, Settle: f.settle, CheckpointBytes: f.checkpoint,
		Poll: f.poll,
	}
	if opt.Poll == 0 {
		opt.Poll = -1 // zero in Options means the default
	}
	mode, err := strconv.ParseUint(f.socketMode, 8, 32)
	if err != nil || mode > 0o777 {
		return opt, &config.Error{Source: "--socket-mode", Value: f.socketMode, Err: errors.New("expected permissions such as 0660")}
	}
	opt.SocketMode = os.FileMode(mode)
	if f.socket == "" {
		return opt, &config.Error{Source: "--socket", Err: errors.New("it is empty; expected the path of a socket, such as " + share.DefaultSocket)}
	}
	if opt.AllowUIDs, err = parseUsers(f.allow); err != nil {
		return opt, err
	}
	for _, p := range f.pools {
		spec, err := resource.ParseSpec(p)
		if err != nil {
			return opt, &config.Error{Source: "--pool", Value: p, Err: err}
		}
		opt.Pools = append(opt.Pools, spec)
	}
	if err := f.maru.check(opt.Pools, f.operator.Insecure()); err != nil {
		return opt, &usage.Error{Err: err}
	}
	if err := f.maru.options(&opt); err != nil {
		return opt, err
	}
	opt.Quotas = map[string]int64{}
	for _, q := range f.quotas {
		tenant, size, ok := strings.Cut(q, "=")
		n, err := config.ParseSize(size)
		if !ok || err != nil || !isTenant(tenant) {
			return opt, &config.Error{Source: "--quota", Value: q, Err: errors.New("expected TENANT=SIZE such as uid:1000=2GiB, cn:NAME=2GiB, maru=2GiB or *=2GiB")}
		}
		opt.Quotas[tenant] = n
	}
	return opt, nil
}

// isTenant reports whether a client can be the tenant of a quota.
func isTenant(tenant string) bool {
	if uid, ok := strings.CutPrefix(tenant, "uid:"); ok {
		n, err := strconv.ParseUint(uid, 10, 32)
		return err == nil && uid == strconv.FormatUint(n, 10)
	}
	return tenant == "*" || tenant == "maru" || strings.HasPrefix(tenant, "cn:")
}

// remote opens the listener for remote clients.
func (f *shareFlags) remote(opt *server.Options, op *operator.Control) error {
	if err := op.Security.Check(listen.Client, "listen", f.listen); err != nil {
		return err
	}
	lis, err := systemd.ListenerAt("tcp", f.listen)
	if lis == nil && err == nil {
		lis, err = net.Listen("tcp", f.listen)
	}
	if err != nil {
		return listen.Explain("listen", f.listen, err)
	}
	opt.Remote, opt.TLS = lis, op.Security.Accept(listen.Client)
	opt.Insecure = opt.TLS == nil
	return nil
}
