package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/usage"
	"polder/internal/admin"
	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/soft"
	"polder/soft/coordinator"
)

// defaultCoordinatorAdmin is where metrics and status are served unless the operator says
// otherwise.
const defaultCoordinatorAdmin = "127.0.0.1:7074"

func newCoordinator() daemonCommand {
	cfg := coordinator.Config{
		Socket:            soft.CoordinatorSockets()[0],
		MaxClients:        1024,
		MaxClientsPerUser: 64,
		Deadline:          250 * time.Millisecond,
		Interval:          time.Second,
		Grace:             5 * time.Second,
	}
	var op operator.Flags
	var weights weightFlags
	cmd := &cobra.Command{
		Use:   "coordinator",
		Short: "Share this host's idle memory among soft caches, and take it back",
		Long: "Shares the memory that is idle on this host among the programs that use the\n" +
			"package soft, gives it to those whom it saves the most work, and takes it back\n" +
			"at once when somebody needs it. One for each host; any user can run it.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if cfg.Weights, err = weights.load(); err != nil {
				return err
			}
			if err := cfg.Check(); err != nil {
				return &usage.Error{Err: err}
			}
			return op.Run(cmd, func(c *operator.Control) error {
				cfg.Logger = c.Logger
				return runCoordinator(cmd.Context(), cfg, weights, c)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cfg.Socket, "socket", cfg.Socket, "path of the socket at which clients register; the default is polder/coordinator.sock in /run for root, in $XDG_RUNTIME_DIR for others")
	fs.BoolVar(&cfg.Open, "open", false, "let every user of the host register")
	fs.Var(config.NewSize(&cfg.Reserve, 0, 0), "reserve", "memory to keep free; the default is a sixteenth of the host's")
	fs.Var(config.NewSize(&cfg.Max, 0, 0), "max", "most soft memory in all; 0 means what is idle")
	fs.Var(config.NewSize(&cfg.MaxPerUser, 0, 0), "max-per-user", "most soft memory of one user; 0 means all")
	fs.Var(config.NewInt(&cfg.MaxClients, 1, 1<<20), "max-clients", "most clients")
	fs.Var(config.NewInt(&cfg.MaxClientsPerUser, 1, 1<<20), "max-clients-per-user", "most clients of one user")
	fs.Float64Var(&cfg.MinShare, "min-share", 0.25, "part of an even share that each client can keep if it uses it")
	fs.Float64Var(&cfg.MaxWeight, "max-weight", 1, "highest weight that a client can give itself")
	fs.StringSliceVar(&weights.list, "weight", nil, "how much what clients save counts beside what others do: name:`NAME=WEIGHT`, user:USER=WEIGHT or cgroup:/PATH=WEIGHT; may be repeated, the first that is about a client counts")
	fs.StringVar(&weights.file, "weights", "", "`file` with a weight on each line, which come after those of --weight; read again on SIGHUP")
	fs.Var(config.NewDuration(&cfg.Deadline, time.Millisecond), "deadline", "how long a client may take to give memory back")
	fs.Var(config.NewDuration(&cfg.Interval, 10*time.Millisecond), "interval", "time between divisions of the memory")
	fs.Var(config.NewDuration(&cfg.Grace, time.Millisecond), "grace", "how long after its start nothing is granted or taken, while clients of the last coordinator come back")
	op.Add(fs, defaultCoordinatorAdmin)
	return daemonCommand{cmd, func() error {
		if err := cfg.Check(); err != nil {
			return &usage.Error{Err: err}
		}
		_, err := weights.parse()
		return errors.Join(err, op.Check(fs))
	}}
}

// weightFlags are --weight and --weights.
type weightFlags struct {
	list []string
	file string
}

// parse reads --weight.
func (f *weightFlags) parse() (list []coordinator.Weight, err error) {
	for _, s := range f.list {
		w, err := coordinator.ParseWeight(s)
		if err != nil {
			return nil, &config.Error{Source: "--weight", Value: s, Err: err}
		}
		list = append(list, w)
	}
	return list, nil
}

// load reads --weight and the file.
func (f *weightFlags) load() ([]coordinator.Weight, error) {
	list, err := f.parse()
	if err != nil || f.file == "" {
		return list, err
	}
	more, err := coordinator.ReadWeights(f.file)
	if err != nil {
		return nil, &config.Error{Source: "--weights", Value: f.file, Err: err}
	}
	return append(list, more...), nil
}

// curves returns, for each client, how much of the cost of its reads the client would
// save with more memory, as the client has measured.
func curves(c *coordinator.Coordinator) (list []console.Curve) {
	for _, client := range c.Stats().MoreByClient {
		from := client.Curve
		if len(from.Saved) == 0 || from.Total <= 0 {
			continue
		}
		curve := console.Curve{Name: client.Name}
		for i, saved := range from.Saved {
			curve.Bytes = append(curve.Bytes, float64(from.Size(i)))
			curve.Ratio = append(curve.Ratio, min(saved/from.Total, 1))
		}
		list = append(list, curve)
	}
	return list
}

// runCoordinator coordinates until ctx is done.
func runCoordinator(ctx context.Context, cfg coordinator.Config, weights weightFlags, op *operator.Control) (err error) {
	began := time.Now()
	c, err := coordinator.New(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	op.OnReload("weights", func() (string, error) {
		list, err := weights.load()
		if err != nil {
			return "", err
		}
		c.SetWeights(list) // even if the list is the same: a client may be in another control group now
		if slices.Equal(list, cfg.Weights) {
			return "", nil
		}
		cfg.Weights = list
		return fmt.Sprintf("%d of them", len(list)), nil
	})
	addrs := map[string]string{"socket": cfg.Socket}
	if op.Admin != "" {
		srv, err := serveAdmin(op, "coordinator", began, addrs, admin.Config{
			Report:     func(s *console.State) { s.Curves = curves(c) },
			Collectors: c.Collectors(),
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, srv.Close()) }()
	}
	if err := greetCoordinator(op.Out, addrs, op.Security); err != nil {
		return err
	}
	if err := op.Ready(addrs); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// serveAdmin serves the administrative address of a daemon that is always healthy, and
// adds the address to addrs.
func serveAdmin(op *operator.Control, service string, began time.Time, addrs map[string]string, cfg admin.Config) (*admin.Server, error) {
	lis, err := op.Security.Listen(listen.Admin, "admin", op.Admin)
	if err != nil {
		return nil, err
	}
	addrs["admin"] = listen.Address(lis)
	cfg.About = console.About{Service: service, Version: daemon.Version(), Started: began, Addresses: addrs}
	cfg.Health = func() error { return nil }
	srv, err := op.StartAdmin(lis, cfg)
	if err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	return srv, nil
}

// greetCoordinator says where everything is and how to begin.
func greetCoordinator(w io.Writer, addrs map[string]string, security listen.Security) error {
	var b strings.Builder
	b.WriteString("polder shares this host's idle memory\n\n")
	if a, ok := addrs["admin"]; ok {
		fmt.Fprintf(&b, "  admin   %s  (console; /metrics, /status, /healthz)\n", security.URL(a))
	}
	fmt.Fprintf(&b, "  socket  %s\n\nTry:\n", addrs["socket"])
	fmt.Fprintf(&b, "  polder serve --tier soft --coordinator %s\n", addrs["socket"])
	if a, ok := addrs["admin"]; ok {
		fmt.Fprintf(&b, "  polder status --admin %s\n", a)
	}
	fmt.Fprintf(&b, "  soft.Open(soft.Config{Coordinator: %q})  in Go\n\nCtrl-C ends it. Caches keep what they have and wait for the next one.\n", addrs["socket"])
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}
