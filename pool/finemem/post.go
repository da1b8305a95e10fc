package finemem

import (
	"context"
	"fmt"

	"polder/internal/arena"
	"polder/internal/failpoint"
	"polder/internal/invariants"
	"polder/memnode/twolayer"
	"polder/verbs"
)

// batchMax is the most operations in a batch, and wordsMax the most words that they return.
const (
	batchMax = 256
	wordsMax = BufferSize/8 - 8 // the last words of the buffer are for the answers to later
	lateMax  = 7                // answers to later that checkLog looks at; one more slot is for all other answers
)

// A batch is operations on words that go out with one doorbell and are carried out
// in order.
type batch struct {
	wrs   []verbs.SendWR
	sges  []verbs.SGE
	steps []string
	words int // words of the buffer that are in use
	seq   uint64
	out   bool // the last batch has not completed
	bell  int  // 1 + the slot of the word that says whether the worker sleeps; 0 if it was not read

	late    [1]verbs.SendWR // the work request of later
	lateSGE [1]verbs.SGE
	own     [lateMax]logging // entries that checkLog has not looked at yet
	nOwn    int
	wcs     [8]verbs.WC
}

// logging is the replacement of a log entry of one of an allocator's own blocks.
type logging struct {
	at       uint64
	old, new twolayer.Entry
}

func (b *batch) init(a *Allocator) {
	b.wrs = make([]verbs.SendWR, 0, batchMax)
	b.sges = make([]verbs.SGE, batchMax)
	b.steps = make([]string, 0, batchMax)
	b.lateSGE[0] = verbs.SGE{Length: 8, LKey: a.cfg.Buffer.LKey()}
	b.late[0] = verbs.SendWR{Op: verbs.OpCmpSwap, RKey: a.cfg.Key, SGL: b.lateSGE[:]}
}

// begin begins a batch.
//
// Preconditions: there is none, or it has completed.
func (a *Allocator) begin() {
	b := &a.batch
	b.wrs, b.steps, b.words, b.bell = b.wrs[:0], b.steps[:0], 0, 0
}

func (a *Allocator) post(wr verbs.SendWR, step string, words int) (slot int) {
	b := &a.batch
	i := len(b.wrs)
	slot = b.words
	b.sges[i] = verbs.SGE{Addr: a.cfg.Buffer.Addr() + 8*uint64(slot), Length: uint32(8 * words), LKey: a.cfg.Buffer.LKey()}
	wr.SGL, wr.RKey = b.sges[i:i+1:i+1], a.cfg.Key
	b.wrs, b.steps, b.words = append(b.wrs, wr), append(b.steps, step), b.words+words
	return slot
}

// full reports whether the batch has no room for another operation that returns so many words.
func (a *Allocator) full(words int) bool {
	return len(a.batch.wrs)+4 > batchMax || a.batch.words+words > wordsMax
}

// read adds a READ of words, at most readMax in a batch, and returns the slot of the first word.
func (a *Allocator) read(at uint64, words int, step string) int {
	if !a.byWord() {
		return a.post(verbs.SendWR{Op: verbs.OpRead, RemoteAddr: a.cfg.Metadata + at}, step, words)
	}
	first := a.batch.words
	for i := range words {
		a.post(verbs.SendWR{Op: verbs.OpRead, RemoteAddr: a.cfg.Metadata + at + 8*uint64(i)}, step, 1)
	}
	return first
}

// fence makes the operation that was added last begin only when the READs and atomics before it have completed.
// Without a fence, a READ whose answer was lost may be carried out again after the operations that follow it, and
// return what the memory is by then. RNICs that repeat only what was lost do that with a READ before a READ, and all
// RNICs do it with a READ before an atomic.
func (a *Allocator) fence() { a.batch.wrs[len(a.batch.wrs)-1].Flags |= verbs.SendFence }

// byWord reports whether each word is read by an operation of its own. A READ of several words need not read each of
// them atomically. RNICs do, and so does copying on all machines of today, but the race detector does not know that.
func (a *Allocator) byWord() bool { return invariants.Enabled && !a.cfg.Serial }

// readMax is the most words that the READs of a batch return.
func (a *Allocator) readMax() int {
	if a.byWord() {
		return batchMax - 32
	}
	return wordsMax - 32
}

// cas adds a CAS, and returns the slot that gets the old value of the word.
func (a *Allocator) cas(at, old, new uint64, step string) int {
	return a.post(verbs.SendWR{Op: verbs.OpCmpSwap, RemoteAddr: a.cfg.Metadata + at, Compare: old, Swap: new}, step, 1)
}

// add adds a FETCH_ADD of 1.
func (a *Allocator) add(at uint64, step string) {
	a.post(verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: a.cfg.Metadata + at, Swap: 1}, step, 1)
}

// told adds, after operations that free memory, a READ of the word that says whether the node's worker sleeps. It
// needs no fence: if it is carried out again, it returns what the word is later, and a worker that has woken up by
// then looks at what was freed.
func (a *Allocator) told() {
	if a.cfg.Doorbell {
		a.batch.bell = a.read(a.l.WorkerAt(), 1, StepFreeLook) + 1
	}
}

// wake rings the doorbell of the node's worker if the completed batch has found that it sleeps. It does not wait. One
// ring is enough for each time that the worker sleeps; the node has no room for more.
func (a *Allocator) wake() {
	b := &a.batch
	if b.bell == 0 {
		return
	}
	state := a.word(b.bell - 1)
	b.bell = 0
	if state&1 == 0 || state == a.rang {
		return
	}
	a.rang = state
	if err := a.step(StepFreeBell); err != nil {
		a.broken = err
		return
	}
	a.stats.Doorbells++
	if err := a.cfg.QP.PostSend(verbs.SendWR{Op: verbs.OpSend}); err != nil {
		a.broken = fmt.Errorf("cannot ring the node's doorbell: %w", err)
	}
}

// word is the word that was returned into a slot.
func (a *Allocator) word(slot int) uint64 {
	return arena.Word64(a.cfg.Buffer.Bytes()[8*slot:][:8]).Load()
}

// run posts the batch and waits until it has been carried out.
func (a *Allocator) run(ctx context.Context) error {
	if a.broken != nil {
		return a.broken
	}
	b := &a.batch
	if len(b.wrs) == 0 {
		return nil
	}
	if a.cfg.Step != nil || failpoint.On() {
		for i := range b.wrs {
			if err := a.step(b.steps[i]); err != nil {
				a.broken = err
				return err
			}
			if err := a.ring(ctx, b.wrs[i:i+1]); err != nil {
				return err
			}
		}
		if a.cfg.Step != nil {
			if err := a.cfg.Step(StepComplete); err != nil {
				return err
			}
		}
	} else if err := a.ring(ctx, b.wrs); err != nil {
		return err
	}
	a.wake()
	return a.broken
}

// ring posts requests and waits for them.
func (a *Allocator) ring(ctx context.Context, wrs []verbs.SendWR) error {
	b := &a.batch
	b.seq++
	last := &wrs[len(wrs)-1]
	last.ID = b.seq
	last.Flags |= verbs.SendSignaled
	if err := a.cfg.QP.PostSend(wrs...); err != nil {
		a.broken = fmt.Errorf("cannot reach the node's metadata: %w", err)
		return a.broken
	}
	b.out = true
	return a.wait(ctx)
}

// wait waits for the batch that is out.
func (a *Allocator) wait(ctx context.Context) error {
	wcs := a.batch.wcs[:]
	for {
		n := a.cfg.CQ.Poll(wcs)
		for _, wc := range wcs[:n] {
			if err := wc.Err(); err != nil {
				a.broken = fmt.Errorf("cannot reach the node's metadata: %w", err)
				return a.broken
			}
			if wc.ID == a.batch.seq {
				a.batch.out = false
				return a.checkLog()
			}
		}
		if n > 0 {
			continue
		}
		if err := a.cfg.CQ.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			a.broken = fmt.Errorf("cannot reach the node's metadata: %w", err)
			return a.broken
		}
	}
}

// later replaces an entry of the log by a CAS that nobody waits for. Operations that are posted after it are carried
// out after it. own says that the entry is of a block that a has: then checkLog looks at what the CAS returns, when
// the next batch has completed.
func (a *Allocator) later(at uint64, old, new twolayer.Entry, own bool) {
	if a.broken != nil {
		return
	}
	if err := a.step(StepFlush); err != nil {
		a.broken = err
		return
	}
	b := &a.batch
	slot := lateMax
	if own && b.nOwn < lateMax {
		slot = b.nOwn
		b.own[slot] = logging{at, old, new}
		b.nOwn++
	}
	b.lateSGE[0].Addr = a.cfg.Buffer.Addr() + 8*uint64(wordsMax+slot)
	wr := &b.late[0]
	wr.RemoteAddr, wr.Compare, wr.Swap = a.cfg.Metadata+at, uint64(old), uint64(new)
	if err := a.cfg.QP.PostSend(b.late[:]...); err != nil {
		a.broken = fmt.Errorf("cannot reach the node's metadata: %w", err)
	}
}

// checkLog looks at what the last replacements of entries of a's own blocks have returned. Such a CAS may fail only
// because another client, which needed the header, has already written the same entry: until a frees its blocks,
// nothing else happens to them. Any other value means that the log says something wrong about a's blocks, and that a
// would be recovered wrongly. (An entry that a replaces after freeing the block is not checked: the block may have
// another owner by then, with a younger log.)
//
// Preconditions: a batch that was posted after the replacements has completed.
func (a *Allocator) checkLog() error {
	b := &a.batch
	for i, l := range b.own[:b.nOwn] {
		if was := twolayer.Entry(a.word(wordsMax + i)); was != l.old && was != l.new {
			a.broken = fmt.Errorf("the node's log has an entry %#x at %d, want %#x: somebody has changed it who does not own it", uint64(was), l.at, uint64(l.old))
			break
		}
	}
	b.nOwn = 0
	return a.broken
}

// pending is a CAS of a header, in the batch that is out, that commits an allocation or a free.
type pending struct {
	slot  int
	old   uint64
	free  bool  // it frees the next part of the first block in owed; otherwise it allocates
	block Block // the block that it allocates
}

// commits notes that the CAS of a slot commits an allocation or a free.
func (a *Allocator) commits(slot int, old uint64, free bool, b Block) {
	a.pending = append(a.pending, pending{slot: slot, old: old, free: free, block: b})
}

// committed forgets the pending CASes: the caller deals with their outcome.
func (a *Allocator) committed() { a.pending = a.pending[:0] }

// settle completes what a call that gave up has left under way, and frees what is owed.
func (a *Allocator) settle(ctx context.Context) error {
	if a.broken != nil {
		return a.broken
	}
	if a.batch.out {
		if err := a.wait(ctx); err != nil {
			return err
		}
		if a.wake(); a.broken != nil {
			return a.broken
		}
	}
	for _, p := range a.pending {
		switch done := a.word(p.slot) == p.old; {
		case done && p.free:
			a.forget(a.owed[0].First)
			a.owed[0].next++
		case done:
			a.forget(p.block.First)
			a.owed = append(a.owed, p.block)
		}
	}
	a.committed()
	if len(a.owed) == 0 {
		return nil
	}
	return a.pay(ctx)
}
