package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"polder/far/disk"
	"polder/far/named"
	"polder/far/saved"
	"polder/internal/operator"
	"polder/partition"
	"polder/resp"
	"polder/resp/clientmem"
)

// SaveHeap opens a heap that no process has open, as its server would, and calls save with a snapshot of the heap.
// have returns what the copy has already, see far.Heap.Snapshot. If the server died with changes in its log, they are
// in the snapshot.
func SaveHeap(ctx context.Context, c *operator.Control, cfg BorrowConfig, have func() map[uint64]uint64, save func(*saved.Snapshot) error) error {
	use := func(p *process, m *memory, tail bool) (err error) {
		if tail {
			server, err := resp.NewLoading(resp.Config{
				MaxBulk:      int(min(cfg.Local/4, 512<<20)),
				ClientMemory: clientmem.New(cfg.Local), // there are no clients
				Journal:      m.journal(ServeConfig{BorrowConfig: cfg}),
				Ready:        m.ready,
				Logger:       p.Logger,
			})
			if err != nil {
				return err
			}
			defer func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
				defer cancel()
				err = errors.Join(err, server.Shutdown(ctx))
			}()
			if err := server.Open(ctx, m.heap); err != nil {
				return fmt.Errorf("cannot replay the log of heap %s: %w", cfg.Heap, err)
			}
		}
		s, err := m.heap.Snapshot(ctx, have())
		if err != nil {
			return err
		}
		defer s.Close()
		return save(s)
	}
	if cfg.onDisk() {
		return useDisk(ctx, c, cfg, use)
	}
	return useHeap(ctx, c, cfg, "save", func(p *process, m *memory, had *named.Manifest) error { return use(p, m, len(had.Tail) > 0) })
}

// useDisk opens a heap on a disk that no process has open, and calls use with it. tail reports whether it has a
// journal.
func useDisk(ctx context.Context, c *operator.Control, cfg BorrowConfig, use func(p *process, m *memory, tail bool) error) (err error) {
	p := newProcess("heap", c)
	defer p.close(&err)
	var m memory
	defer func() { err = errors.Join(err, m.close()) }()
	if err := m.openDisk(ctx, p, cfg, 0); err != nil {
		return err
	}
	_, journal := os.Stat(cfg.journalDir())
	return use(p, &m, journal == nil)
}

// LoadHeap makes a new heap from a snapshot that has these contents. If that fails, there is no heap of that name,
// or, if nodes could not be reached, an empty one.
func LoadHeap(ctx context.Context, c *operator.Control, cfg BorrowConfig, from io.ReadSeeker, contents *saved.Contents) error {
	if cfg.onDisk() {
		return loadOnDisk(ctx, cfg, from, contents)
	}
	owned, err := loadHeap(ctx, c, cfg, from, contents)
	if err == nil || !owned {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), nodeTime)
	defer cancel()
	gone := RemoveHeap(ctx, Removal{BorrowConfig: cfg, Control: c}, func(string, error) {})
	if errors.As(gone, new(NoHeapError)) {
		gone = nil
	}
	return errors.Join(err, gone)
}

// loadOnDisk is LoadHeap for a heap on a disk.
func loadOnDisk(ctx context.Context, cfg BorrowConfig, from io.ReadSeeker, contents *saved.Contents) (err error) {
	dir := cfg.dir()
	if err := os.MkdirAll(cfg.Disk, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		return HeapError(cfg.Heap) // it may be something other than a heap, but we must not write to that either
	} else if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	st, err := disk.Open(disk.Config{Dir: dir, SegmentSize: contents.SegmentSize})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	// The journal begins empty: if the heap had one, the copy has all that was in it.
	if err := os.Mkdir(cfg.journalDir(), 0o700); err != nil {
		return err
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return saved.Restore(ctx, st, from, contents)
}

// loadHeap is LoadHeap at nodes. owned reports whether this process became the heap's owner.
func loadHeap(ctx context.Context, c *operator.Control, cfg BorrowConfig, from io.ReadSeeker, contents *saved.Contents) (owned bool, err error) {
	p := newProcess("heap", c)
	defer p.close(&err)
	var k kept
	if err := errors.Join(k.keeper(p, &cfg), k.reach(ctx)); err != nil {
		return false, errors.Join(err, k.hangUp())
	}
	b, _, err := k.register.Read(ctx)
	if err := errors.Join(err, k.hangUp()); err != nil {
		return false, err
	}
	if b != nil {
		had, err := named.DecodeManifest(b)
		if err != nil {
			return false, fmt.Errorf("heap %s: %w", cfg.Heap, err)
		}
		if had.Root != nil { // without a root, loading it did not finish, and it was never opened
			return false, HeapError(cfg.Heap)
		}
	}
	at, err := p.borrow(ctx, cfg)
	if err != nil {
		return false, err
	}
	p.addrs[ServiceAdmin] = tool("load")
	m := memory{restore: func(ctx context.Context, st *named.Store) error {
		if _, err := from.Seek(0, io.SeekStart); err != nil { // this may be the second try
			return err
		}
		if err := st.Prune(ctx); err != nil { // removes what an earlier try or process has begun to load
			return err
		}
		return saved.Restore(ctx, st, from, contents)
	}}
	defer func() { err = errors.Join(err, m.close()) }()
	err = m.open(ctx, p, cfg, at, 0)
	return m.kept != nil && m.kept.owner != nil, err
}

// LoadPartitions makes a new heap of partitions in the memory of nodes from one snapshot for each partition; contents
// are what the snapshots have. No server joins the heap before it is complete. If that fails, what was made of the
// heap is removed, as far as nodes can be reached.
func LoadPartitions(ctx context.Context, c *operator.Control, cfg BorrowConfig, from []io.ReadSeeker, contents []*saved.Contents) (err error) {
	return WithRegisters(ctx, c, cfg, func(all Registers) (err error) {
		reg, err := all.Register(cfg.Heap)
		if err != nil {
			return err
		}
		defer reg.Close()
		if err := checkNames(ctx, all, cfg.Heap, len(from), reg); err != nil {
			return err
		}
		version, err := partition.Reserve(ctx, reg, len(from), named.Vacant)
		if errors.Is(err, partition.ErrTaken) {
			return HeapError(cfg.Heap)
		}
		if err != nil {
			return err
		}
		made := 0
		defer func() {
			if err == nil {
				return
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), nodeTime)
			defer cancel()
			// Remove only what was made here: since checkNames, somebody may have made a heap with a partition's
			// name.
			ours := func(number int) bool { return number < made }
			err = errors.Join(err, RemoveHeap(ctx, Removal{BorrowConfig: cfg, Control: c, made: ours}, func(string, error) {}))
		}()
		for number := range from {
			part := cfg
			part.Heap = PartitionHeap(cfg.Heap, number)
			if err := LoadHeap(ctx, c, part, from[number], contents[number]); err != nil {
				return fmt.Errorf("partition %d: %w", number, err)
			}
			made++
		}
		return partition.Release(ctx, reg, version)
	})
}

// HeapError says that there is a heap of that name.
type HeapError string

func (e HeapError) Error() string {
	return fmt.Sprintf("there is a heap %s already: expected a name that is free", string(e))
}
