package heap

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/farlog"
	"polder/far/record"
	"polder/far/store"
	"polder/internal/arena"
	"polder/internal/buddy"
	"polder/internal/calls"
)

// Heap is memory for records of owners: a local budget and a store behind it.
type Heap struct {
	Cfg     Config
	host    Host
	policy  Policy // immutable
	Logs    Logs
	Far     farLog
	Bufs    buddy.Buffers
	Scopes  scopes
	cleaner *arena.Mapping // of scratch
	scratch []byte         // what the cleaner reads segments into

	flights flights
	unused  sync.Pool // of *Flight that are not a batch's
	batches sync.Pool // of *Batch

	entries   Evacuation // of locked records; the evacuator's
	Pass      pass       // over records that scopes keep in place; the evacuator's
	turn      turn       // the evacuator's
	suspects  []Suspect  // the records in the part of a segment that is being cleaned; the evacuator's
	barren    int        // passes in a row that made no room; the evacuator's
	hoped     int        // see hopedMost; the evacuator's
	postponed int        // see postponedMost; the evacuator's
	untidy    int        // how often in a row tidy got ErrNotNow; the evacuator's
	// midway has been cleaned in part, into the open segment. That was the only spare one, so nothing else may fill
	// it meanwhile. The evacuator's.
	midway    *FarSegment
	shrinking bool                   // room is being made ForShrink; the evacuator's
	Forced    atomic.Bool            // has the evacuator work on one more segment, needed or not
	Shut      atomic.Bool            // Stop has been called
	evacuates atomic.Uint64          // the evacuator's goroutine.Number
	calling   atomic.Int32           // functions of the program's that the evacuator is in
	scoped    atomic.Bool            // see UseScopes
	Budget    atomic.Int64           // the budget
	LastLost  atomic.Pointer[string] // name of the last segment that was lost

	backs   chan *backing // asks the evacuator to write back
	pauses  chan *pause   // asks it to do nothing
	backing *backing      // the request that it works on; the evacuator's

	replays   atomic.Bool  // see Replays
	limiting  sync.Mutex   // of limitDirty
	limited   atomic.Bool  // mostDirty is in force
	mostDirty atomic.Int64 // how many bytes without a far copy may be stored: see limitDirty
	wanted    atomic.Bool  // somebody waits in MayStore, and the evacuator is to look for room
	room      farlog.Room
	Blocks    atomic.Bool // those who write may hold locks that a checkpoint takes

	calls  *calls.Calls  // the calls that are in their slow path
	poke   chan struct{} // wakes the janitor
	Ctx    context.Context
	Cancel context.CancelFunc
	Wg     sync.WaitGroup
	Count  counters
}

// Config configures a core.
type Config struct {
	Local       int64         // the budget, in bytes
	MaxLocal    int64         // the most that SetLocal can make of it; 0 is Local
	ScopeBytes  int           // what every scope may take for certain; 0 is 64 KiB at the most
	HeldTooLong time.Duration // how long a scope may be open before that is reported; 0 is a second
	Policy      Policy        // what makes room; nil is Clock
}

// Sizes is how a core divides its budget. All but Logs and Most are powers of two.
type Sizes struct {
	SegSize int   // of the local logs
	Staging int   // size of each of the evacuator's buffers, and of the cleaner's
	Fetch   int   // memory for fetches
	Logs    int64 // memory for logs and indexes
	Most    int64 // the most that SetLocal can make of Logs; 0 is Logs
	Open    int   // segments that mutators append to at a time
}

// SizesFor divides the budget of a core over a store.
func SizesFor(st store.Store, cfg Config) (Sizes, error) {
	if cfg.Local < MinLocal {
		return Sizes{}, fmt.Errorf("the local budget is %d bytes, at least %d are needed", cfg.Local, MinLocal)
	}
	if cfg.MaxLocal < cfg.Local {
		return Sizes{}, fmt.Errorf("MaxLocal is %d, less than Local, which is %d", cfg.MaxLocal, cfg.Local)
	}
	if cfg.ScopeBytes < 0 {
		return Sizes{}, fmt.Errorf("ScopeBytes is %d, want a number of bytes, or 0 for the default", cfg.ScopeBytes)
	}
	if n := st.SegmentSize(); n < MinSegmentSize || n&(n-1) != 0 {
		return Sizes{}, fmt.Errorf("the store's segments are %d bytes, want a power of two of at least %d", n, MinSegmentSize)
	}
	segSize := min(max(Floor2(cfg.Local/128), MinSegmentSize), maxLogSegment)
	sz := Sizes{
		SegSize: segSize,
		Staging: min(segSize, st.SegmentSize()),
		Fetch:   min(max(Floor2(cfg.Local/32), 2*buddy.MaxBuf), 8<<20),
	}
	sz.Logs = cfg.Local - sz.others()
	sz.Most = sz.Logs + cfg.MaxLocal - cfg.Local
	sz.Open = min(Floor2(int64(runtime.GOMAXPROCS(0))), max(Floor2(sz.Logs/int64(segSize)/16), 1), 16)
	return sz, nil
}

// others is the memory beside logs and indexes: buffers for the cleaner, the evacuator and fetches.
func (sz *Sizes) others() int64 {
	return int64(sz.Staging+sz.Fetch) + narrow*stagingCost(sz.Staging)
}

// Local is the whole budget that sz divides.
func (sz *Sizes) Local() int64 { return sz.Logs + sz.others() }

const (
	Unit     = record.Unit // records are aligned to it, addresses count it
	AddrBits = record.AddrBits
	AddrMask = record.MaxAddr
)

// MinLocal is the smallest local budget.
const MinLocal = 4 << 20

const maxLogSegment = 2 << 20 // a huge page, as in the paper

// Init makes a core for host. No method of host is called before Start.
func (h *Heap) Init(st store.Store, cfg Config, sz Sizes, host Host) error {
	h.Cfg, h.host = cfg, host
	h.entries.h, h.Pass.Ev.h = h, h
	h.poke = make(chan struct{}, 1)
	h.backs, h.pauses = make(chan *backing, 1), make(chan *pause, 1)
	h.room.Init()
	h.calls = calls.New()
	h.Budget.Store(cfg.Local)
	h.Ctx, h.Cancel = context.WithCancel(context.Background())
	most := max(sz.Most, sz.Logs)
	var err error
	if h.cleaner, err = arena.Anonymous(sz.Staging, false); err != nil {
		return err
	}
	h.scratch = h.cleaner.Bytes()
	h.Far.Init(st, h.WakeJanitor)
	if err = h.Far.window.init(sz.Staging, max(cfg.MaxLocal, cfg.Local)); err != nil {
		return errors.Join(err, h.Unmap())
	}
	if err = h.Bufs.Init(sz.Fetch); err == nil {
		err = h.Logs.Init(sz.Logs, most, sz.others(), sz.SegSize, sz.Open)
	}
	if err != nil {
		return errors.Join(err, h.Unmap())
	}
	least := cfg.ScopeBytes
	if least == 0 {
		least = min(64<<10, sz.SegSize/2)
	}
	h.Scopes.init(least)
	h.Logs.crowd = h.Scopes.crowd
	if h.policy = cfg.Policy; h.policy == nil {
		h.policy = Clock{}
	}
	return nil
}

// Start starts the evacuator and the janitor.
func (h *Heap) Start() {
	h.Wg.Go(h.evacuator)
	h.Wg.Go(h.janitor)
}

// Stop ends the evacuator, the janitor, and, with ErrClosed, the calls that wait for room. It returns when all of
// them have ended, and the calls that read from the store.
func (h *Heap) Stop() {
	h.Shut.Store(true)
	idle := h.calls.Close()
	h.Cancel()
	<-idle
	h.Wg.Wait()
}

// Begin is called by every call that gives up its shard's lock, so that Close can wait for the call. The call calls
// End when it returns.
//
// Hot path: a miss begins and ends once.
func (h *Heap) Begin() error {
	if !h.calls.Begin() {
		return ErrClosed
	}
	return nil
}

// End ends what Begin has begun.
func (h *Heap) End() { h.calls.End() }

// Unmap gives the local memory back.
func (h *Heap) Unmap() error {
	var errs []error
	for _, m := range []*arena.Mapping{h.Logs.Mapping, h.Bufs.Mapping, h.cleaner, h.Far.mapping} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// Floor2 is the largest power of two that is not above n, which is positive.
func Floor2(n int64) int { return 1 << (bits.Len64(uint64(n)) - 1) }
