package keyspace

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"polder/far"
)

// put stores a value under a key as a command does.
func put(t testing.TB, a *Access, key, value string) {
	t.Helper()
	a.LockKey([]byte(key), true, nil)
	defer a.Unlock()
	err := a.Put([]byte(key), far.Entry{Value: []byte(value)})
	a.End(err)
	if err != nil {
		t.Fatalf("key %s: %v", key, err)
	}
}

// TestTheJournalStaysShort writes many times what is to be replayed at the most.
func TestTheJournalStaysShort(t *testing.T) {
	sp := newKept(t, Journal{Durable: true, Tail: 256 << 10})
	a := access(sp)
	defer a.Settle()
	value := strings.Repeat("v", 10000)
	for i := range 400 {
		if err := sp.Refuses(true); err != nil {
			t.Fatalf("after %d changes: %v", i, err)
		}
		put(t, a, fmt.Sprint("key", i%20), value)
		if i%40 != 0 { // checkpoints are taken beside
			continue
		}
		for deadline := time.Now().Add(testTimeout); sp.journal.log.(files).Since() >= 2*sp.cfg.Journal.Tail || sp.journal.tooLong.Load(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("after %d changes the journal has %d bytes that no checkpoint has", i, sp.journal.log.(files).Since())
			}
		}
	}
}

// TestWhatIsCommittedIsOnTheDisk: also where replies need not wait for that.
func TestWhatIsCommittedIsOnTheDisk(t *testing.T) {
	sp := newKept(t, Journal{Durable: true, Every: time.Minute})
	a := access(sp)
	defer a.Settle()
	put(t, a, "key", "value")
	copies, disk, err := sp.Commit()
	if copies != 1 || !disk || err != nil {
		t.Errorf("got %d copies, on a disk %v, %v, want one that is", copies, disk, err)
	}
	if got, want := sp.journal.log.(files).Synced(), sp.journal.last.Load(); got < want || want == 0 {
		t.Errorf("records up to %d are on the disk, want %d", got, want)
	}
}

// FuzzBatch decodes what may be in a journal.
func FuzzBatch(f *testing.F) {
	a := &Access{Space: &Space{journal: new(journal)}}
	a.note(opPut, far.Entry{Tag: TagText}, []byte("key"), []byte("value"))
	a.note(opFields, far.Entry{}, []byte("key"), []byte("f"), []byte("v"))
	a.note(opRemove, far.Entry{}, []byte("key"), []byte("f"))
	a.note(opFlush, far.Entry{}, nil)
	f.Add(a.notes)
	f.Fuzz(func(t *testing.T, b []byte) {
		changes, err := decodeBatch(b)
		if err != nil {
			return
		}
		a := &Access{Space: &Space{journal: new(journal)}}
		for _, c := range changes {
			a.note(c.op, c.e, c.args[0], c.args[1:]...)
		}
		if !bytes.Equal(a.notes, b) {
			t.Errorf("decoded and encoded: got %x, want %x", a.notes, b)
		}
	})
}
