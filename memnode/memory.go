package memnode

import (
	"fmt"

	"polder/internal/arena"
	"polder/memnode/rebind"
	"polder/verbs"
)

// memory is what a node lends, in chunks of one size, registered without any
// remote right of its own.
type memory struct {
	pd     verbs.PD
	mem    *arena.Mapping
	mr     verbs.MR // all of mem
	binder *rebind.Binder
	size   int // of a chunk
	pinned bool
}

func newMemory(dev verbs.Device, pd verbs.PD, cfg *Config) (*memory, error) {
	mem, err := arena.Anonymous(cfg.mapSize(), cfg.ChunkSize >= arena.HugePageSize)
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegMR(mem.Bytes(), verbs.AccessLocalWrite|verbs.AccessMWBind)
	if err != nil {
		mem.Close()
		return nil, fmt.Errorf("cannot register %d bytes: %w", cfg.mapSize(), err)
	}
	b, err := rebind.NewBinder(dev, pd)
	if err != nil {
		mr.Deregister()
		mem.Close()
		return nil, err
	}
	return &memory{pd: pd, mem: mem, mr: mr, binder: b, size: cfg.ChunkSize, pinned: dev.Attr().Pinned}, nil
}

// address is where chunk i begins.
func (m *memory) address(i uint32) uint64 { return m.mr.Addr() + uint64(i)*uint64(m.size) }

// zero makes chunk i read as zero, and gives its pages back to the operating
// system if it has whole ones, and the device does not go on with those.
func (m *memory) zero(i uint32) {
	off := int(i) * m.size
	if !m.pinned && m.size >= arena.PageSize && m.mem.Punch(off, m.size) == nil {
		return
	}
	clear(m.mem.Bytes()[off : off+m.size]) // locked memory cannot be punched
}

// close gives the memory back. Nothing is bound to it any more.
func (m *memory) close() error {
	m.binder.Close()
	if err := m.mr.Deregister(); err != nil {
		return fmt.Errorf("cannot deregister the lent memory: %w", err)
	}
	return m.mem.Close()
}
