package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/daemon"
	"polder/far"
	"polder/far/named"
	"polder/far/record"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
)

// keptTool looks after heaps in the memory of nodes, whose manifests witnesses or etcd have.
type keptTool struct {
	cfg   daemon.BorrowConfig
	ask   witnessTool
	force bool
}

// holders are the flags that say where the manifests are.
func (t *keptTool) holders(fs *pflag.FlagSet) {
	t.cfg = daemon.DefaultBorrow()
	fs.Var(config.NewHolders(&t.cfg.Witness), "witness", "the witnesses that have the manifests of heaps in the memory of nodes, HOST:PORT or unix:PATH, with commas between, or etcd://HOST:PORT/NAME")
	etcdAuthFlag(fs, &t.cfg.EtcdAuth)
	t.ask.add(fs)
}

// reach are the flags of tools that use the nodes as well.
func (t *keptTool) reach(fs *pflag.FlagSet) {
	fs.Var(config.NewFarAddresses(&t.cfg.Far), "far", "with --witness, dns://NAME:PORT if the heap's server was given that; without, the nodes are those in the manifest")
	managerFlag(fs, &t.cfg.Manager)
	deviceFlag(fs, &t.cfg.Device)
}

// keptRow is a heap as it is listed.
type keptRow struct {
	Name       string   `json:"name"`
	Epoch      uint64   `json:"epoch"`
	Owner      string   `json:"owner,omitempty"` // that has it open, or has died with it
	Nodes      []string `json:"nodes,omitempty"`
	Moved      int      `json:"moved,omitempty"` // segments with copies that were moved since the last checkpoint
	Checkpoint uint64   `json:"checkpoint_bytes"`
	Trouble    string   `json:"trouble,omitempty"`

	m    *named.Manifest
	root *record.Root // nil if there is none
	size int          // of the manifest
}

func (r *keptRow) state() string {
	switch {
	case r.Trouble != "":
		return r.Trouble
	case r.Owner != "":
		return r.Owner
	case r.m.Root == nil:
		return "closed, and empty"
	}
	return "closed"
}

// keptHeap reads the manifest of a heap.
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

// listKept lists heaps.
func (t *heapTool) listKept(cmd *cobra.Command, _ []string) error {
	var rows []*keptRow
	err := t.kept.run(cmd, "", func(ctx context.Context, c daemon.Registers) error {
		names, err := c.Names(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
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

// open is how a heap's manifest and nodes are reached, with certificates and a log that goes to the command's errors. Without
// a name it is how all manifests are.
func (t *keptTool) open(cmd *cobra.Command, name string) (cfg daemon.BorrowConfig, c *operator.Control, err error) {
	cfg = t.cfg
	cfg.Heap, cfg.Checkpoint, cfg.FarWait = cmp.Or(name, "all"), 0, t.ask.within
	if err := errors.Join(cfg.Check(), t.ask.files.Check()); err != nil {
		return cfg, nil, &usageError{err}
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

// run has ask use the registers that have the manifests.
func (t *keptTool) run(cmd *cobra.Command, name string, ask func(ctx context.Context, c daemon.Registers) error) error {
	cfg, control, err := t.open(cmd, name)
	if err != nil {
		return err
	}
	ctx, cancel := t.ask.limit(cmd.Context())
	defer cancel()
	return daemon.WithRegisters(control, cfg, func(c daemon.Registers) error { return ask(ctx, c) })
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

// checkKept reads all that is in a heap, for which it becomes its owner.
func (t *heapTool) checkKept(cmd *cobra.Command, name string, local int64) error {
	cfg, control, err := t.kept.open(cmd, name)
	if err != nil {
		return err
	}
	cfg.Local = local
	return daemon.CheckHeap(cmd.Context(), control, cfg, func(h *far.Heap) error { return checkMaps(cmd, h) })
}
