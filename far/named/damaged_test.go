package named_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"polder/far/named"
	"polder/far/record"
	"polder/far/saved"
)

// damagePart changes the byte at off of the first part of the last checkpoint, in the copy that is read first: where
// all places are equally fast, the segment's number decides which of the two that is.
func (w *world) damagePart(t *testing.T, off int) {
	t.Helper()
	value, _, err := w.reg.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := named.DecodeManifest(value)
	if err != nil {
		t.Fatal(err)
	}
	root, err := record.DecodeRoot(m.Root)
	if err != nil {
		t.Fatal(err)
	}
	var number, place, life, chunk int
	name := root.Parts[0].Name
	_, copies, _ := strings.Cut(name, " at ")
	if _, err := fmt.Sscanf(name, "segment %d", &number); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(strings.Split(copies, " and ")[number%2], "node %d/chunk %d.%d", &place, &life, &chunk); err != nil {
		t.Fatal(err)
	}
	p := w.places[place]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.segs[chunk][off] ^= 1
}

// condemned fails the test if not just one copy was found to be damaged.
func (p *process) condemned(t *testing.T) {
	t.Helper()
	if n := p.store.Stats().Condemned; n != 1 {
		t.Errorf("%d copies were found to be damaged, want 1", n)
	}
}

// damages are offsets in the first record of a part of a checkpoint: in the record's header, and in its body.
var damages = []int{record.SegmentSize + 18, record.SegmentSize + record.HeaderSize + 100}

// TestAHeapOpensThoughACopyOfItsCheckpointIsDamaged: the other copy is read, and the damaged one is replaced.
func TestAHeapOpensThoughACopyOfItsCheckpointIsDamaged(t *testing.T) {
	for _, off := range damages {
		t.Run(fmt.Sprintf("byte %d", off), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
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
		})
	}
}

// TestASnapshotIsWholeThoughACopyOfItsCheckpointIsDamaged while the snapshot is copied.
func TestASnapshotIsWholeThoughACopyOfItsCheckpointIsDamaged(t *testing.T) {
	for _, off := range damages {
		t.Run(fmt.Sprintf("byte %d", off), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
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
		})
	}
}
