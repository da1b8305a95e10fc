package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/usage"
	"polder/far"
	"polder/far/named"
	"polder/far/record"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/partition"
)

// keptTool looks after heaps in the memory of nodes, whose manifests witnesses, etcd or the two nodes have.
type keptTool struct {
	cfg   daemon.BorrowConfig
	ask   witnessTool
	force bool
}

// holders are the flags that say where the manifests are.
func (t *keptTool) holders(fs *pflag.FlagSet) {
	t.cfg = daemon.DefaultBorrow()
	fs.Var(config.NewHolders(&t.cfg.Witness), "witness", "the witnesses that have the manifests of heaps in the memory of nodes, HOST:PORT or unix:PATH, with commas between, or etcd://HOST:PORT/NAME")
	twoNodesFlag(fs, &t.cfg.TwoNodes)
	fs.Var(config.NewFarAddresses(&t.cfg.Far), "far", "with --two-nodes, the two nodes; with --witness, dns://NAME:PORT if the heap's server was given that; without, the nodes are those in the manifest")
	etcdAuthFlag(fs, &t.cfg.EtcdAuth)
	t.ask.add(fs)
}

// reach are the flags of tools that use the nodes as well.
func (t *keptTool) reach(fs *pflag.FlagSet) {
	clusterFlag(fs, &t.cfg.Cluster, nodesCluster)
	managerFlag(fs, &t.cfg.Manager)
	deviceFlag(fs, &t.cfg.Device)
}

// keptRow is a heap as it is listed.
type keptRow struct {
	Name       string   `json:"name"`
	Epoch      uint64   `json:"epoch"`
	Owner      string   `json:"owner,omitempty"` // has the heap open, or has died without closing it
	Nodes      []string `json:"nodes,omitempty"`
	Moved      int      `json:"moved,omitempty"` // segments with copies that were moved since the last checkpoint
	Checkpoint uint64   `json:"checkpoint_bytes"`
	Trouble    string   `json:"trouble,omitempty"`
	Partitions int      `json:"partitions,omitempty"` // that servers share; Moved and Checkpoint are sums over them
	Servers    []string `json:"servers,omitempty"`    // that share them, or have died without leaving

	shared *partition.Map // nil if it is not shared
	of     *partition.Map // if the heap is a partition, the map of all of them; set by partOf
	number int            // of the partition, if of is set
	m      *named.Manifest
	root   *record.Root // nil if there is none
	size   int          // bytes of the manifest
}

func (r *keptRow) state() string {
	switch {
	case r.Trouble != "":
		return r.Trouble
	case r.shared != nil && r.shared.Removing:
		return "it is being loaded, or removed"
	case r.shared != nil:
		return fmt.Sprintf("%d partitions, %s", r.Partitions, cmp.Or(strings.Join(r.Servers, ", "), "closed"))
	case r.Owner != "":
		return r.Owner
	case r.m.Root == nil:
		return "closed, and empty"
	}
	return "closed"
}

// keptHeap returns what the manifest of a heap says.
func keptHeap(ctx context.Context, c daemon.Registers, name string) (*keptRow, error) {
	reg, err := c.Register(name)
	if err != nil {
		return nil, err
	}
	defer reg.Close()
	b, _, err := reg.Read(ctx)
	if err != nil {
		return nil, err
	}
	if b == nil {
		return nil, daemon.NoHeapError(name)
	}
	r := &keptRow{Name: name, size: len(b)}
	if partition.IsMap(b) {
		return r, r.share(ctx, c, b)
	}
	m, err := named.DecodeManifest(b)
	if err != nil {
		r.Trouble = err.Error()
		return r, nil
	}
	if m.Gone() {
		return nil, daemon.NoHeapError(name)
	}
	r.m, r.Epoch, r.Owner, r.Moved, r.Nodes = m, m.Epoch, m.Owner, len(m.Moved), slices.Sorted(maps.Keys(m.Sessions))
	if m.Root == nil {
		return r, nil
	}
	if r.root, err = record.DecodeRoot(m.Root); err != nil {
		r.Trouble = err.Error()
		return r, nil
	}
	r.Checkpoint = r.root.Length
	return r, nil
}

// share is keptHeap for a heap of partitions.
func (r *keptRow) share(ctx context.Context, c daemon.Registers, b []byte) error {
	m, err := partition.Decode(b)
	if err != nil {
		r.Trouble = err.Error()
		return nil
	}
	r.shared, r.Epoch, r.Partitions = m, m.Epoch, m.Partitions
	for _, s := range m.Servers {
		r.Servers = append(r.Servers, s.Addr)
	}
	for number := range m.Partitions {
		part, err := keptHeap(ctx, c, daemon.PartitionHeap(r.Name, number))
		switch {
		case errors.As(err, new(daemon.NoHeapError)):
			continue // no server has opened the partition yet
		case err != nil:
			return err
		case part.Trouble != "":
			r.Trouble = fmt.Sprintf("partition %d: %s", number, part.Trouble)
		}
		r.Moved += part.Moved
		r.Checkpoint += part.Checkpoint
		r.Nodes = append(r.Nodes, part.Nodes...)
	}
	slices.Sort(r.Nodes)
	r.Nodes = slices.Compact(r.Nodes)
	return nil
}

// partOf sets r.of and r.number if the heap of r is a partition of another heap.
func (r *keptRow) partOf(ctx context.Context, c daemon.Registers) error {
	dot := strings.LastIndexByte(r.Name, '.')
	number, err := strconv.Atoi(r.Name[dot+1:])
	if dot < 0 || err != nil || r.Name != daemon.PartitionHeap(r.Name[:dot], number) {
		return nil
	}
	all, err := keptHeap(ctx, c, r.Name[:dot])
	if err == nil && number < all.Partitions {
		r.of, r.number = all.shared, number
	}
	if errors.As(err, new(daemon.NoHeapError)) {
		return nil
	}
	return err
}

// isPart reports whether a heap is a partition of another one.
func isPart(name string, rows []*keptRow) bool {
	return slices.ContainsFunc(rows, func(r *keptRow) bool {
		for number := range r.Partitions {
			if name == daemon.PartitionHeap(r.Name, number) {
				return true
			}
		}
		return false
	})
}

// listKept lists heaps.
func (t *heapTool) listKept(cmd *cobra.Command, _ []string) error {
	var rows []*keptRow
	err := t.kept.run(cmd, "", func(ctx context.Context, c daemon.Registers) error {
		names, err := c.Names(ctx)
		if err != nil {
			return err
		}
		for _, name := range names { // sorted, so a heap comes before its partitions
			if isPart(name, rows) {
				continue
			}
			r, err := keptHeap(ctx, c, name)
			var gone daemon.NoHeapError
			if errors.As(err, &gone) {
				continue
			}
			if err != nil {
				return err
			}
			rows = append(rows, r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return printRows(cmd, t.json, "HEAP\tEPOCH\tNODES\tCHECKPOINT\tOWNER", rows, func(r *keptRow) string {
		return fmt.Sprintf("%s\t%d\t%d\t%s\t%s", r.Name, r.Epoch, len(r.Nodes), config.FormatSize(int64(r.Checkpoint)), r.state())
	})
}

// infoKept prints what the manifest of a heap says, but for its secrets.
func (t *heapTool) infoKept(cmd *cobra.Command, names []string) error {
	return t.kept.run(cmd, names[0], func(ctx context.Context, c daemon.Registers) error {
		r, err := keptHeap(ctx, c, names[0])
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
		fmt.Fprintf(w, "heap\t%s\nowner\t%s\nepoch\t%d\nmanifest\t%d bytes\n", r.Name, r.state(), r.Epoch, r.size)
		if r.shared != nil {
			for _, s := range r.shared.Servers {
				fmt.Fprintf(w, "server\t%s, %s\n", s.Addr, daemon.PartitionsOf(r.shared, s.ID))
			}
			for _, node := range r.Nodes {
				fmt.Fprintf(w, "node\t%s\n", node)
			}
			fmt.Fprintf(w, "checkpoint\t%s in all\n", config.FormatSize(int64(r.Checkpoint)))
		}
		if r.m == nil {
			return w.Flush()
		}
		fmt.Fprintf(w, "lease\t%v\n", r.m.Lease)
		for _, node := range r.Nodes {
			if id, ok := daemon.SessionOf(r.m.Sessions[node]); ok {
				fmt.Fprintf(w, "node\t%s, session %x\n", node, id)
			}
		}
		if r.root != nil {
			fmt.Fprintf(w, "number\t%016x\ncheckpoint\t%s, in %d parts\n", r.root.Heap, config.FormatSize(int64(r.root.Length)), len(r.root.Parts))
		}
		fmt.Fprintf(w, "moved\t%d segments have copies elsewhere since then\n", r.Moved)
		return w.Flush()
	})
}

// open returns how to reach a heap's manifest and nodes, and a Control with the certificates, and a log that goes to
// the command's standard error. If name is empty, it returns how to reach the manifests of all heaps.
func (t *keptTool) open(cmd *cobra.Command, name string) (cfg daemon.BorrowConfig, c *operator.Control, err error) {
	cfg = t.cfg
	cfg.Heap, cfg.Checkpoint, cfg.FarWait = cmp.Or(name, "all"), 0, t.ask.within
	if err := errors.Join(cfg.Check(), t.ask.files.Check()); err != nil {
		return cfg, nil, &usage.Error{Err: err}
	}
	certs, err := listen.Load(t.ask.files)
	if err != nil {
		return cfg, nil, err
	}
	return cfg, &operator.Control{
		Logger:   slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Security: listen.Security{Certificates: certs, Insecure: t.ask.insecure},
	}, nil
}

// run calls ask with the registers that have the manifests.
func (t *keptTool) run(cmd *cobra.Command, name string, ask func(ctx context.Context, c daemon.Registers) error) error {
	cfg, control, err := t.open(cmd, name)
	if err != nil {
		return err
	}
	ctx, cancel := t.ask.limit(cmd.Context())
	defer cancel()
	return daemon.WithRegisters(ctx, control, cfg, func(c daemon.Registers) error { return ask(ctx, c) })
}

// removeKept removes heaps.
func (t *heapTool) removeKept(cmd *cobra.Command, names []string) error {
	var errs []error
	for _, name := range names {
		cfg, control, err := t.kept.open(cmd, name)
		if err != nil {
			return err
		}
		ctx, cancel := t.kept.ask.limit(cmd.Context())
		err = daemon.RemoveHeap(ctx, daemon.Removal{BorrowConfig: cfg, Force: t.kept.force, Control: control}, func(node string, err error) {
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "polder: %s has not given back what heap %s had there: %v\n", node, name, err)
			}
		})
		cancel()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// newHeapOpen returns the command by which an operator says that a heap's server is dead.
func newHeapOpen() *cobra.Command {
	t, force := heapTool{}, false
	refused := func(*cobra.Command, []string) error {
		return &usage.Error{Err: &config.Error{Source: "--two-nodes", Err: errors.New("it is not given: only heaps whose two nodes keep the manifest need anybody's word")}}
	}
	cmd := t.command("open NAME", "Say that the server of a heap with two nodes is dead, of which one does not answer", usage.Args(1, 1), refused, func(cmd *cobra.Command, names []string) error {
		switch {
		case t.kept.cfg.TwoNodes == "":
			return refused(cmd, names)
		case t.kept.cfg.TwoNodes != daemon.GoOn:
			return &usage.Error{Err: &config.Error{Source: "--two-nodes", Value: t.kept.cfg.TwoNodes, Err: fmt.Errorf("expected %s: with %s a heap is opened when both nodes answer", daemon.GoOn, daemon.Stop)}}
		case !force:
			return &usage.Error{Err: &config.Error{Source: "--force", Err: errors.New("it is not given; expected after you have made sure that the heap's server is dead: if it is not, what it goes on to write is lost")}}
		}
		cfg, control, err := t.kept.open(cmd, names[0])
		if err != nil {
			return err
		}
		ctx, cancel := t.kept.ask.limit(cmd.Context())
		defer cancel()
		node, err := daemon.ForceHeap(ctx, control, cfg)
		if err != nil {
			return fmt.Errorf("cannot open heap %s: %w", names[0], err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "heap %s may be opened by what %s knows of it\n", names[0], node)
		return nil
	})
	cmd.Flags().BoolVar(&force, "force", false, "the heap's server is dead; if it is not, there are two histories, and its own is lost")
	return cmd
}

// checkKept reads all that is in a heap. To do so, this process becomes the heap's owner.
func (t *heapTool) checkKept(cmd *cobra.Command, name string, local int64) error {
	cfg, control, err := t.kept.open(cmd, name)
	if err != nil {
		return err
	}
	cfg.Local = local
	return daemon.CheckHeap(cmd.Context(), control, cfg, func(h *far.Heap) error { return checkMaps(cmd, h) })
}
