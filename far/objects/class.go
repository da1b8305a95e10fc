package objects

import (
	"fmt"
	"slices"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/record"
)

// Config says how objects of a class are treated: see far.ClassConfig.
type Config struct {
	Name       string
	HotBits    int
	Evacuating func(object []byte)
	Evacuated  func(number uint64) // of the object's word
	Fetched    func(object []byte)

	// Outlives says that the class is part of checkpoints. Layout is then what an object is made of: another process may open
	// the class with the same only.
	Outlives bool
	Layout   string
}

// Stats is what the objects of a class have been through.
type Stats struct {
	Name string

	Misses         uint64 // dereferences that had to wait for a fetch
	Coalesced      uint64 // those of them that joined somebody else's
	Warmed         uint64 // dereferences of a local object for the first time in a pass
	Rescued        uint64 // dereferences that met an object that was to be moved
	Prefetched     uint64 // objects that were fetched before anybody asked
	BytesIn        uint64 // fetched
	BytesOut       uint64 // written to far memory
	Evacuated      uint64 // objects that became far
	EvacuatedClean uint64 // those of them that had a good far copy
	Computed       uint64 // times that the store has looked through an object where it lay
}

// Add adds what the objects of another class have been through, so that classes of one
// name count as one.
func (s *Stats) Add(o *Stats) {
	s.Misses += o.Misses
	s.Coalesced += o.Coalesced
	s.Warmed += o.Warmed
	s.Rescued += o.Rescued
	s.Prefetched += o.Prefetched
	s.BytesIn += o.BytesIn
	s.BytesOut += o.BytesOut
	s.Evacuated += o.Evacuated
	s.EvacuatedClean += o.EvacuatedClean
	s.Computed += o.Computed
}

// Class is a kind of objects: the paper's data structure.
type Class struct {
	ID   uint16      // what words and objects call it, while it exists; immutable
	Born uint64      // version of the last far record that cannot be its, though it may have its id; immutable
	Size int         // of the objects' data, -1 if they differ; immutable
	kind record.Kind // of far records; immutable
	cfg  Config

	ended atomic.Bool // nothing is to be made of it any more

	kept  bool          // it is from a checkpoint, and nobody has asked for it; immutable
	again bool          // it is from a checkpoint; immutable
	gone  bool          // of the process before, and did not outlive it; immutable
	state func() []byte // what is kept with it, see SetState; under Space.mu

	misses, coalesced, warmed, rescued atomic.Uint64
	prefetched, bytesIn, bytesOut      atomic.Uint64
	evacuatedDirty, evacuatedClean     atomic.Uint64

	Computed atomic.Uint64 // objects that the store has looked through, which is counted by who asks it to
}

// MaxClasses is how many classes a heap has at a time.
const MaxClasses = 1 << 14

// FirstOwner is the first number of an owner that is a class of objects. Those below are maps.
const FirstOwner = 1<<16 - MaxClasses

// Owner is the number of the owner that c is.
func (c *Class) Owner() uint16 { return FirstOwner + c.ID }

// classIn is the class that a local object's second word tells of.
func classIn(tail uint64) uint16 { return object.TailOwner(tail) % MaxClasses }

// putFar makes b, which has room for it, the record of an object, and returns its data.
func (c *Class) putFar(b []byte, number uint64, data []byte) []byte {
	return record.Put(b, record.Header{Kind: c.kind, Owner: c.Owner(), Number: number}, data).Value()
}

// NewClass makes a class of objects of size bytes, or of any size if that is negative.
func (sp *Space) NewClass(cfg Config, size int) (*Class, error) {
	return sp.newClass(cfg, size, record.Object)
}

func (sp *Space) newClass(cfg Config, size int, kind record.Kind) (*Class, error) {
	if cfg.HotBits < 0 || cfg.HotBits > 8 {
		return nil, fmt.Errorf("cannot make class %q: HotBits is %d, want 1 to 8, or 0 for 1", cfg.Name, cfg.HotBits)
	}
	if size > sp.most {
		return nil, fmt.Errorf("cannot make class %q: its objects are %d bytes, at most %d fit into a log: %w", cfg.Name, size, sp.most, heap.ErrTooLarge)
	}
	cfg.HotBits = max(cfg.HotBits, 1)
	cfg.Outlives = cfg.Outlives && sp.core.Far.Keeps()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	old := *sp.classes.Load()
	if len(old) == 0 {
		defer sp.core.UseScopes()
	}
	if cfg.Outlives {
		sp.keeps.Store(true)
		if c, err := sp.claim(cfg, size, kind); c != nil || err != nil {
			return c, err
		}
	}
	id, again := sp.usedID()
	c := &Class{Born: sp.core.Far.Version(), cfg: cfg, Size: size, kind: kind}
	switch {
	case again:
		c.ID = id
		classes := slices.Clone(old)
		classes[id] = c
		sp.classes.Store(&classes)
	case len(old) == MaxClasses:
		return nil, fmt.Errorf("cannot make class %q: the heap has %d classes and structures, of which %d were freed while scopes were open that still are: free some, and leave the scopes",
			cfg.Name, MaxClasses, len(sp.retired))
	default:
		c.ID = uint16(len(old))
		classes := append(old[:len(old):len(old)], c)
		sp.classes.Store(&classes)
	}
	return c, nil
}

func (sp *Space) class(id uint16) *Class { return (*sp.classes.Load())[id] }

// Name is the name that the class was given.
func (c *Class) Name() string { return c.cfg.Name }

// Ended reports whether the class was retired.
func (c *Class) Ended() bool { return c.ended.Load() }

// Stats returns what the objects of the class have been through.
func (c *Class) Stats() Stats {
	return Stats{
		Name:           c.cfg.Name,
		Misses:         c.misses.Load(),
		Coalesced:      c.coalesced.Load(),
		Warmed:         c.warmed.Load(),
		Rescued:        c.rescued.Load(),
		Prefetched:     c.prefetched.Load(),
		BytesIn:        c.bytesIn.Load(),
		BytesOut:       c.bytesOut.Load(),
		Evacuated:      c.evacuatedDirty.Load() + c.evacuatedClean.Load(),
		EvacuatedClean: c.evacuatedClean.Load(),
		Computed:       c.Computed.Load(),
	}
}
