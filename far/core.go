package far

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/arena"
)

// core is memory for records of owners: a local budget and a store behind it.
type core struct {
	cfg     coreConfig
	host    Host
	logs    logs
	far     farLog
	bufs    buffers
	scopes  scopes
	staging *arena.Mapping // the evacuator's and the cleaner's buffers
	scratch []byte         // what the cleaner reads segments into

	entries   evacuation             // of what no scope keeps in place; the evacuator's
	pass      pass                   // of what scopes do; the evacuator's
	turn      turn                   // the same
	barren    int                    // passes in a row that made no room; the evacuator's
	shrinking bool                   // room is made for what shrinks; the evacuator's
	forced    atomic.Bool            // work on one more segment, whether it is needed or not
	shut      atomic.Bool            // stop has been called
	scoped    atomic.Bool            // see useScopes
	local     atomic.Int64           // the budget
	lastLost  atomic.Pointer[string] // name of the last segment that was lost

	calls  calls         // in their slow path
	poke   chan struct{} // wakes the janitor
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	count  counters
}

// coreConfig configures a core.
type coreConfig struct {
	Local       int64         // the budget, in bytes
	MaxLocal    int64         // the most that SetLocal can make of it; 0 is Local
	ScopeBytes  int           // what every scope may take for certain; 0 is 64 KiB at the most
	HeldTooLong time.Duration // how long a scope may be open before that is reported; 0 is a second
}

// sizes is how a core divides its budget. All but logs and most are powers of two.
type sizes struct {
	segSize int   // of the local logs
	staging int   // size of the evacuator's buffer, and of the cleaner's
	fetch   int   // memory for fetches
	logs    int64 // memory for logs and indexes
	most    int64 // the most that SetLocal can make of it; 0 is logs
	open    int   // segments that mutators append to at a time
}

// sizesFor divides the budget of a core over a store.
func sizesFor(store Store, cfg coreConfig) (sizes, error) {
	if cfg.Local < MinLocal {
		return sizes{}, fmt.Errorf("the local budget is %d bytes, at least %d are needed", cfg.Local, MinLocal)
	}
	if cfg.MaxLocal < cfg.Local {
		return sizes{}, fmt.Errorf("MaxLocal is %d, less than Local, which is %d", cfg.MaxLocal, cfg.Local)
	}
	if cfg.ScopeBytes < 0 {
		return sizes{}, fmt.Errorf("ScopeBytes is %d, want a number of bytes, or 0 for the default", cfg.ScopeBytes)
	}
	if n := store.SegmentSize(); n < MinSegmentSize || n&(n-1) != 0 {
		return sizes{}, fmt.Errorf("the store's segments are %d bytes, want a power of two of at least %d", n, MinSegmentSize)
	}
	segSize := min(max(floor2(cfg.Local/128), MinSegmentSize), maxLogSegment)
	sz := sizes{
		segSize: segSize,
		staging: min(segSize, store.SegmentSize()),
		fetch:   min(max(floor2(cfg.Local/32), 2*maxBuf), 8<<20),
	}
	sz.logs = cfg.Local - int64(2*sz.staging+sz.fetch)
	sz.most = sz.logs + cfg.MaxLocal - cfg.Local
	sz.open = min(floor2(int64(runtime.GOMAXPROCS(0))), max(floor2(sz.logs/int64(segSize)/16), 1), 16)
	return sz, nil
}

// MinSegmentSize is the least size of a store's segments, in bytes: one holds an
// entry with the longest key.
const MinSegmentSize = 128 << 10

const maxLogSegment = 2 << 20 // a huge page, as in the paper

// init makes a core for host, which is not called before start.
func (h *core) init(store Store, cfg coreConfig, sz sizes, host Host) error {
	h.cfg, h.host = cfg, host
	h.entries.h, h.pass.ev.h = h, h
	h.poke = make(chan struct{}, 1)
	h.calls.init()
	h.local.Store(cfg.Local)
	h.ctx, h.cancel = context.WithCancel(context.Background())
	most := max(sz.most, sz.logs)
	var err error
	if h.staging, err = arena.Anonymous(2*sz.staging, false); err != nil {
		return err
	}
	mem := h.staging.Bytes()
	h.scratch = mem[sz.staging:]
	h.far.init(store, mem[:sz.staging:sz.staging])
	if err = h.bufs.init(sz.fetch); err == nil {
		err = h.logs.init(sz.logs, most, int64(2*sz.staging+sz.fetch), sz.segSize, sz.open)
	}
	if err != nil {
		return errors.Join(err, h.unmap())
	}
	least := cfg.ScopeBytes
	if least == 0 {
		least = min(64<<10, sz.segSize/2)
	}
	h.scopes.init(least)
	h.logs.crowd = h.scopes.crowd
	return nil
}

// start starts the evacuator and the janitor.
func (h *core) start() {
	h.wg.Go(h.evacuator)
	h.wg.Go(h.janitor)
}

// stop ends the evacuator, the janitor, and the calls that wait for room, with ErrClosed. It
// returns when they have ended, and the calls that read from the store.
func (h *core) stop() {
	h.shut.Store(true)
	h.calls.close()
	h.cancel()
	<-h.calls.idle
	h.wg.Wait()
}

// giveBack gives all far memory back after stop, when nothing refers to it any more.
func (h *core) giveBack() error {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	var errs []error
	for s := h.far.takeSpare(false); s != nil; s = h.far.takeSpare(false) {
		errs = append(errs, s.Free(ctx))
	}
	for s := h.far.takeIdle(false); s != nil; s = h.far.takeIdle(false) {
		errs = append(errs, s.Free(ctx))
	}
	for _, d := range h.far.takeOwed() {
		errs = append(errs, d.seg.Free(ctx))
	}
	h.far.all(func(s *farSegment) {
		if !s.gone() {
			errs = append(errs, s.seg.Free(ctx))
		}
	})
	return errors.Join(errs...)
}

// unmap gives the local memory back.
func (h *core) unmap() error {
	var errs []error
	for _, m := range []*arena.Mapping{h.logs.mapping, h.bufs.mapping, h.staging} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// buryFar accounts for the death of a far copy of size bytes, in whole classes.
func (h *core) buryFar(addr uint64, size int) {
	s := h.far.seg(addr)
	if s.live.Add(-int64(size)) == 0 && s.dead() {
		h.wakeJanitor()
	}
}
