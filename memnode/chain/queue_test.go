package chain

import (
	"slices"
	"sync/atomic"
	"testing"
)

// pop takes the element at the head as a chain does.
func (q *Queue) pop() (slot, entry uint64) {
	head := word(q.mem[headOff:])
	slot = atomic.LoadUint64(head)
	atomic.StoreUint64(head, q.free|(slot+8)&(q.size-1))
	if entry = *q.element(slot); entry != 0 {
		*q.element(slot) = 0
	}
	return slot, entry
}

func newTestQueue(chunks int) *Queue {
	const addr = 0x1_0000_3000
	q := NewQueue(make([]byte, QueueSize(chunks, 1)), addr, chunks, 1)
	for i := range chunks {
		q.Push(uint64(i + 1))
	}
	return q
}

func TestTheRingWraps(t *testing.T) {
	q := newTestQueue(3)
	if q.Ring()%q.Size() != 0 || q.FreedRing() != q.Ring()+q.Size() {
		t.Fatalf("rings of %d bytes at %#x and %#x", q.Size(), q.Ring(), q.FreedRing())
	}
	for round := range 3 * q.Size() / 8 {
		if got := q.Free(); got != 3 {
			t.Fatalf("round %d: %d are free, want 3", round, got)
		}
		_, entry := q.pop()
		if want := round%3 + 1; entry != want {
			t.Fatalf("round %d: got entry %d, want %d", round, entry, want)
		}
		if got := q.Free(); got != 2 {
			t.Fatalf("round %d: %d are free after one was taken, want 2", round, got)
		}
		q.Push(entry)
	}
}

// TestAFullQueueIsFull: however the number of chunks compares with a power of
// two.
func TestAFullQueueIsFull(t *testing.T) {
	for _, chunks := range []int{3, 100, 1000, 1100, 2000, 4000} {
		q := newTestQueue(chunks)
		if got := q.Free(); got != chunks {
			t.Errorf("%d of %d chunks are free", got, chunks)
		}
		for range 3 {
			q.pop()
		}
		if got := q.Free(); got != chunks-3 {
			t.Errorf("%d of %d chunks are free after 3 were taken", got, chunks)
		}
	}
}

// TestSettle: three chains find nothing; each entry that comes back passes the
// elements that they have left behind.
func TestSettle(t *testing.T) {
	q := newTestQueue(1)
	_, entry := q.pop()
	var resumed []int
	accounts := make([]Account, 3)
	for i := range accounts {
		slot, nothing := q.pop()
		if nothing != 0 {
			t.Fatalf("got entry %d from an empty queue", nothing)
		}
		accounts[i].Resume = func(done, failed uint64) { resumed = append(resumed, i) }
		accounts[i].Owed = true
		q.owe(slot, &accounts[i])
	}
	q.Settle()
	if len(resumed) != 0 || q.Free() != 0 || !q.Owing() {
		t.Fatalf("resumed %v, %d free, with nothing to settle with", resumed, q.Free())
	}
	accounts[1].Close(q)
	q.Push(entry)
	if q.Free() != 1 {
		t.Fatalf("%d are free, want 1", q.Free())
	}
	q.Settle()
	if !slices.Equal(resumed, []int{0, 2}) || q.Owing() || q.Free() != 1 {
		t.Fatalf("resumed %v, owing %t, %d free", resumed, q.Owing(), q.Free())
	}
	for i := range accounts {
		if accounts[i].Owed {
			t.Errorf("chain %d is still owed an element", i)
		}
	}
	if _, got := q.pop(); got != entry {
		t.Fatalf("got entry %d, want %d", got, entry)
	}
}

// TestWhoIsOwedKeepsItsPlace: what a client that is gone was owed is given back also if
// another is owed a later element, and while a third takes one.
func TestWhoIsOwedKeepsItsPlace(t *testing.T) {
	q := newTestQueue(1)
	_, entry := q.pop()
	var gone, waits, late Account
	resumed := 0
	waits.Resume = func(done, failed uint64) { resumed++ }
	late.Resume = waits.Resume
	for _, a := range []*Account{&gone, &waits} {
		slot, _ := q.pop()
		a.Owed = true
		q.owe(slot, a)
	}
	gone.Close(q)
	q.between = func() {
		q.between = nil
		slot, _ := q.pop()
		late.Owed = true
		q.owe(slot, &late)
	}
	q.Settle()
	q.Settle()
	if len(q.owed) != 2 || q.Free() != 0 || resumed != 0 {
		t.Fatalf("%d elements are owed, want 2; %d are free, want none; %d were resumed", len(q.owed), q.Free(), resumed)
	}
	q.Push(entry)
	q.Settle()
	if q.Owing() || q.Free() != 1 || resumed != 2 {
		t.Fatalf("owing %t; %d are free, want 1; %d were resumed, want 2", q.Owing(), q.Free(), resumed)
	}
	if _, got := q.pop(); got != entry {
		t.Fatalf("got entry %d, want %d", got, entry)
	}
}

func TestFreedChunksWaitInOrder(t *testing.T) {
	q := newTestQueue(2)
	put := func(entry uint64) {
		tail := word(q.mem[freedOff:])
		at := *tail
		*tail = q.next | (at+8)&(q.size-1)
		*q.element(at) = entry
	}
	for round := range 2 * q.Size() / 8 {
		put(10 + round)
		put(1000 + round)
		if q.Freed() != 2 {
			t.Fatalf("%d have been freed, want 2", q.Freed())
		}
		for _, want := range []uint64{10 + round, 1000 + round} {
			if got, ok := q.TakeFreed(); !ok || got != want {
				t.Fatalf("got %d (%t), want %d", got, ok, want)
			}
		}
		if got, ok := q.TakeFreed(); ok {
			t.Fatalf("got %d, want nothing", got)
		}
	}
}

func TestTablesAreWhereHandlesReach(t *testing.T) {
	mem := make([]byte, TableSize(4))
	for _, addr := range []uint64{0x1_0000_0080, 0x1_ffff_fe00} {
		if _, err := NewTable(mem, addr, 3); err == nil {
			t.Errorf("a table at %#x was accepted", addr)
		}
	}
	table, err := NewTable(mem, 0x1_ffff_fc00, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint32(4) {
		h := Handle(table.Entry(i))
		addr := table.Addr&^0xffffff00 | uint64(h[0])<<8 | uint64(h[1])<<16 | uint64(h[2])<<24
		if got, ok := table.Chunk(addr); !ok || got != i {
			t.Errorf("handle %x of chunk %d leads to %d (%t)", h, i, got, ok)
		}
	}
	for _, addr := range []uint64{table.Addr - 256, table.Addr + 4*256, table.Addr + 8} {
		if i, ok := table.Chunk(addr); ok {
			t.Errorf("%#x is taken for the entry of chunk %d", addr, i)
		}
	}
}

// TestWhatTheDeadAreOwedIsBounded: clients that come, find nothing and go again leave no
// more behind than the queue has room for, however often they come.
func TestWhatTheDeadAreOwedIsBounded(t *testing.T) {
	q := newTestQueue(1)
	_, entry := q.pop()
	for range q.Size() / 8 * 2 {
		var a Account
		slot, nothing := q.pop()
		if nothing != 0 {
			t.Fatalf("got entry %d from an empty queue", nothing)
		}
		q.owe(slot, &a)
		q.Settle()
		a.Close(q)
		if free := q.Free(); free != 0 {
			t.Fatalf("%d are free, want none", free)
		}
	}
	q.Push(entry)
	q.Settle()
	if q.Free() != 1 || q.Owing() {
		t.Fatalf("%d are free, want 1; owing: %t", q.Free(), q.Owing())
	}
	if _, got := q.pop(); got != entry {
		t.Fatalf("got entry %d, want %d", got, entry)
	}
}
