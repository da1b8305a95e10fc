package bytemap

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
	"polder/internal/invariants"
)

// The evacuator reads the lengths of entries without a lock, so an entry must
// not be overwritten with one of other lengths, though it would fit.
func TestOnlyTheSameLengthsAreOverwritten(t *testing.T) {
	_, m := newTestHeap(t, heap.NewMemStore(testSegment, 10), testConfig{})
	at := func(n int) uint64 {
		mustSet(t, m, []byte("key"), make([]byte, n))
		sh := m.shard(m.hash([]byte("key")))
		sh.mu.Lock()
		defer sh.mu.Unlock()
		for p := range sh.t.Matches(m.hash([]byte("key")).Tag()) {
			return sh.t.Word(p).Addr()
		}
		t.Fatal("the key is not in the index")
		return 0
	}
	if entrySize(3, 255) != entrySize(3, 256) {
		t.Fatal("the sizes differ")
	}
	first := at(255)
	if again := at(255); again != first {
		t.Errorf("a value of the same length went from %#x to %#x, want it overwritten", first, again)
	}
	if other := at(256); other == first {
		t.Errorf("a value of another length was written over %#x", first)
	}
}

func TestLocalCallsDoNotAllocate(t *testing.T) {
	if invariants.Enabled {
		return // the race detector allocates
	}
	_, m := newTestHeap(t, heap.NewMemStore(testSegment, 100), testConfig{Local: 16 << 20})
	ctx := context.Background()
	k, v := []byte("key"), value(1, 1000)
	mustSet(t, m, k, v)
	buf := make([]byte, 0, 2000)
	for name, call := range map[string]func(){
		"Get":  func() { m.Get(ctx, k, buf) },
		"Set":  func() { m.Set(ctx, k, Entry{Value: v}) },
		"Miss": func() { m.Get(ctx, v[:20], buf) },
		"Stat": func() { m.Stat(ctx, k) },
		"Update": func() {
			m.Update(ctx, k, func(old Entry, found bool) (Entry, Verdict, error) { return old, Put, nil })
		},
		"Replace": func() { m.Delete(ctx, k); m.Set(ctx, k, Entry{Value: v}) },
	} {
		if got := testing.AllocsPerRun(1000, call); got != 0 {
			t.Errorf("%s: %v allocations, want none", name, got)
		}
	}
}

// What has become of a record in the place where it was read is the entry that it was made of. Its bytes
// may be anything, as long as their checksums are right.
func FuzzLocalize(f *testing.F) {
	add := func(r entry.New) {
		e := make(entry.Local, r.Size())
		r.Put(e, 0x123456789a, 42)
		b := make([]byte, e.FarSize())
		e.PutFar(b)
		f.Add(b)
	}
	add(entry.New{Key: []byte("k"), Value: []byte("v"), Expire: 12345, Tag: 7})
	add(entry.New{})
	add(entry.New{Key: []byte("k"), Value: entry.Large{Version: 1, Size: 100000, Piece: 4096}.Encode(), Flags: entry.Big})
	add(entry.New{Key: []byte("k"), Value: make([]byte, entry.LargeSize), Flags: entry.Big, Expire: 1})
	add(entry.New{Key: make([]byte, entry.PieceKeySize), Value: []byte("piece"), Flags: entry.Piece})
	h := &Maps{pieces: 4096, maxValue: 1 << 20}
	f.Fuzz(func(t *testing.T, b []byte) {
		const addr = 77
		if len(b) < record.HeaderSize {
			return
		}
		b = bytes.Clone(b)
		raw, head := record.Record(b), record.Record(b).KeyLen()
		if raw.Flags()&record.Expires != 0 {
			head += record.ExpirySize
		}
		if head > raw.Len() || record.HeaderSize+raw.Len() > len(b) {
			return
		}
		raw.Seal(0, 0)
		r, err := record.Decode(b, 0, 0)
		if err != nil {
			return
		}
		was := bytes.Clone(r)
		if k := r.Kind(); k != record.Entry && k != record.Piece {
			return
		}
		e := entry.Localize(r, addr)
		r = was
		if string(e.Key()) != string(r.Key()) || string(e.Value()) != string(r.Value()) || e.Expire() != r.Expiry() ||
			e.Tag() != r.Tag() || e.Owner() != r.Owner() || uint64(e.Hash()) != r.Number() || e.Far() != addr || !e.Clean() {
			t.Fatalf("got %q of %q", e, r)
		}
		again := make([]byte, e.FarSize())
		e.PutFar(again)
		record.Record(again).SetVersion(r.Version())
		again[28] |= r[28] & byte(record.Moved)
		record.Record(again).Seal(0, 0)
		if !bytes.Equal(again[:len(r)], r) {
			t.Fatalf("got %q, want %q", again, r)
		}
		if e.Big() && h.checkBig(e.Value()) == nil && entry.LargeOf(e).Count() < 2 {
			t.Fatalf("a large value of %d pieces", entry.LargeOf(e).Count())
		}
	})
}

// What a freed map has counted still counts: a heap may have as many changes since as the map had.
func TestWhatAFreedMapCountedIsNotForgotten(t *testing.T) {
	h, m := openEarly(t, heap.NewMemStore(64<<10, 400), 400<<10)
	ctx := within(t, time.Minute)
	for i := range 10 {
		if err := m.Set(ctx, fmt.Append(nil, i), Entry{Value: []byte("value")}); err != nil {
			t.Fatal(err)
		}
	}
	m.computed.Add(7)
	was := h.Changes()
	m.Free()
	if now := h.Changes(); now < was {
		t.Errorf("%d changes were counted, and %d when the map was freed", was, now)
	}
	var computed uint64
	for _, st := range h.Totals().Maps {
		computed += st.Computed
	}
	if computed != 7 {
		t.Errorf("the store looked through 7 entries of the map, but counted are %d", computed)
	}
}

// TestTablesMakeWayAsFarAsTheirWordsAllow: words of entries that are local do not go far, and yet tables that have room for more become smaller.
func TestTablesMakeWayAsFarAsTheirWordsAllow(t *testing.T) {
	h, m := newTestHeap(t, heap.NewMemStore(testSegment, 1000), testConfig{Local: 64 << 20})
	for i := range 600 * h.shards {
		mustSet(t, m, key(i), nil)
	}
	m.eachShard(func(sh *shard) {
		if err := sh.grow(&h.Maps); err != nil {
			t.Fatal(err)
		}
	})
	if smaller, err := h.Halve(t.Context()); err != nil || !smaller {
		t.Errorf("tables became smaller: %v, %v", smaller, err)
	}
	m.eachShard(func(sh *shard) {
		if want := index.DenseBytes(sh.t.Used); sh.t.Bytes() != want {
			t.Errorf("a table of %d words has %d bytes, want %d", sh.t.Used, sh.t.Bytes(), want)
		}
	})
}
