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

// batchMax is the most operations in a batch, and wordsMax the most words that they
// bring.
const (
	batchMax = 256
	wordsMax = BufferSize/8 - 8 // the others are for the answers to later
	lateMax  = 7                // the last of them is for those that nobody looks at
)

// A batch is operations on words that go out with one doorbell and are carried out
// in order.
type batch struct {
	wrs   []verbs.SendWR
	sges  []verbs.SGE
	steps []string
	words int // of the buffer that are taken
	seq   uint64
	out   bool // the last one has not completed
	bell  int  // the slot, and 1, of the word that says whether the worker sleeps; 0 if it has none

	late    [1]verbs.SendWR // of later
	lateSGE [1]verbs.SGE
	own     [lateMax]logging // those of later that checkLog has yet to look at
	nOwn    int
	wcs     [8]verbs.WC
}

// logging is the replacement of a log's entry by one of an allocator's own.
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

// full reports whether there is no room for another operation with so many words.
func (a *Allocator) full(words int) bool {
	return len(a.batch.wrs)+4 > batchMax || a.batch.words+words > wordsMax
}

// read adds a READ of words, at most readMax in a batch, and returns the slot of the
// first.
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

// fence has the operation that was added last begin when the READs and atomics before
// it have completed. Without it, a READ whose answer was lost may be carried out
// again after those that follow it, and bring what the memory is by then: RNICs that
// repeat only what was lost do that with a READ beside a READ, and all of them with a
// READ beside an atomic.
func (a *Allocator) fence() { a.batch.wrs[len(a.batch.wrs)-1].Flags |= verbs.SendFence }

// byWord reports whether each word is read by an operation of its own. A READ of
// several words is no atomic access to each. RNICs make it one, and so does copying
// on the machines that there are, but the race detector does not know.
func (a *Allocator) byWord() bool { return invariants.Enabled && !a.cfg.Serial }

// readMax is the most words that a batch reads.
func (a *Allocator) readMax() int {
	if a.byWord() {
		return batchMax - 32
	}
	return wordsMax - 32
}

// cas adds a CAS, and returns the slot of what the word was.
func (a *Allocator) cas(at, old, new uint64, step string) int {
	return a.post(verbs.SendWR{Op: verbs.OpCmpSwap, RemoteAddr: a.cfg.Metadata + at, Compare: old, Swap: new}, step, 1)
}

// add adds an addition.
func (a *Allocator) add(at uint64, step string) {
	a.post(verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: a.cfg.Metadata + at, Swap: 1}, step, 1)
}

// told adds a look at whether the node's worker sleeps, after what frees memory. The
// READ needs no fence: if it is carried out again, it brings what the worker says later,
// and the worker, when it has woken up, looks at what was freed.
func (a *Allocator) told() {
	if a.cfg.Doorbell {
		a.batch.bell = a.read(a.l.WorkerAt(), 1, StepFreeLook) + 1
	}
}

// wake wakes the node's worker if it sleeps, as the batch that has completed says, and
// waits for nothing. To ring once for each time that it sleeps is enough, and more than
// the node has room for.
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

// word is what has come into a slot.
func (a *Allocator) word(slot int) uint64 {
	return arena.Word64(a.cfg.Buffer.Bytes()[8*slot:][:8]).Load()
}

// run carries the batch out.
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

// later replaces an entry of the log by a CAS that nobody waits for. What is posted
// afterwards is carried out afterwards. If it is of a block that a has (own), what the
// CAS brings is looked at with the next batch: see checkLog.
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

// checkLog looks at what the last replacements of entries of blocks that a has have
// brought. They may fail only because somebody else, who needed the header, has
// written the same: until a frees them, nothing else happens to its blocks. Otherwise
// the log says something about them that is not so, and a would be recovered from
// wrongly. (When a replaces the entry of a block that it has freed, it may long be
// another's, whose log is younger.)
//
// Preconditions: a batch has completed that was posted after them.
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

// pending is a header CAS of the batch that is out, which an allocation or a free
// is committed by.
type pending struct {
	slot  int
	old   uint64
	free  bool  // of the next part of the first block that is owed; otherwise an allocation
	block Block // of an allocation
}

// commits notes that the CAS in a slot commits something.
func (a *Allocator) commits(slot int, old uint64, free bool, b Block) {
	a.pending = append(a.pending, pending{slot: slot, old: old, free: free, block: b})
}

// committed forgets what was pending: the caller deals with it.
func (a *Allocator) committed() { a.pending = a.pending[:0] }

// settle deals with what a call left under way that was given up.
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
