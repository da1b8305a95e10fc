package named_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"polder/far/named"
	"polder/far/record"
	"polder/far/saved"
)

// damagePart changes the byte at off of the first part of the last checkpoint, in the copy that is read first: where
// all places are equally fast, the segment's number decides which of the two that is. It returns the copy's place.
func (w *world) damagePart(t *testing.T, off int) *place {
	t.Helper()
	root, err := record.DecodeRoot(w.manifest(t).Root)
	if err != nil {
		t.Fatal(err)
	}
	var number, node, life, chunk int
	name := root.Parts[0].Name
	_, copies, _ := strings.Cut(name, " at ")
	if _, err := fmt.Sscanf(name, "segment %d", &number); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(strings.Split(copies, " and ")[number%2], "node %d/chunk %d.%d", &node, &life, &chunk); err != nil {
		t.Fatal(err)
	}
	p := w.places[node]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.segs[chunk][off] ^= 1
	return p
}

// condemned waits until a copy was found to be damaged, and fails the test if that was not just one.
func (p *process) condemned(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); p.store.Stats().Condemned == 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
	}
	if n := p.store.Stats().Condemned; n != 1 {
		t.Errorf("%d copies were found to be damaged, want 1", n)
	}
}

// found waits until the store of p, which compares the copies of a segment a second, has found a copy to be damaged,
// and has replaced it. Then all places but that of the damaged copy lose what they have, one after the other.
func (w *world) found(t *testing.T, p *process, damaged *place) {
	t.Helper()
	time.Sleep(time.Duration(2*p.store.Stats().Segments+10) * time.Second)
	p.condemned(t)
	p.repaired(t)
	for _, place := range w.places {
		if place != damaged {
			place.kill()
			p.repaired(t)
		}
	}
}

// damages are offsets in the first record of a part of a checkpoint: in the record's header, and in its body.
var damages = []int{record.SegmentSize + 18, record.SegmentSize + record.HeaderSize + 100}

// eachDamage runs test with each of these offsets.
func eachDamage(t *testing.T, offs []int, test func(t *testing.T, off int)) {
	for _, off := range offs {
		t.Run(fmt.Sprintf("byte %d", off), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) { test(t, off) })
		})
	}
}

// TestAHeapOpensThoughACopyOfItsCheckpointIsDamaged: the other copy is read, and the damaged one is replaced.
func TestAHeapOpensThoughACopyOfItsCheckpointIsDamaged(t *testing.T) {
	eachDamage(t, damages, func(t *testing.T, off int) {
		w := newWorld(2)
		p := w.start(t, named.Config{})
		want := p.fill(t, many)
		p.close(t)
		w.damagePart(t, off)
		p = w.start(t, named.Config{})
		p.has(t, want)
		p.condemned(t)
		p.repaired(t)
		p.close(t)
		w.check(t)
	})
}

// TestASnapshotIsWholeThoughACopyOfItsCheckpointIsDamaged while the snapshot is copied.
func TestASnapshotIsWholeThoughACopyOfItsCheckpointIsDamaged(t *testing.T) {
	eachDamage(t, damages, func(t *testing.T, off int) {
		w := newWorld(2)
		p := w.start(t, named.Config{})
		p.fill(t, many)
		s, err := p.heap.Snapshot(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		w.damagePart(t, off)
		var file bytes.Buffer
		to := saved.NewWriter(&file)
		for b, err := s.Next(t.Context()); !errors.Is(err, io.EOF); b, err = s.Next(t.Context()) {
			if err == nil {
				err = to.Add(b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := to.End(); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if _, err := saved.Check(t.Context(), &file); err != nil {
			t.Errorf("what was copied: %v", err)
		}
		p.condemned(t)
		p.repaired(t)
		p.close(t)
		w.check(t)
	})
}

// TestADamagedCopyOfACheckpointIsReplacedThoughNobodyReadsIt: otherwise the heap could not be opened any more when the
// good copy is lost.
func TestADamagedCopyOfACheckpointIsReplacedThoughNobodyReadsIt(t *testing.T) {
	for _, opened := range []bool{false, true} {
		eachDamage(t, append(damages, 9), func(t *testing.T, off int) { // also in the header of the segment
			w := newWorld(3)
			p := w.start(t, named.Config{})
			want := p.fill(t, many)
			if err := p.heap.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			if opened { // the last checkpoint is one that an earlier process has taken
				next := w.start(t, named.Config{Me: "next", Patience: impatient})
				p.bury()
				p = next
			}
			damaged := w.damagePart(t, off)
			w.found(t, p, damaged)
			next := w.start(t, named.Config{Me: "last", Patience: impatient})
			next.has(t, want)
			p.bury()
			next.close(t)
			w.check(t)
		})
	}
}

// TestADamagedCopyOfAPinnedCheckpointIsReplacedThoughNobodyReadsIt: a snapshot that is copied slowly reads it late, when the good
// copy may be lost.
func TestADamagedCopyOfAPinnedCheckpointIsReplacedThoughNobodyReadsIt(t *testing.T) {
	eachDamage(t, append(damages, 9), func(t *testing.T, off int) {
		w := newWorld(3)
		p := w.start(t, named.Config{})
		p.fill(t, many)
		s, err := p.heap.Snapshot(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		damaged := w.damagePart(t, off)
		if err := p.heap.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := p.store.Stats().Condemned; n != 0 {
			t.Fatalf("%d copies were found to be damaged while the checkpoint was the last", n)
		}
		w.found(t, p, damaged)
		for err == nil {
			_, err = s.Next(t.Context())
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("the snapshot: %v", err)
		}
		s.Close()
		p.close(t)
		w.check(t)
	})
}
