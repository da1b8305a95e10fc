package pages

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"polder/far"
	"polder/far/disk"
)

// openKept opens the volume that a directory has.
func openKept(t *testing.T, dir string, size int64) (*Volume, *far.Heap, func()) {
	t.Helper()
	s, err := disk.Open(disk.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	h, err := far.Open(t.Context(), s, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	v, err := New(h, "pages", size)
	if err != nil {
		h.Close()
		s.Close()
		t.Fatal(err)
	}
	return v, h, func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A volume is there again, its holes too, even if somebody writes while a checkpoint is taken; it may be larger, but
// not smaller.
func TestAVolumeIsOpenedAgain(t *testing.T) {
	dir := t.TempDir()
	const size = 16 << 20
	want := make([]byte, size)
	r := rand.New(rand.NewPCG(1, 1))
	for round := range 3 {
		v, h, closeAll := openKept(t, dir, size+int64(round)*Size)
		got := make([]byte, size)
		if err := v.Read(t.Context(), got, 0); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("round %d: %v, or other bytes than were written", round, err)
		}
		if n, memory := v.Extent(0, size); round == 0 && (n != size || memory) {
			t.Errorf("an empty volume has memory behind %d bytes", n)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 3 {
				if err := h.Checkpoint(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
		for range 600 {
			off, n := r.Int64N(size), r.IntN(20<<10)
			n = min(n, int(size-off))
			if r.IntN(4) == 0 {
				clear(want[off:][:n])
				if err := v.Discard(t.Context(), off, int64(n)); err != nil {
					t.Fatal(err)
				}
				continue
			}
			for i := range want[off:][:n] {
				want[int(off)+i] = byte(r.Uint32())
			}
			if err := v.Write(t.Context(), want[off:][:n], off); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
		closeAll()
	}
	s, err := disk.Open(disk.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h, err := far.Open(t.Context(), s, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if _, err := New(h, "pages", size); err == nil {
		t.Error("the volume was opened smaller than it was")
	}
}

// TestWhoGivesUpASharedCheckpointIsAlone: of two calls that share a checkpoint, that which was to take it runs out of time
// before its turn. The other one is none the worse for it.
func TestWhoGivesUpASharedCheckpointIsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, _, closeAll := openKept(t, t.TempDir(), 1<<20)
		defer closeAll()
		if err := v.Write(t.Context(), []byte("something"), 0); err != nil {
			t.Fatal(err)
		}
		v.syncs.turn <- struct{}{} // another checkpoint is taken
		impatient, giveUp := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- v.Sync(impatient) }()
		synctest.Wait()
		go func() { second <- v.Sync(t.Context()) }()
		synctest.Wait()
		giveUp()
		if err := <-first; err != context.Canceled {
			t.Errorf("who gave up got %v, want %v", err, context.Canceled)
		}
		synctest.Wait()
		select {
		case err := <-second:
			t.Fatalf("who shared its checkpoint got %v before one was taken", err)
		default:
		}
		<-v.syncs.turn
		if err := <-second; err != nil {
			t.Errorf("who shared its checkpoint got %v", err)
		}
	})
}
