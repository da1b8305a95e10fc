package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/daemon"
	"polder/internal/admin"
	"polder/internal/child"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/ratelog"
	"polder/internal/readyfile"
	"polder/share"
	"polder/share/keeper"
	"polder/share/resource"
	"polder/share/server"
)

// defaultShareDir is where the daemon keeps its log and its secret.
const defaultShareDir = "/var/lib/polder/share"

// shareFlags are what share's daemon is told.
type shareFlags struct {
	config     string
	readyFile  string
	dir        string
	socket     string
	socketMode string
	pools      []string
	allow      []int
	quotas     []string
	lru        bool
	sync       bool
	keep       bool
	listen     string
	security   listen.Security
	grace      time.Duration
	checkpoint int64
	poll       time.Duration
	admin      string
	logLevel   string
}

// newShare returns "polder share" with the tools that look into a running daemon.
func newShare() *cobra.Command {
	f := shareFlags{
		dir: defaultShareDir, socket: share.DefaultSocket, socketMode: "0600", pools: []string{"memfd:1GiB"},
		grace: 30 * time.Second, checkpoint: 64 << 20, poll: 100 * time.Microsecond, logLevel: "info",
	}
	cmd := &cobra.Command{
		Use:   "share",
		Short: "Hold memory that processes of this host have in common",
		Long: "Serves regions of shared memory, and the names of what is in them, to the processes\n" +
			"of this host. What it has acknowledged survives it: in files and on DAX devices by\n" +
			"themselves, in memory with --keep or under a service manager with a descriptor store.\n" +
			"SIGHUP makes it look for pools that have appeared or grown.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("polder share takes no argument %q: see polder share --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.config, config.FileFlag, "", "read configuration from this YAML `file`; its keys are the names of the flags")
	fs.StringVar(&f.readyFile, "ready-file", "", "write the addresses listened on to this `file`, as JSON, when ready")
	fs.StringVar(&f.dir, "dir", f.dir, "`directory` of the log, the checkpoints and the secret")
	fs.StringVar(&f.socket, "socket", f.socket, "`path` of the socket that local clients connect to")
	fs.StringVar(&f.socketMode, "socket-mode", f.socketMode, "permissions of the socket, in `octal`")
	fs.StringSliceVar(&f.pools, "pool", f.pools, "memory: memfd:`SIZE`, hugetlb:SIZE, file:DIRECTORY[:SIZE], dax:DEVICE[:SIZE]; may be repeated, paths may be patterns")
	fs.IntSliceVar(&f.allow, "allow-uid", nil, "`user` ids that may connect, beside root and the daemon's own")
	fs.StringSliceVar(&f.quotas, "quota", nil, "bytes of a tenant's regions: uid:1000=2GiB, cn:NAME=SIZE, or `*=SIZE` for all others")
	fs.BoolVar(&f.lru, "lru", false, "when the pool is full, evict unpinned keys that were not used for longest")
	fs.BoolVar(&f.sync, "sync", false, "sync every record of the log, also about memory that does not survive the loss of power")
	fs.Var(config.NewDuration(&f.poll, 0), "poll", "how long to look in shared memory for the next request of a busy client before it has to wake the daemon; 0 never does")
	fs.BoolVar(&f.keep, "keep", false, "run the daemon under a keeper, which holds its memory and starts it again if it dies")
	fs.Var(config.NewAddress(&f.listen, true), "listen", `where remote metadata clients connect, or "off"`)
	fs.StringVar(&f.security.CertFile, "tls-cert", "", "certificate to show, a PEM `file`")
	fs.StringVar(&f.security.KeyFile, "tls-key", "", "its private key, a PEM `file`")
	fs.StringVar(&f.security.CAFile, "tls-ca", "", "authority that must have signed the clients' certificates, a PEM `file`")
	fs.BoolVar(&f.security.Insecure, "insecure", false, "allow remote clients, and an administrative address for other machines, without TLS")
	fs.Var(config.NewDuration(&f.grace, time.Millisecond), "grace", "how long a remote client lives without a connection")
	fs.Var(config.NewSize(&f.checkpoint, 4<<10, 0), "checkpoint", "how much log may pile up before a checkpoint")
	fs.Var(config.NewAddress(&f.admin, true), "admin", `where metrics, status and profiles are served over HTTP, or "off"`)
	fs.Var(config.NewChoice(&f.logLevel, "debug", "info", "warn", "error"), "log-level", "least level to log: debug, info, warn or error")
	cmd.AddCommand(newShareLs(), newShareStats(), newShareTop(), newShareRm(), newBenchShareWorker())
	return cmd
}

// run is the daemon, or its keeper.
func (f *shareFlags) run(cmd *cobra.Command) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(strings.ToUpper(f.logLevel))); err != nil {
		return fmt.Errorf("cannot use the log level: %w", err)
	}
	logger := ratelog.Bound(slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level})))
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if f.keep {
		return f.runKeeper(ctx, logger)
	}
	opt, err := f.options(logger)
	if err != nil {
		return err
	}
	if opt.Store, err = resource.ServiceStore(); err != nil {
		return err
	}
	if opt.Store == nil && slices.ContainsFunc(opt.Pools, func(s resource.Spec) bool { return s.Kind == resource.Memfd || s.Kind == resource.Hugetlb }) {
		logger.Warn("nothing keeps the memory of memfd and hugetlb pools while the daemon restarts: use --keep or a service manager's descriptor store")
	}
	s, err := server.Start(opt)
	if err != nil {
		if opt.Remote != nil {
			opt.Remote.Close()
		}
		return err
	}
	return f.serve(ctx, cmd.OutOrStdout(), s, opt, logger)
}

// serve waits for the end, and rescans on SIGHUP meanwhile.
func (f *shareFlags) serve(ctx context.Context, out io.Writer, s *server.Server, opt server.Options, logger *slog.Logger) (err error) {
	defer func() { err = errors.Join(err, s.Close()) }()
	began := time.Now()
	addrs := map[string]string{"share": f.socket}
	if f.admin != "" {
		lis, err := f.security.Listen("admin", f.admin)
		if err != nil {
			return err
		}
		addrs["admin"] = lis.Addr().String()
		a, err := admin.Start(lis, admin.Config{
			Status: func() any { return shareStatus(s, began, addrs) }, Health: func() error { return nil },
			Collectors: s.Collectors(), Logger: logger,
		})
		if err != nil {
			return errors.Join(err, lis.Close())
		}
		defer func() { err = errors.Join(err, a.Close()) }()
		fmt.Fprintf(out, "admin   %s/metrics\n", f.security.URL(addrs["admin"]))
	}
	if opt.Remote != nil {
		addrs["remote"] = opt.Remote.Addr().String()
		fmt.Fprintf(out, "remote  %s\n", opt.Remote.Addr())
	}
	if err := readyfile.Write(f.readyFile, addrs); err != nil {
		return err
	}
	fmt.Fprintf(out, "share   %s\nready. Try: polder share stats --socket %s\n", f.socket, f.socket)
	if opt.Store != nil {
		if err := resource.Ready(opt.Store); err != nil {
			logger.Warn("cannot tell the service manager that the daemon is ready", "err", err)
		}
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			if err := s.Rescan(); err != nil {
				logger.Error("cannot rescan all pools", "err", err)
			} else {
				logger.Info("rescanned the pools")
			}
		}
	}
}

func shareStatus(s *server.Server, began time.Time, addrs map[string]string) daemon.Status {
	info := s.Info()
	st := ownStatus("share", began, addrs)
	st.Share = &info
	return st
}

// ownStatus is what every daemon says of itself.
func ownStatus(service string, began time.Time, addrs map[string]string) daemon.Status {
	st := daemon.Status{Service: service, Version: daemon.Version(), PID: os.Getpid(), Started: began, Addresses: addrs}
	if n, err := child.Resident(st.PID); err == nil {
		st.Resident = n
	}
	return st
}

// runKeeper runs this program again without --keep.
func (f *shareFlags) runKeeper(ctx context.Context, logger *slog.Logger) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program's file: %w", err)
	}
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool { return a == "--keep" || a == "--keep=true" })
	return keeper.Run(ctx, keeper.Options{Path: self, Args: append(args, "--keep=false"), Log: logger})
}

func (f *shareFlags) options(logger *slog.Logger) (server.Options, error) {
	opt := server.Options{
		Dir: f.dir, Socket: f.socket, AllowUIDs: f.allow, LRU: f.lru, Sync: f.sync,
		Grace: f.grace, CheckpointBytes: f.checkpoint, Insecure: f.security.Insecure, Log: logger,
		Poll: f.poll,
	}
	if opt.Poll == 0 {
		opt.Poll = -1 // Options' zero is the default
	}
	mode, err := strconv.ParseUint(f.socketMode, 8, 32)
	if err != nil || mode > 0o777 {
		return opt, fmt.Errorf("cannot use --socket-mode %q: want permissions such as 0660", f.socketMode)
	}
	opt.SocketMode = os.FileMode(mode)
	for _, p := range f.pools {
		spec, err := resource.ParseSpec(p)
		if err != nil {
			return opt, err
		}
		opt.Pools = append(opt.Pools, spec)
	}
	opt.Quotas = map[string]int64{}
	for _, q := range f.quotas {
		tenant, size, ok := strings.Cut(q, "=")
		n, err := config.ParseSize(size)
		if !ok || err != nil || tenant == "" {
			return opt, fmt.Errorf("cannot use --quota %q: want TENANT=SIZE such as uid:1000=2GiB", q)
		}
		opt.Quotas[tenant] = n
	}
	if err := os.MkdirAll(filepath.Dir(f.socket), 0o755); err != nil {
		return opt, fmt.Errorf("cannot make the socket's directory: %w", err)
	}
	if f.listen != "" {
		if err := f.remote(&opt); err != nil {
			return opt, err
		}
	}
	return opt, nil
}

// remote opens the listener for remote clients.
func (f *shareFlags) remote(opt *server.Options) error {
	if err := f.security.Check("listen", f.listen); err != nil {
		return err
	}
	server, _, err := f.security.TLS()
	if err != nil {
		return err
	}
	lis, err := net.Listen("tcp", f.listen)
	if err != nil {
		return listen.Explain("listen", f.listen, err)
	}
	opt.Remote, opt.TLS, opt.Insecure = lis, server, server == nil
	return nil
}
