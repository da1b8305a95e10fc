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

	// Outlives says that the class is part of checkpoints. Layout then says what an object is made of: another
	// process can open the class only with the same Layout.
	Outlives bool
	Layout   string
}

// Stats is what the objects of a class have been through.
type Stats struct {
	Name string

	Misses         uint64 // dereferences that fetched the object, and waited for that
	Coalesced      uint64 // dereferences that waited for a fetch that somebody else had begun; not among Misses
	Warmed         uint64 // dereferences of a local object for the first time in a pass
	Rescued        uint64 // dereferences that met an object that the evacuator was about to move
	Prefetched     uint64 // objects that were fetched before anybody asked
	BytesIn        uint64 // fetched
	BytesOut       uint64 // written to far memory
	Evacuated      uint64 // objects that became far
	EvacuatedClean uint64 // those of Evacuated that had a good far copy, and were not written
	Computed       uint64 // times that the store has looked through an object where it lies
}

// Add adds o to s: the statistics of classes of the same name are reported together.
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
	ID   uint16      // its number in words and objects while it exists; immutable
	Born uint64      // far records up to this version are not of the class, even if they have its ID; immutable
	Size int         // of the objects' data, -1 if they differ; immutable
	kind record.Kind // of its far records; immutable
	cfg  Config

	ended atomic.Bool // it was retired: nothing of it may be made any more

	kept  bool          // it is from a checkpoint, and nobody has asked for it; immutable
	again bool          // it is from a checkpoint; immutable
	gone  bool          // it was of the process before, and did not outlive that process; immutable
	state func() []byte // what is kept with it, see SetState; under Space.mu

	misses, coalesced, warmed, rescued atomic.Uint64
	prefetched, bytesIn, bytesOut      atomic.Uint64
	evacuatedDirty, evacuatedClean     atomic.Uint64

	Computed atomic.Uint64 // objects that the store has looked through; whoever asks the store to counts them
}

// MaxClasses is how many classes a heap can have at a time.
const MaxClasses = 1 << 14

// FirstOwner is the lowest owner number of a class of objects. Lower numbers are maps.
const FirstOwner = 1<<16 - MaxClasses

// Owner is c's number as an owner of records.
func (c *Class) Owner() uint16 { return FirstOwner + c.ID }

// classIn is the number of the class in tail, the second word of a local object.
func classIn(tail uint64) uint16 { return object.TailOwner(tail) % MaxClasses }

// putFar makes b, which has room for it, the far record of an object, and returns the data in it.
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
