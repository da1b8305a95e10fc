package heap

import (
	"context"

	"polder/far/record"
	"polder/far/store"
)

// Batch fetches many records in as few reads of the store as it can. It makes
// no garbage: there is a pool of them, and each has flights to spare.
type Batch struct {
	Insist bool   // wait a little for room for what is to be local
	Wants  []Want // the caller's, to be used again

	h       *Heap
	left    int // how many are still to be boarded
	led     []*Flight
	joined  []joined
	pending int // bytes of led
	landed  bool
	block   *block // what is left of it is for the next flights
	spare   []*Flight
	ops     []store.ReadOp
	row     []*Flight
}

// joined is a flight that somebody else leads.
type joined struct {
	f     *Flight
	index int
}

const (
	// MaxBatch is the most flights of one read, and maxBatchBytes about the most bytes.
	MaxBatch      = 256
	maxBatchBytes = 1 << 20
	// maxBlock is the most that is taken at once for flights that have not begun.
	maxBlock = 64 << 10
	// manyUses is more uses than a block ever has. A batch that goes on taking parts of a block counts as that many
	// uses, less the flights that it has given parts to.
	manyUses = 1 << 20
)

// NewBatch returns a batch, to be ended. About n flights will be a part of it at a time.
func (h *Heap) NewBatch(n int) *Batch {
	b, _ := h.batches.Get().(*Batch)
	if b == nil {
		b = new(Batch)
	}
	b.h, b.left, b.Insist = h, n, false
	return b
}

// End is called when there is no flight in the batch.
func (b *Batch) End() {
	b.closeBlock()
	clear(b.Wants)
	b.Wants = b.Wants[:0]
	b.h.batches.Put(b)
}

// Join makes f, which the caller has joined, a part of the batch.
func (b *Batch) Join(f *Flight, index int) { b.joined = append(b.joined, joined{f, index}) }

// Len is the number of flights in the batch.
func (b *Batch) Len() int { return len(b.led) + len(b.joined) }

func (b *Batch) lead(fs ...*Flight) {
	b.led = append(b.led, fs...)
	for _, f := range fs {
		b.pending += len(f.buf)
	}
}

// Room is how many more flights of n bytes the batch takes, at least one.
func (b *Batch) Room(n int) int {
	return max(1, min(MaxBatch-len(b.led), (maxBatchBytes-b.pending)/max(n, 1)))
}

// seat gives f its N bytes of the batch's block, or returns the channel to wait for. If the block has too little
// left, seat gets a buffer for all flights that are left, on the guess that they want as much as f.
func (b *Batch) seat(f *Flight) (busy <-chan struct{}) {
	if b.block == nil || b.block.used+f.N > cap(b.block.B) {
		b.closeBlock()
		c := new(block)
		if c.Buffer, busy = b.h.Bufs.Get(max(f.N, min(f.N*b.left, maxBlock))); busy != nil && b.left > 1 {
			c.Buffer, busy = b.h.Bufs.Get(f.N)
		}
		if busy != nil {
			return busy
		}
		c.refs.Store(manyUses)
		b.block = c
	}
	c := b.block
	f.block, f.buf = c, c.B[c.used:c.used+f.N]
	c.used += f.N
	c.given++
	return nil
}

// closeBlock lets go of what is left of the block.
func (b *Batch) closeBlock() {
	if c := b.block; c != nil {
		b.h.endUses(c, manyUses-c.given)
		b.block = nil
	}
}

// BoardRow is Board for several records of the same size that lie side by side, which are read directly to where they
// stay. It returns how many of them it has taken, from the first on.
func (b *Batch) BoardRow(ws []Want) (n int, err error) {
	b.row = b.row[:0]
	ws = ws[:min(len(ws), b.h.Logs.rowRoom(b.h.Logs.Buffer(ws[0].Kind), ws[0].N))]
	for i := range ws {
		f := b.h.newFlight(b)
		f.Want = ws[i]
		if err = b.h.begin(f); err != nil {
			break
		}
		b.row = append(b.row, f)
	}
	if len(b.row) == 0 {
		return 0, err
	}
	n, err = b.h.seatRow(new(block), b.row)
	for _, f := range b.row[n:] {
		b.h.end(f)
		b.reuse(f)
	}
	b.lead(b.row[:n]...)
	clear(b.row)
	return n, err
}

// Run calls board with the numbers from i up to n. For them, board begins or joins flights as a part of b, and
// returns how many numbers it has dealt with. Run reads these flights, and calls landed with each; for a flight that
// was joined, err is the error of the wait for it. If board has to wait for something, or fails, Run returns the
// channel or the error, and the number it has come to, with all flights landed and let go of.
func (b *Batch) Run(ctx context.Context, i, n int, board func(i int) (int, <-chan struct{}, error), landed func(f *Flight, index int, err error)) (at int, busy <-chan struct{}, err error) {
	done := false
	defer func() {
		if !done { // a function of the program's panics
			b.Abandon()
		}
	}()
	for i < n && busy == nil && err == nil {
		b.left = n - i
		var k int
		k, busy, err = board(i)
		i += k
		if len(b.led) >= MaxBatch || b.pending >= maxBatchBytes {
			b.read(ctx, landed)
		}
	}
	b.flush(ctx, landed)
	done = true
	if busy != nil || err != nil {
		b.closeBlock()
	}
	return i, busy, err
}

// All is Run of the numbers up to n, and waits for buffers within ctx.
func (b *Batch) All(ctx context.Context, n int, board func(i int) (int, <-chan struct{}, error), landed func(f *Flight, index int, err error)) (err error) {
	var busy <-chan struct{}
	for i := 0; i < n && err == nil; {
		if i, busy, err = b.Run(ctx, i, n, board, landed); busy != nil {
			select {
			case <-busy:
			case <-ctx.Done(): // board finds that it has ended
			}
		}
	}
	return err
}

// Flush makes the flights of the batch and calls landed as Run does.
func (b *Batch) Flush(ctx context.Context, landed func(f *Flight, index int, err error)) {
	_, _, _ = b.Run(ctx, 0, 0, nil, landed)
}

// Abandon ends the flights of the batch without making them: nobody is to wait for what nobody makes.
func (b *Batch) Abandon() {
	if !b.landed {
		for _, f := range b.led {
			b.h.end(f)
		}
	}
	b.release()
	for _, j := range b.joined {
		if j.f != nil {
			b.h.LetGo(j.f)
		}
	}
	b.joined = b.joined[:0]
	b.closeBlock()
}

// flush makes the flights that were begun here, and waits for the others.
func (b *Batch) flush(ctx context.Context, landed func(f *Flight, index int, err error)) {
	b.read(ctx, landed)
	for k, j := range b.joined {
		err := j.f.Wait(ctx)
		if err == nil && b.Insist && j.f.Rec != nil && j.f.landing == StaysFar {
			j.f.Owner.Landed(j.f) // b joined it too late for its leader to insist
		}
		landed(j.f, j.index, err)
		b.joined[k].f = nil
		b.h.LetGo(j.f)
	}
	b.joined = b.joined[:0]
}

// read makes the flights that were begun here, and lets go of them.
func (b *Batch) read(ctx context.Context, landed func(f *Flight, index int, err error)) {
	if len(b.led) == 0 {
		return
	}
	for i, f := range b.led {
		switch {
		case f.follows:
		case i > 0 && f.adjoins(b.led[i-1]):
			op := &b.ops[len(b.ops)-1]
			at := b.h.Far.Offset(f.Addr) - op.Off
			op.Buf = op.Buf[:at+f.N]
			f.follows, f.buf = true, op.Buf[at:]
		default:
			b.ops = append(b.ops, f.op(b.h))
		}
	}
	b.h.Far.Store.Read(ctx, b.ops)
	b.landed = true
	b.h.landed(ctx, b.led, b.ops)
	if b.Insist {
		b.h.insist(ctx, b.led)
	}
	for _, f := range b.led {
		landed(f, f.Index, nil)
	}
	b.release()
}

// adjoins reports whether f's record begins within or right behind what is read for g, the flight before f (more than
// g's record, perhaps), so that one operation can read both.
func (f *Flight) adjoins(g *Flight) bool {
	n := int(f.Addr-g.Addr) * record.Unit
	return f.block == g.block && f.block.slot == nil && f.seg == g.seg && n > 0 && n <= g.N && n+f.N >= g.N
}

// reuse lets go of f, which was begun here. If nobody has joined it, it is for the batch to use again.
func (b *Batch) reuse(f *Flight) {
	if b.h.released(f) {
		b.spare = append(b.spare, f)
	}
}

// release lets go of the flights that were begun here.
func (b *Batch) release() {
	for _, f := range b.led {
		b.reuse(f)
	}
	clear(b.led)
	clear(b.ops)
	b.led, b.ops, b.pending, b.landed = b.led[:0], b.ops[:0], 0, false
}
