package keyspace

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"polder/far"
	"polder/far/saved"
	"polder/soft"
)

// Config configures a Space. OpTimeout and Logger are required.
type Config struct {
	// OpTimeout bounds how long a command waits for far memory.
	OpTimeout time.Duration
	// Journal configures the journal of a heap that is kept (far.Open). Without one, the heap comes back as its last
	// checkpoint has it.
	Journal Journal
	// Evidence, if set, shows that nobody else can have changed what the heap has.
	Evidence Evidence
	// Ready, if set, is called by Open when all of the heap's data is there. Clients are not answered out of the heap
	// until it has returned.
	Ready func(ctx context.Context) error
	// Logger receives what an operator should know.
	Logger *slog.Logger
}

// Evidence shows that nobody else can have changed what the heap has. A reply that shows the heap's data is sent only
// after Shown has reported true; if it reports false, the connection is closed. Its methods are for any number of
// goroutines.
type Evidence interface {
	// Ask is called after a command has come, and does not wait.
	Ask() (ticket uint64)
	// Shown waits until it is known whether there is evidence for some moment after the ticket was asked for, or
	// after Shown was called, and reports it.
	Shown(ticket uint64) bool
}

// Space has the keys of a heap, or of a cache, and their values: all that one server has, or one partition.
type Space struct {
	cfg   Config
	keys  store  // by key
	cache *cache // the same as keys, in a cache; nil over far memory

	// loading is set until there is memory to keep data in. Until then, keys and the four fields below are nil; they
	// are set before loading is cleared.
	loading atomic.Bool

	// These are nil in a cache.
	journal *journal // of a heap that is kept; nil if clients are promised no more than its checkpoints
	heap    *far.Heap
	entries *far.ByteMap // the same as keys
	blocks  *far.ByteMap // of large hashes, by id and bucket

	seed maphash.Seed

	fieldSeed   uint64 // of the hash of fields; this and the next two are kept with the heap
	keptJournal uint64 // name of the journal in the checkpoint that the heap was opened with; 0 if there was none
	keptBatch   uint64 // number of the last batch that this checkpoint has

	Stripes     [numStripes]stripe
	watches     watchTable
	sweeper     sweeper
	nextHash    atomic.Uint64
	largeHashes atomic.Int64
	unsettled   atomic.Int64 // about how many fields are struck out and left to the sweeper
	saving      atomic.Bool  // a checkpoint that a client has asked for is being taken

	resizing sync.Mutex // held while the budget changes

	uses    atomic.Int64 // how many uses keep the space from leaving: see Stay
	leaving atomic.Bool  // no more uses begin

	ctx    context.Context // ends when commands may wait no longer
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine of the space
}

// New makes a space that has yet to be given its heap. The caller closes it.
func New(cfg Config) *Space {
	sp := makeSpace(cfg)
	sp.loading.Store(true)
	return sp
}

// NewCache makes a space in soft memory. When memory is taken from the heap, the keys in it vanish. The caller closes
// the heap, after the space.
func NewCache(heap *soft.Heap, cfg Config) (*Space, error) {
	m, err := soft.NewByteMap(heap, 0)
	if err != nil {
		return nil, err
	}
	sp := makeSpace(cfg)
	sp.cache = &cache{heap, m}
	sp.keys = sp.cache
	return sp, nil
}

func makeSpace(cfg Config) *Space {
	sp := &Space{cfg: cfg, seed: maphash.MakeSeed(), fieldSeed: mathrand.Uint64()}
	sp.ctx, sp.cancel = context.WithCancel(context.Background())
	sp.sweeper.space, sp.sweeper.wake = sp, make(chan struct{}, 1)
	sp.wg.Go(sp.sweeper.run)
	return sp
}

// Open gives a space its heap, once. The space keeps its data in maps of its own in the heap. If the heap was kept,
// these maps have the data of the space that had the heap before; then Open replays the journal, if there is one. The
// caller closes the heap, after the space. Ctx is for Open itself.
func (sp *Space) Open(ctx context.Context, heap *far.Heap) error {
	if sp.cfg.Journal.Durable && !heap.Kept() {
		return errors.New("cannot journal what happens to a heap that is not kept: see far.Open")
	}
	if err := sp.loadState(heap.State()); err != nil {
		return err
	}
	sp.heap, sp.entries, sp.blocks = heap, heap.NewByteMap("keys"), heap.NewByteMap("hash blocks")
	sp.keys = sp.entries
	if heap.Kept() {
		if err := sp.openJournal(ctx); err != nil {
			return err
		}
	}
	if sp.cfg.Ready != nil {
		if err := sp.cfg.Ready(ctx); err != nil {
			return err
		}
	}
	sp.loading.Store(false)
	return nil
}

// Kept reports whether what is stored outlives the process.
func (sp *Space) Kept() bool { return sp.heap != nil && sp.heap.Kept() }

// IsCache reports whether the space is in soft memory, where any key may vanish between two commands.
func (sp *Space) IsCache() bool { return sp.cache != nil }

// Journaled reports whether there is a journal, so that clients are promised more than what checkpoints have.
func (sp *Space) Journaled() bool { return sp.journal != nil }

// IsLoading reports whether there is no memory yet to keep data in.
func (sp *Space) IsLoading() bool { return sp.loading.Load() }

// Context ends when commands may wait no longer.
func (sp *Space) Context() context.Context { return sp.ctx }

// Snapshot takes a snapshot of the heap. have says, by the position of a segment, how many of its bytes the caller
// has already: see far.Heap.Snapshot.
func (sp *Space) Snapshot(have map[uint64]uint64) (*saved.Snapshot, error) {
	return sp.heap.Snapshot(sp.ctx, have)
}

// Maps returns the heap's maps of entries and of blocks of large hashes, for callers that examine what is stored.
func (sp *Space) Maps() (entries, blocks *far.ByteMap) { return sp.entries, sp.blocks }

// Len is how many keys there are.
func (sp *Space) Len() int { return sp.keys.Len() }

// clear forgets every entry.
func (sp *Space) clear() {
	sp.keys.Clear()
	if sp.blocks != nil {
		sp.blocks.Clear()
	}
}

// Resize changes the budget of local memory, or that of a cache without a coordinator, to n bytes. When it succeeds,
// no more than that is in use. If the rest cannot be evacuated within Config.OpTimeout, Resize fails and the budget
// stays as it was.
func (sp *Space) Resize(n int64) error {
	sp.resizing.Lock()
	defer sp.resizing.Unlock()
	if sp.cache != nil {
		return sp.cache.heap.SetBudget(n)
	}
	ctx, cancel := context.WithTimeout(sp.ctx, sp.cfg.OpTimeout)
	defer cancel()
	before := sp.heap.Local()
	err := sp.heap.SetLocal(ctx, n)
	if err != nil && ctx.Err() != nil {
		// The heap would go on shrinking by itself. To grow it again needs no waiting.
		if e := sp.heap.SetLocal(sp.ctx, before); e != nil {
			return e
		}
	}
	return err
}

// Fetch brings into local memory: the entries of keys, with their values; what is needed of the entries of heads to
// know whether they are there; and blocks of large hashes, by their keys.
func (sp *Space) Fetch(ctx context.Context, keys, heads, blocks [][]byte) (err error) {
	if len(keys) > 0 {
		err = sp.keys.Prefetch(ctx, keys...)
	}
	if len(heads) > 0 && err == nil {
		err = sp.keys.FetchHeads(ctx, heads)
	}
	if len(blocks) > 0 && err == nil {
		err = sp.blocks.Prefetch(ctx, blocks...)
	}
	return err
}

// GiveUp makes commands fail that wait for far memory. Replies that wait for the journal are not sent.
func (sp *Space) GiveUp() {
	sp.cancel()
	if j := sp.journal; j != nil && j.log != nil {
		j.log.Abandon()
	}
}

// StopWaiting makes commands fail that wait for far memory.
func (sp *Space) StopWaiting() { sp.cancel() }

// Close ends a space that nobody uses any more. If the space is kept, it commits and closes the journal; otherwise it
// removes all entries.
func (sp *Space) Close() {
	sp.cancel()
	sp.wg.Wait()
	if !sp.loading.Load() && !sp.Kept() {
		sp.clear()
	}
	sp.closeJournal()
}

// Stay begins a use of the space: Leave does not return before EndUse. If Leave has been called already, Stay begins
// no use and reports false.
func (sp *Space) Stay() bool {
	sp.uses.Add(1)
	if sp.leaving.Load() {
		sp.EndUse()
		return false
	}
	return true
}

// Hold begins another use. It is Stay for a caller that uses the space already.
func (sp *Space) Hold() { sp.uses.Add(1) }

// EndUse ends a use that Stay or Hold has begun.
func (sp *Space) EndUse() { sp.uses.Add(-1) }

// Leave lets no more uses of the space begin, and returns when none is left. When ctx ends before, commands that wait
// for far memory fail, and replies that wait for the journal are not sent.
func (sp *Space) Leave(ctx context.Context) {
	sp.leaving.Store(true)
	for sp.uses.Load() > 0 {
		select {
		case <-time.After(100 * time.Microsecond):
			continue
		case <-ctx.Done():
			sp.GiveUp()
			<-time.After(time.Millisecond)
		}
	}
}
