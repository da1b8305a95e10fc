package memnode

import (
	"errors"
	"fmt"

	"polder/internal/arena"
	"polder/memnode/inplace"
	"polder/memnode/ledger"
	"polder/memnode/rebind"
	"polder/verbs"
)

// memory is the memory that a node lends, in chunks of one size. It is registered without any remote right.
type memory struct {
	pd     verbs.PD
	mem    *arena.Mapping
	mr     verbs.MR // all of mem
	binder *rebind.Binder
	size   int // of a chunk
	pinned bool
	ledger *ledger.Ledger  // nil: the memory ends with the process
	shared *inplace.Memory // nil: nobody reads the memory in place
}

func newMemory(dev verbs.Device, pd verbs.PD, cfg *Config) (*memory, error) {
	m := &memory{pd: pd, size: cfg.ChunkSize, pinned: dev.Attr().Pinned}
	if err := m.open(dev, cfg); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (m *memory) open(dev verbs.Device, cfg *Config) (err error) {
	if cfg.Outliving != nil {
		f := ledger.Form{Manager: cfg.Manager, ChunkSize: cfg.ChunkSize, Chunks: cfg.chunks(), Sessions: cfg.MaxClients}
		if m.ledger, err = cfg.Outliving.Take(f); err != nil {
			return err
		}
		m.mem = m.ledger.Memory()
		cfg.Lend = int64(m.ledger.Form().Chunks)*int64(cfg.ChunkSize) + cfg.Components.Memory
	} else if cfg.InPlace {
		if m.shared, err = inplace.NewMemory(cfg.mapSize()); err != nil {
			return err
		}
		m.mem = m.shared.Mapping()
	} else if m.mem, err = arena.Anonymous(cfg.mapSize(), cfg.ChunkSize >= arena.HugePageSize); err != nil {
		return err
	}
	if m.mr, err = m.pd.RegMR(m.mem.Bytes(), verbs.AccessLocalWrite|verbs.AccessMWBind); err != nil {
		return fmt.Errorf("cannot register %d bytes: %w", cfg.mapSize(), err)
	}
	m.binder, err = rebind.NewBinder(dev, m.pd)
	return err
}

// address is where chunk i begins.
func (m *memory) address(i uint32) uint64 { return m.mr.Addr() + uint64(i)*uint64(m.size) }

// zero makes chunk i read as zero. It gives the chunk's pages back to the operating system if the chunk has whole
// pages and the device has not pinned them.
func (m *memory) zero(i uint32) {
	off := int(i) * m.size
	if !m.pinned && m.size >= arena.PageSize && m.punch(off, m.size) == nil {
		return
	}
	clear(m.mem.Bytes()[off : off+m.size]) // locked memory cannot be punched
}

func (m *memory) punch(off, n int) error {
	switch {
	case m.ledger != nil:
		return m.ledger.Punch(off, n)
	case m.shared != nil:
		return m.shared.Punch(off, n)
	}
	return m.mem.Punch(off, n)
}

// own writes the owner of chunk i into the ledger, if there is one, for managers whose NIC does not do that.
func (m *memory) own(i uint32, owner uint64) {
	if m.ledger != nil {
		m.ledger.SetOwner(int(i), owner)
	}
}

// close gives the memory back, or leaves it with its keeper. No window may be bound to it any more.
func (m *memory) close() error {
	if m.binder != nil {
		m.binder.Close()
	}
	if m.mr != nil {
		if err := m.mr.Deregister(); err != nil {
			return fmt.Errorf("cannot deregister the lent memory: %w", err)
		}
	}
	switch {
	case m.ledger != nil:
		return m.ledger.Close()
	case m.shared != nil:
		return m.shared.Close()
	case m.mem != nil:
		return m.mem.Close()
	}
	return nil
}
