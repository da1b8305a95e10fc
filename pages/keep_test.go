package pages

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"polder/far"
	"polder/far/disk"
)

// openKept opens the volume that a directory has.
func openKept(t *testing.T, dir string, size int64) (*Volume, *far.Heap, func()) {
	t.Helper()
	return openOn(t, disk.Config{Dir: dir}, size)
}

// openOn is openKept of what is on a disk.
func openOn(t *testing.T, cfg disk.Config, size int64) (*Volume, *far.Heap, func()) {
	t.Helper()
	s, err := disk.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h, err := far.Open(t.Context(), s, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	vs, err := Open(h, Config{Compress: size/Size%2 == 1}) // pages of both kinds are read with and without it
	if err != nil {
		t.Fatal(err)
	}
	v, err := vs.Volume("pages", size)
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
			few := byte(r.Uint32() | 3) // so that some pages can be made smaller
			for i := range want[off:][:n] {
				want[int(off)+i] = byte(r.Uint32()) & few
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
		v.of.syncs.turn <- struct{}{} // another checkpoint is taken
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
		<-v.of.syncs.turn
		if err := <-second; err != nil {
			t.Errorf("who shared its checkpoint got %v", err)
		}
	})
}

// TestVolumesAreOpenedAgainByName: each of several is there again with what it had, also after a heap was open that none of
// them was opened in, and one that was freed is not.
func TestVolumesAreOpenedAgainByName(t *testing.T) {
	dir := t.TempDir()
	open := func() (*Volumes, *far.Heap, func()) {
		s, err := disk.Open(disk.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		h, err := far.Open(t.Context(), s, far.Config{Local: far.MinLocal})
		if err != nil {
			t.Fatal(err)
		}
		vs, err := Open(h, Config{})
		if err != nil {
			t.Fatal(err)
		}
		return vs, h, func() {
			if err := errors.Join(h.Close(), s.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	names := []string{"a", "b", "c"}
	vs, _, closeAll := open()
	for i, name := range names {
		v, err := vs.Volume(name, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Write(t.Context(), bytes.Repeat([]byte(name), 2*Size), int64(i)*Size); err != nil {
			t.Fatal(err)
		}
		if _, err := vs.Volume(name, 1<<20); !errors.Is(err, ErrOpen) {
			t.Errorf("opening a volume that is open: %v", err)
		}
		if name == "c" {
			v.Free()
			v.Free()
		}
	}
	closeAll()
	_, h, closeAll := open() // nobody opens one
	if err := h.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	closeAll()
	vs, _, closeAll = open()
	defer closeAll()
	if saved := vs.Saved(); len(saved) != 2 || saved["a"] != 1<<20 || saved["b"] != 1<<20 {
		t.Errorf("the heap has kept %v", saved)
	}
	for i, name := range names {
		v, err := vs.Volume(name, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		got, want := make([]byte, 1<<20), make([]byte, 1<<20)
		if name != "c" {
			copy(want[i*Size:], bytes.Repeat([]byte(name), 2*Size))
		}
		if err := v.Read(t.Context(), got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("volume %s: %v, or other bytes than were written", name, err)
		}
	}
}

// TestTheVolumeOfAnOlderVersionIsOpened, whatever the name is that it is opened by, and what cannot be read is refused.
func TestTheVolumeOfAnOlderVersionIsOpened(t *testing.T) {
	v, _, closeAll := openKept(t, t.TempDir(), 1<<20)
	defer closeAll()
	if err := v.Write(t.Context(), []byte("something"), 5*Size); err != nil {
		t.Fatal(err)
	}
	old := v.kept.append(binary.LittleEndian.AppendUint64([]byte{stateOfOne}, 1<<20))
	vs := &Volumes{saved: map[string]saved{}}
	if err := vs.load(old); err != nil {
		t.Fatal(err)
	}
	again := &Volume{size: 2 << 20, kept: newPresent(2 << 20 / Size)}
	if err := again.load(vs.saved[""]); err != nil || !again.kept.has(5) || again.kept.count.Load() != 1 {
		t.Errorf("%v, or other pages than it had", err)
	}
	vs.heap, vs.open = v.of.heap, map[string]*Volume{}
	if _, err := vs.Volume("renamed", 1<<19); err == nil {
		t.Error("a volume of 1 MiB was opened as one of 512 KiB")
	}
	if w, err := vs.Volume("renamed", 1<<20); err != nil || !w.kept.has(5) {
		t.Errorf("after it was opened in vain: %v, or the volume has lost its pages", err)
	}
	s := v.of.state()
	s.Thaw()
	if err := (&Volumes{saved: map[string]saved{}}).load(s.Bytes); err != nil {
		t.Error(err)
	}
	one := func(size uint64, chunks ...byte) []byte {
		return append(binary.LittleEndian.AppendUint64([]byte{stateOfOne}, size), chunks...)
	}
	for _, b := range [][]byte{{3}, {stateOfOne, 1}, one(0), one(Size + 1), one(MaxVolume + Size), one(1<<63 + Size), one(1<<20, 1), s.Bytes[:len(s.Bytes)-1], append(s.Bytes[:len(s.Bytes):len(s.Bytes)], 0), {stateOfAll, 1, 0, 5, 0, 'x'}} {
		if err := (&Volumes{saved: map[string]saved{}}).load(b); err == nil {
			t.Errorf("%d bytes that are no volumes were taken for some", len(b))
		}
	}
}

// FuzzState: whatever a checkpoint has, it is refused or opened.
func FuzzState(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		vs := &Volumes{saved: map[string]saved{}}
		if vs.load(b) != nil {
			return
		}
		for _, s := range vs.saved {
			v := &Volume{size: 1 << 30, kept: newPresent(1 << 30 / Size)}
			_ = v.load(s)
		}
	})
}

// TestDiscardingMakesRoomInAFullStore, of whose segments not much is dead then: pages count as more than they take.
func TestDiscardingMakesRoomInAFullStore(t *testing.T) {
	v, _, closeAll := openOn(t, disk.Config{Dir: t.TempDir(), SegmentSize: 128 << 10, Size: 24 << 20}, 64<<20)
	defer closeAll()
	page := make([]byte, Size)
	rand.NewChaCha8([32]byte{1}).Read(page)
	n, err := int64(0), error(nil)
	for ; err == nil; n++ {
		err = v.Write(t.Context(), page, n*Size)
	}
	if !errors.Is(err, far.ErrStoreFull) {
		t.Fatalf("writing more than there is room for: %v", err)
	}
	for i := int64(0); i < n; i += 8 {
		if err := v.Discard(t.Context(), i*Size, Size); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second) // those who have found the store full do not look again before
	for i := int64(0); i < n*3/4; i += 8 {
		if err := v.Write(t.Context(), page, i*Size); err != nil {
			t.Fatalf("writing page %d of %d after an eighth was discarded: %v", i, n, err)
		}
	}
}
