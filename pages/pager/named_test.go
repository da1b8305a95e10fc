package pager

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"polder/pages"
	"polder/pages/region"
	"polder/pool/pooltest"
)

// numbered is a page that says which one it is, and how often it was written.
func numbered(page, version int) []byte {
	b := make([]byte, pages.Size)
	binary.LittleEndian.PutUint64(b, uint64(page))
	binary.LittleEndian.PutUint64(b[pages.Size-8:], uint64(version))
	return b
}

func mapNamed(t *testing.T, pager, name string, count int) (*region.Region, error) {
	t.Helper()
	return region.Map(t.Context(), pager, int64(count)*pages.Size, region.Config{Name: name, Local: MinLocal, Timeout: time.Minute})
}

// TestANamedRegionIsThereAgain when its process has gone, with all that it had written; until it is removed.
func TestANamedRegionIsThereAgain(t *testing.T) {
	const count = 512 // of which an eighth is local
	defer func(d time.Duration) { patience = d }(patience)
	patience = 2 * time.Second
	s, addr := newPager(t, 100, Config{Size: count * pages.Size * 3 / 2, Frames: 16 * MinLocal})
	versions := make([]int, count)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 3 {
		r, err := mapNamed(t, addr, "results", count)
		if err != nil {
			t.Fatal(err)
		}
		if r.Again() != (round > 0) {
			t.Errorf("round %d: that the region was there is %v", round, r.Again())
		}
		b := make([]byte, pages.Size)
		for page := range count {
			if _, err := r.ReadAt(b, int64(page)*pages.Size); err != nil || versions[page] > 0 && !bytes.Equal(b, numbered(page, versions[page])) {
				t.Fatalf("round %d: page %d begins with %x, version %d is expected: %v", round, page, b[:8], versions[page], err)
			}
			if random.IntN(2) == 0 {
				versions[page]++
				if _, err := r.WriteAt(numbered(page, versions[page]), int64(page)*pages.Size); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := region.Remove(t.Context(), addr, "results"); err == nil {
			t.Error("a region was removed that a process has")
		}
		if round == 1 {
			patient, cancel := context.WithTimeout(t.Context(), time.Minute)
			if _, err := region.Map(patient, addr, count*pages.Size, region.Config{Name: "results", Local: MinLocal}); !errors.Is(err, region.ErrRefused) {
				t.Errorf("mapping what another process has: %v", err)
			}
			cancel()
			if err := r.Sync(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := mapNamed(t, addr, "results", count/2); !errors.Is(err, region.ErrRefused) {
		t.Errorf("mapping half of a region: %v", err)
	}
	if _, err := mapNamed(t, addr, "other", count); !errors.Is(err, region.ErrRefused) {
		t.Errorf("mapping more than there may be, beside what nobody has mapped: %v", err)
	}
	pooltest.Eventually(t, "the region is removed, once its client has gone", func() bool {
		return region.Remove(t.Context(), addr, "results") == nil
	})
	if err := region.Remove(t.Context(), addr, "results"); err == nil {
		t.Error("a region was removed twice")
	}
	r, err := mapNamed(t, addr, "results", count)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, count*pages.Size)
	if _, err := r.ReadAt(b, 0); err != nil || r.Again() || !bytes.Equal(b, make([]byte, len(b))) {
		t.Errorf("after it was removed there is something: again %v, %v", r.Again(), err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	pooltest.Eventually(t, "the region is removed, once its client has gone", func() bool {
		return region.Remove(t.Context(), addr, "results") == nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size != 0 || s.frames != 0 || len(s.named) != 0 {
		t.Errorf("%d bytes, %d of frames and %d names are left", s.size, s.frames, len(s.named))
	}
}

// TestWithoutANameNothingIsKept, and Sync says so.
func TestWithoutANameNothingIsKept(t *testing.T) {
	_, addr := newPager(t, 20, Config{Size: 1 << 20, Frames: 1 << 20})
	r := mapMemory(t, addr, 1<<20, 1<<20)
	if err := r.Sync(t.Context()); !errors.Is(err, region.ErrRefused) {
		t.Errorf("a region without a name was synced: %v", err)
	}
}
