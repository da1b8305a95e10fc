package finemem

import (
	"context"
	"errors"
	"fmt"

	"polder/memnode/twolayer"
	"polder/pool/manager"
	"polder/verbs"
)

// Config is what an Allocator works with. All fields but Policy and Step are
// required.
type Config struct {
	Layout twolayer.Layout
	// QP is connected to the node's queue pair to which the metadata is open. CQ is where QP's send queue completes.
	// Nobody else uses them. QP has room for QueueDepth requests.
	QP verbs.QP
	CQ verbs.CQ
	// Buffer is registered for local writes and has BufferSize bytes.
	Buffer verbs.MR
	// Metadata is the address of the metadata region's first byte, and Key opens
	// it to QP.
	Metadata uint64
	Key      verbs.RKey
	// Memory is the address of chunk 0.
	Memory uint64
	// User identifies this client: 1 to twolayer.MaxUser, and no other client's at the node.
	User uint16
	// Sync returns when the node has dealt with everything that was freed before the call.
	Sync func(ctx context.Context) error
	// Policy says where to look for memory.
	Policy Policy
	// SpanKeys makes every allocation of less than a span read the keys of all chunks of the span, which shows at
	// once what the node has not dealt with yet. It pays while the node keeps up with what is freed.
	SpanKeys bool
	// Doorbell says that the node's worker sleeps until a doorbell rings, which is a SEND of no bytes on QP; see
	// package memnode/rebind.
	Doorbell bool
	// Serial says that nobody changes the metadata while an operation on the fabric reads it, as is so in a
	// simulation.
	Serial bool
	// Step is for tests. If set, it is called before every operation on the fabric, with one of Steps, and operations
	// are carried out one by one. An error ends the allocator as a crash would.
	Step func(step string) error
}

// What an Allocator needs.
const (
	QueueDepth = 512
	BufferSize = 64 << 10
)

// Policy is where an allocator looks for chunks first.
type Policy uint8

const (
	// Spread makes every user begin at a different place, stay with the span where it last found something, and
	// prefer an empty span to one that another user has touched last. So users do not meet while there are as many
	// spans as users.
	Spread Policy = iota
	// Paper looks at spans in use first, then at empty ones, then at contended
	// ones, always from the beginning.
	Paper
)

func (p Policy) String() string {
	switch p {
	case Spread:
		return "spread"
	case Paper:
		return "paper"
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// Stats counts what an allocator has done.
type Stats struct {
	Allocs, Frees uint64
	Retries       uint64 // header CASes that failed
	Flushes       uint64 // logs of other clients that were flushed
	Repairs       uint64 // spans that were closed for other clients, or repaired
	Refreshes     uint64 // sections that were read
	Syncs         uint64 // calls of Sync
	Returned      uint64 // allocations undone because an old key might still open them
	Doorbells     uint64 // doorbells that were rung
}

// A Block is allocated memory.
type Block struct {
	Addr  uint64 // of its first byte
	First uint32 // its first chunk
	Class int    // it has 1<<Class chunks

	entry twolayer.Entry // its entry in the log, as far as it is known
	one   twolayer.Cap   // its capability if it has only one
	caps  []twolayer.Cap // its capabilities if it has several
	next  int            // how many headers it has been freed in

	swapped bool // an old key may still open it
	gone    bool // its keys have been swapped
}

// Keys returns how many keys the block has. Each opens an equal part of it, in
// order.
func (b *Block) Keys() int { return max(1, len(b.caps)) }

// Key returns key i.
func (b *Block) Key(i int) verbs.RKey { return b.capability(i).Main() }

func (b *Block) capability(i int) twolayer.Cap {
	if b.caps != nil {
		return b.caps[i]
	}
	return b.one
}

// An Allocator allocates and frees memory of one node. It is for one goroutine at a
// time.
type Allocator struct {
	cfg    Config
	l      twolayer.Layout
	user   uint16
	stats  Stats
	broken error // why it can do nothing more

	sections  []*section // nil: not read yet
	readEnd   uint32     // section behind those that were read last
	readAhead uint32     // how many sections were to be read then
	readFull  bool       // all of them were full
	home      uint32     // section where chunks were found last
	homeSpan  uint32
	homeRun   uint32 // section where a whole section was found last
	avoiding  bool   // some chunk or span is avoided

	batch   batch
	rang    uint64 // the worker's word when its doorbell was rung last
	pending []pending
	owed    []Block // to be freed before anything else is done
}

// NewAllocator returns an allocator.
func NewAllocator(cfg Config) (*Allocator, error) {
	switch {
	case cfg.User == 0 || cfg.User > twolayer.MaxUser:
		return nil, fmt.Errorf("cannot allocate as user %d, want 1 to %d", cfg.User, twolayer.MaxUser)
	case cfg.QP == nil || cfg.CQ == nil || cfg.Buffer == nil || cfg.Sync == nil:
		return nil, errors.New("cannot allocate without a queue pair, its completion queue, a buffer and Sync")
	case len(cfg.Buffer.Bytes()) < BufferSize:
		return nil, fmt.Errorf("cannot allocate with a buffer of %d bytes, want %d", len(cfg.Buffer.Bytes()), BufferSize)
	case cfg.Policy > Paper:
		return nil, fmt.Errorf("cannot allocate by %v", cfg.Policy)
	}
	a := &Allocator{cfg: cfg, l: cfg.Layout, user: cfg.User, sections: make([]*section, cfg.Layout.Sections())}
	a.batch.init(a)
	if cfg.Policy == Spread {
		spot := uint64(cfg.User) * 0x9e3779b97f4a7c15
		a.homeSpan = uint32((spot >> 32) * uint64(a.l.Spans()) >> 32)
		a.home = a.homeSpan / twolayer.SectionSpans
		a.homeRun = a.home
	}
	return a, nil
}

// Stats returns what has been done so far.
func (a *Allocator) Stats() Stats { return a.stats }

// Layout returns the layout of the memory that a allocates from.
func (a *Allocator) Layout() twolayer.Layout { return a.l }

// Alloc allocates memory of class k, which reads as zero and which only its own keys open. The error Is
// manager.ErrNoMemory if there is none. If it is ctx's error, a later call first undoes what was under way. After any
// other error the allocator is of no use any more.
func (a *Allocator) Alloc(ctx context.Context, k int) (Block, error) {
	if k < a.l.Least || k >= twolayer.Classes {
		return Block{}, fmt.Errorf("cannot allocate class %d, want %d to %d", k, a.l.Least, twolayer.Classes-1)
	}
	if err := a.settle(ctx); err != nil {
		return Block{}, err
	}
	b, err := a.alloc(ctx, k)
	if err == nil {
		a.stats.Allocs++
	}
	return b, err
}

// alloc looks for memory: first where the cache shows some, then where the refreshed headers show some, and then
// again after the node has dealt with what was freed.
func (a *Allocator) alloc(ctx context.Context, k int) (Block, error) {
	const attempts = 4
	for attempt := 1; ; attempt++ {
		b, found, err := a.search(ctx, k, attempt > 1)
		if found || err != nil {
			return b, err
		}
		if attempt == attempts {
			return Block{}, fmt.Errorf("%w: nothing of %d bytes", manager.ErrNoMemory, a.l.Size(k))
		}
		if attempt > 1 {
			a.stats.Syncs++
			if err := a.cfg.Sync(ctx); err != nil {
				return Block{}, err
			}
			a.forgive()
		}
		if err := a.refresh(ctx); err != nil {
			return Block{}, err
		}
	}
}

// Free frees a block. If it fails with ctx's error, a later call frees the block before it does anything else.
func (a *Allocator) Free(ctx context.Context, b Block) error {
	if err := a.settle(ctx); err != nil {
		a.owed = append(a.owed, b)
		return err
	}
	a.owed = append(a.owed, b)
	a.stats.Frees++
	return a.pay(ctx)
}

// Beat shows the node that the user is alive. A user that has called it once must call it at least every
// memnode.Config.Heartbeat.
func (a *Allocator) Beat(ctx context.Context) error {
	if err := a.settle(ctx); err != nil {
		return err
	}
	a.begin()
	a.add(a.l.BeatAt(a.user), StepBeat)
	return a.run(ctx)
}

// pay frees what is owed.
func (a *Allocator) pay(ctx context.Context) error {
	for len(a.owed) > 0 {
		if err := a.free(ctx, &a.owed[0], true); err != nil {
			return err
		}
		a.owed = append(a.owed[:0], a.owed[1:]...)
	}
	return nil
}

// Adopt returns the user's block of class k that begins with chunk first.
func (a *Allocator) Adopt(first uint32, k int) Block { return a.block(first, k) }

// Held returns the user's block that begins with chunk first, with its keys. The log must be up to date; it is after
// the node has listed what the user has.
func (a *Allocator) Held(ctx context.Context, first uint32) (Block, error) {
	if err := a.settle(ctx); err != nil {
		return Block{}, err
	}
	a.begin()
	slot := a.read(a.l.EntryAt(first), 1, StepFlushRead)
	if err := a.run(ctx); err != nil {
		return Block{}, err
	}
	user, k, run, ok := twolayer.Entry(a.word(slot)).Owner()
	if run {
		k = max(k, a.l.Least)
	}
	if !ok || user != a.user || k < a.l.Least || first&(1<<k-1) != 0 || !a.l.Whole(first, k) {
		b := a.block(first, k)
		return b, a.lost(&b)
	}
	b := a.block(first, k)
	return b, a.fetchKeys(ctx, &b)
}

func (a *Allocator) block(first uint32, k int) Block {
	return Block{Addr: a.cfg.Memory + uint64(first)*a.l.Unit, First: first, Class: k}
}

// free frees b and, if swap is set, swaps its keys. It may be called again after an error.
func (a *Allocator) free(ctx context.Context, b *Block, swap bool) error {
	// A single key is swapped together with the header.
	if swap && (b.one == 0 || b.Class > twolayer.SectionClass) {
		if err := a.swap(ctx, b); err != nil {
			return err
		}
	}
	if b.Class < twolayer.SpanClass {
		return a.freeChunks(ctx, b, swap)
	}
	return a.freeSections(ctx, b, swap)
}
