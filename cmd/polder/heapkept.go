package main

import (
	"context"
	"encoding/json"
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
	"polder/holder/witness"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
)

// keptTool looks after heaps in the memory of nodes, whose manifests witnesses have.
type keptTool struct {
	witnesses []string
	ask       witnessTool
	far       []string // the nodes, if they are not to be reached by what the manifest calls them
	manager   string
	device    string
	force     bool
}

// reach are the flags of tools that use the nodes as well.
func (t *keptTool) reach(fs *pflag.FlagSet) {
	fs.Var(config.NewFarAddresses(&t.far), "far", "with --witness, dns://NAME:PORT if the heap's server was given that; without, the nodes are those in the manifest")
	managerFlag(fs, &t.manager)
	deviceFlag(fs, &t.device)
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

// errGone says that there is no heap of that name.
type errGone string

func (e errGone) Error() string { return fmt.Sprintf("the witnesses have no heap %s", string(e)) }

// row reads the manifest of a heap.
func (t *keptTool) row(ctx context.Context, c *witness.Client, name string) (*keptRow, error) {
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
		return nil, errGone(name)
	}
	r := &keptRow{Name: name, size: len(b)}
	m, err := named.DecodeManifest(b)
	if err != nil {
		r.Trouble = err.Error()
		return r, nil
	}
	if m.Gone() {
		return nil, errGone(name)
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
	err := t.kept.ask.run(cmd.Context(), t.kept.witnesses, func(ctx context.Context, c *witness.Client) error {
		names, err := c.Names(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			r, err := t.kept.row(ctx, c, name)
			var gone errGone
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
	out := cmd.OutOrStdout()
	if t.json {
		enc := json.NewEncoder(out)
		for _, r := range rows {
			if err := enc.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "HEAP\tEPOCH\tNODES\tCHECKPOINT\tOWNER")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", r.Name, r.Epoch, len(r.Nodes), config.FormatSize(int64(r.Checkpoint)), r.state())
	}
	return w.Flush()
}

// infoKept prints what the manifest of a heap says, but for its secrets.
func (t *heapTool) infoKept(cmd *cobra.Command, names []string) error {
	return t.kept.ask.run(cmd.Context(), t.kept.witnesses, func(ctx context.Context, c *witness.Client) error {
		r, err := t.kept.row(ctx, c, names[0])
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

// nodes is how a heap's nodes are reached, with certificates and a log that goes to the command's errors.
func (t *keptTool) nodes(cmd *cobra.Command, name string) (cfg daemon.BorrowConfig, c *operator.Control, err error) {
	if err := t.ask.files.Check(); err != nil {
		return cfg, nil, &usageError{err}
	}
	certs, err := listen.Load(t.ask.files)
	if err != nil {
		return cfg, nil, err
	}
	cfg = daemon.DefaultBorrow()
	cfg.Witness, cfg.Heap, cfg.Far, cfg.Manager, cfg.Device, cfg.Checkpoint, cfg.FarWait = t.witnesses, name, t.far, t.manager, t.device, 0, t.ask.within
	if err := cfg.Check(); err != nil {
		return cfg, nil, &usageError{err}
	}
	return cfg, &operator.Control{
		Logger:   slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Security: listen.Security{Certificates: certs, Insecure: t.ask.insecure},
	}, nil
}

// limit is ctx for as long as the command may take.
func (t *witnessTool) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, t.within, fmt.Errorf("it has taken longer than %v (--within)", t.within))
}

// removeKept removes heaps.
func (t *heapTool) removeKept(cmd *cobra.Command, names []string) error {
	var errs []error
	for _, name := range names {
		cfg, control, err := t.kept.nodes(cmd, name)
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
	cfg, control, err := t.kept.nodes(cmd, name)
	if err != nil {
		return err
	}
	cfg.Local = local
	return daemon.CheckHeap(cmd.Context(), control, cfg, func(h *far.Heap) error { return checkMaps(cmd, h) })
}
