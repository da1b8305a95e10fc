package softdev

import (
	"fmt"

	"polder/verbs"
	"polder/verbs/softnic"
)

var _ verbs.AllocDevice = (*Device)(nil)

// allocator is a verbs.Allocator.
type allocator struct {
	d      *Device
	num    uint32
	closed bool // guarded by d.g.mu
}

// CreateAllocator makes an allocator of chunks.
func (d *Device) CreateAllocator(init verbs.AllocatorInit) (verbs.Allocator, error) {
	table, ok1 := init.Table.(*mr)
	queue, ok2 := init.Queue.(*mr)
	memory, ok3 := init.Memory.(*mr)
	if !ok1 || !ok2 || !ok3 || table.pd.d != d {
		return nil, fmt.Errorf("cannot create an allocator: a region is not of this device: %w", verbs.ErrInvalid)
	}
	if err := d.lock(); err != nil {
		return nil, fmt.Errorf("cannot create an allocator: %w", err)
	}
	defer d.g.mu.Unlock()
	num, err := d.nic.CreateAllocator(table.pd.num, softnic.AllocatorConfig{
		Table: table.info.Key, Entries: init.Entries, Count: init.Count, Windows: init.Windows,
		Queue: queue.info.Key, Head: init.Head, Tail: init.Tail, Ring: init.Ring, Size: init.Size,
		Freed: init.Freed, FreedRing: init.FreedRing, Zero: init.Zero,
		Memory: memory.info.Key, ChunkSize: init.ChunkSize, Access: init.Access,
	})
	if err != nil {
		return nil, err
	}
	return &allocator{d: d, num: num}, nil
}

func (a *allocator) Attach(v verbs.QP, c verbs.AllocClient) error {
	q, err := a.d.own(v)
	if err != nil {
		return err
	}
	var group []uint32
	for _, v := range c.Group {
		m, err := a.d.own(v)
		if err != nil {
			return err
		}
		group = append(group, m.num)
	}
	if err := q.lock(); err != nil {
		return err
	}
	defer a.d.g.mu.Unlock()
	return a.d.nic.AttachAllocator(a.num, q.num, c.Owner, c.Budget, c.Held, group)
}

func (a *allocator) Counts(v verbs.QP) (allocs, frees uint64, err error) {
	q, err := a.d.own(v)
	if err != nil {
		return 0, 0, err
	}
	if err := q.lock(); err != nil {
		return 0, 0, err
	}
	defer a.d.g.mu.Unlock()
	return a.d.nic.AllocatorCounts(q.num)
}

func (a *allocator) Close() error {
	if a.d.lock() != nil {
		return nil
	}
	defer a.d.g.mu.Unlock()
	if a.closed {
		return nil
	}
	if err := a.d.nic.DestroyAllocator(a.num); err != nil {
		return err
	}
	a.closed = true
	return nil
}
