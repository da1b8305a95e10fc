package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/usage"
	"polder/far"
	"polder/far/disk"
	"polder/internal/config"
)

// newHeap returns the command "polder heap" with the tools for heaps that have names.
func newHeap() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "heap",
		Short: "List, check, copy and remove heaps that outlive their servers",
		Long: "A heap with a name, on a disk (polder up --disk DIR --heap NAME) or in the memory of nodes\n" +
			"(polder serve --far A,B --heap NAME --witness W1,W2,W3), is there until somebody removes it.\n" +
			"These look after those that lie in a directory, or whose manifests witnesses or etcd have.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newHeapLs(), newHeapInfo(), newHeapCheck(), newHeapRm(), newHeapOpen(), newHeapForget(), newHeapSave(), newHeapLoad())
	return cmd
}

// heapTool is what the tools have in common.
type heapTool struct {
	dir  string
	json bool
	kept keptTool // used if dir is empty
}

// command returns the command of a tool. It calls onDisk for heaps on a disk, and atNodes for heaps in the memory of
// nodes.
func (t *heapTool) command(use, short string, args cobra.PositionalArgs, onDisk, atNodes func(cmd *cobra.Command, names []string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, names []string) error {
			switch {
			case t.dir == "" && len(t.kept.cfg.Witness) == 0 && t.kept.cfg.TwoNodes == "":
				return &usage.Error{Err: &config.Error{Source: "--disk", Err: errors.New("neither it nor --witness is given; expected the directory that has the heaps, or the witnesses, or the cluster in etcd, that have their manifests")}}
			case t.dir != "" && len(t.kept.cfg.Witness) > 0:
				return &usage.Error{Err: &config.Error{Source: "--witness", Value: strings.Join(t.kept.cfg.Witness, ","), Err: errors.New("expected none with --disk, where the manifests are on the disk")}}
			}
			for _, name := range names {
				if t.dir == "" && !config.IsName(name) || filepath.Base(name) != name || name == "." || name == ".." {
					return &usage.Error{Err: fmt.Errorf("%q is no name of a heap", name)}
				}
			}
			if t.dir == "" {
				return atNodes(cmd, names)
			}
			return onDisk(cmd, names)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&t.dir, "disk", "", "the `directory` that has the heaps")
	t.kept.holders(fs)
	return cmd
}

// heapRow is a heap as it is listed.
type heapRow struct {
	Name       string    `json:"name"`
	Bytes      int64     `json:"bytes"`
	Checkpoint time.Time `json:"checkpoint"`
	InUse      bool      `json:"in_use"`
	Trouble    string    `json:"trouble,omitempty"`

	info disk.Info
}

// row inspects a heap. It fails only if there is none.
func (t *heapTool) row(name string) (heapRow, error) {
	info, err := disk.Inspect(filepath.Join(t.dir, name))
	r := heapRow{Name: name, Bytes: info.Bytes, Checkpoint: info.Checkpoint, InUse: info.InUse, info: info}
	if errors.Is(err, disk.ErrNoHeap) {
		return r, err
	}
	if err != nil {
		r.Trouble = err.Error()
	}
	return r, nil
}

func (r *heapRow) state() string {
	switch {
	case r.Trouble != "":
		return r.Trouble
	case r.InUse:
		return "in use"
	}
	return "closed"
}

func newHeapLs() *cobra.Command {
	var t heapTool
	cmd := t.command("ls", "List the heaps of a directory, or those whose manifests witnesses or etcd have", usage.NoArgs, func(cmd *cobra.Command, _ []string) error {
		entries, err := os.ReadDir(t.dir)
		if err != nil {
			return err
		}
		var rows []heapRow
		for _, e := range entries {
			if !config.IsName(e.Name()) {
				continue // such as the directory of a copy of what nodes have
			}
			if r, err := t.row(e.Name()); err == nil {
				rows = append(rows, r)
			}
		}
		return printRows(cmd, t.json, "HEAP\tON DISK\tCHECKPOINT\tSTATE", rows, func(r heapRow) string {
			return fmt.Sprintf("%s\t%s\t%s\t%s", r.Name, config.FormatSize(r.Bytes), r.Checkpoint.Format(time.RFC3339), r.state())
		})
	}, t.listKept)
	cmd.Flags().BoolVar(&t.json, "json", false, "print one JSON object a line")
	return cmd
}

// printRows prints heaps as a table, or as JSON.
func printRows[R any](cmd *cobra.Command, asJSON bool, head string, rows []R, line func(R) string) error {
	out := cmd.OutOrStdout()
	if asJSON {
		enc := json.NewEncoder(out)
		for _, r := range rows {
			if err := enc.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for _, r := range rows {
		fmt.Fprintln(w, line(r))
	}
	return w.Flush()
}

func newHeapInfo() *cobra.Command {
	var t heapTool
	return t.command("info NAME", "Say what is known of a heap without opening it", usage.Args(1, 1), func(cmd *cobra.Command, names []string) error {
		r, err := t.row(names[0])
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
		fmt.Fprintf(w, "heap\t%s\nstate\t%s\non disk\t%s\n", r.Name, r.state(), config.FormatSize(r.Bytes))
		if r.Trouble == "" {
			root := &r.info.Root
			fmt.Fprintf(w, "number\t%016x\nopened\t%d times\nsegments of\t%s\ncheckpoint\t%s, %s\n", root.Heap, root.Epoch, config.FormatSize(int64(r.info.SegmentSize)),
				r.Checkpoint.Format(time.RFC3339), config.FormatSize(int64(root.Length)))
		}
		if n := journalBytes(filepath.Join(t.dir, r.Name)); n > 0 {
			fmt.Fprintf(w, "journal\t%s\n", config.FormatSize(n))
		}
		if err := w.Flush(); err != nil || r.Trouble == "" {
			return err
		}
		return errors.New(r.Trouble)
	}, t.infoKept)
}

// journalBytes is the size of the files of a heap's journal.
func journalBytes(dir string) (n int64) {
	files, _ := filepath.Glob(filepath.Join(dir, "journal", "*"))
	for _, f := range files {
		if st, err := os.Stat(f); err == nil {
			n += st.Size()
		}
	}
	return n
}

func newHeapRm() *cobra.Command {
	var t heapTool
	cmd := t.command("rm NAME...", "Remove heaps that nobody has open, for good", usage.Args(1, math.MaxInt), func(_ *cobra.Command, names []string) error {
		var errs []error
		for _, name := range names {
			errs = append(errs, disk.Remove(filepath.Join(t.dir, name)))
		}
		return errors.Join(errs...)
	}, t.removeKept)
	t.kept.reach(cmd.Flags())
	cmd.Flags().BoolVar(&t.kept.force, "force", false, "with --witness, take the heap away from a process that has it open, and forget it also if nodes cannot be reached")
	return cmd
}

// checkKeys is how many keys are read at once.
const checkKeys = 1024

func newHeapCheck() *cobra.Command {
	var t heapTool
	local := int64(64 << 20)
	cmd := t.command("check NAME", "Open a heap that nobody has open, and read all that is in it", usage.Args(1, 1), func(cmd *cobra.Command, names []string) (err error) {
		dir := filepath.Join(t.dir, names[0])
		if _, err := t.row(names[0]); err != nil {
			return err
		}
		store, err := disk.Open(disk.Config{Dir: dir})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		h, err := far.Open(cmd.Context(), store, far.Config{Local: local})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, h.Close()) }()
		return checkMaps(cmd, h)
	}, func(cmd *cobra.Command, names []string) error { return t.checkKept(cmd, names[0], local) })
	t.kept.reach(cmd.Flags())
	cmd.Flags().Var(config.NewSize(&local, far.MinLocal, 0), "local", "local memory to use; a heap with large values may need as much as it had")
	return cmd
}

// checkMaps reads all that is in a heap, and fails if anything is lost or damaged.
func checkMaps(cmd *cobra.Command, h *far.Heap) error {
	bad := 0
	for _, m := range h.Stats().Maps {
		entries, lost, err := checkMap(cmd.Context(), cmd.ErrOrStderr(), h.NewByteMap(m.Name), m.Name)
		if err != nil {
			return fmt.Errorf("map %q: %w", m.Name, err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %d entries read, %d lost or damaged\n", m.Name, entries, lost)
		bad += lost
	}
	if bad > 0 {
		return fmt.Errorf("%d entries are lost or damaged", bad)
	}
	return nil
}

// checkMap reads all entries of a map, and prints what is wrong with them.
func checkMap(ctx context.Context, out io.Writer, m *far.ByteMap, name string) (entries, bad int, err error) {
	var keys [][]byte
	read := func() {
		m.GetMany(ctx, keys, func(i int, _ far.Entry, err error) {
			switch {
			case err == nil:
				entries++
			case !errors.Is(err, far.ErrNotFound): // it may have expired
				bad++
				fmt.Fprintf(out, "%s: key %.60q: %v\n", name, keys[i], err)
			}
		})
		keys = keys[:0]
	}
	for cursor := uint64(0); ; {
		if cursor, err = m.Scan(ctx, cursor, func(key []byte, _ far.Entry) { keys = append(keys, slices.Clone(key)) }); err != nil {
			return entries, bad, err
		}
		if len(keys) >= checkKeys || cursor == 0 {
			read()
		}
		if cursor == 0 {
			return entries, bad, ctx.Err()
		}
	}
}
