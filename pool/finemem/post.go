package finemem

import (
	"context"
	"fmt"

	"polder/internal/arena"
	"polder/internal/failpoint"
	"polder/internal/invariants"
	"polder/verbs"
)

// batchMax is the most operations in a batch, and wordsMax the most words that they
// bring.
const (
	batchMax = 256
	wordsMax = BufferSize/8 - 8 // the last is for answers that nobody looks at
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

	late    [1]verbs.SendWR // of later
	lateSGE [1]verbs.SGE
	wcs     [8]verbs.WC
}

func (b *batch) init(a *Allocator) {
	b.wrs = make([]verbs.SendWR, 0, batchMax)
	b.sges = make([]verbs.SGE, batchMax)
	b.steps = make([]string, 0, batchMax)
	b.lateSGE[0] = verbs.SGE{Addr: a.cfg.Buffer.Addr() + BufferSize - 8, Length: 8, LKey: a.cfg.Buffer.LKey()}
	b.late[0] = verbs.SendWR{Op: verbs.OpCmpSwap, RKey: a.cfg.Key, SGL: b.lateSGE[:]}
}

// begin begins a batch.
//
// Preconditions: there is none, or it has completed.
func (a *Allocator) begin() {
	b := &a.batch
	b.wrs, b.steps, b.words = b.wrs[:0], b.steps[:0], 0
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
		return nil
	}
	return a.ring(ctx, b.wrs)
}

// ring posts requests and waits for them.
func (a *Allocator) ring(ctx context.Context, wrs []verbs.SendWR) error {
	b := &a.batch
	b.seq++
	last := &wrs[len(wrs)-1]
	last.ID, last.Flags = b.seq, verbs.SendSignaled
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
				return nil
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

// later posts a CAS that nobody waits for. What is posted afterwards is carried out
// afterwards.
func (a *Allocator) later(at uint64, old, new uint64, step string) {
	if a.broken != nil {
		return
	}
	if err := a.step(step); err != nil {
		a.broken = err
		return
	}
	wr := &a.batch.late[0]
	wr.RemoteAddr, wr.Compare, wr.Swap = a.cfg.Metadata+at, old, new
	if err := a.cfg.QP.PostSend(a.batch.late[:]...); err != nil {
		a.broken = fmt.Errorf("cannot reach the node's metadata: %w", err)
	}
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
