package share_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"polder/share"
	"polder/share/resource"
	"polder/share/server"
)

const hugePages = "/sys/kernel/mm/hugepages/hugepages-2048kB/"

func readInt(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// reserveHugePages sets n huge pages aside until the test ends, and reports
// whether it could: that takes a privilege, and memory in one piece.
func reserveHugePages(t *testing.T, n int) bool {
	t.Helper()
	path := hugePages + "nr_hugepages"
	if _, err := os.Stat(path); err != nil {
		return false
	}
	before := readInt(t, path)
	if err := os.WriteFile(path, []byte(strconv.Itoa(before+n)), 0); err != nil {
		return false
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, []byte(strconv.Itoa(readInt(t, path)-n)), 0); err != nil {
			t.Errorf("cannot give huge pages back: %v", err)
		}
	})
	return readInt(t, hugePages+"free_hugepages") >= n
}

// TestHugePages has keys in huge pages, where the machine lets the test
// reserve some; elsewhere, it wants an error that says what is missing.
func TestHugePages(t *testing.T) {
	reserved := reserveHugePages(t, 3)
	s, opt := startDaemon(t, func(o *server.Options) {
		o.Pools = []resource.Spec{{Kind: resource.Hugetlb, Size: 6 << 20}}
	})
	c := open(t, opt.Socket, func(cfg *share.Config) { cfg.PageSize, cfg.RegionSize = 1<<20, 4<<20 })
	if !reserved {
		t.Log("no huge pages can be had here: only the error is tested")
		if _, err := c.Alloc(t.Context()); err == nil {
			return // somebody else has reserved some
		} else if !errors.Is(err, share.ErrFull) {
			t.Fatalf("got %v, want %v", err, share.ErrFull)
		}
		return
	}
	free := readInt(t, hugePages+"free_hugepages")
	want := strings.Repeat("in a huge page. ", 1<<16)
	for i := range 4 {
		put(t, c, fmt.Sprint(i), want)
	}
	if got := readInt(t, hugePages+"free_hugepages"); got != free-2 {
		t.Errorf("a region of 4 MiB has taken %d huge pages, want 2", free-got)
	}
	// The pool has room for another page, and not for another region.
	if _, err := c.Alloc(t.Context()); !errors.Is(err, share.ErrFull) {
		t.Fatalf("got %v, want %v", err, share.ErrFull)
	}
	r := open(t, opt.Socket, nil)
	for i := range 4 {
		wantValue(t, r, fmt.Sprint(i), want)
	}
	v := mustGet(t, r, "3")
	for i := range 4 {
		if err := c.Delete(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := string(v.Bytes()); got != want {
		t.Errorf("a view after its key and its owner are gone: got %.20q", got)
	}
	if err := errors.Join(v.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the huge pages are free again", func() bool {
		return s.Info().Regions == 0 && readInt(t, hugePages+"free_hugepages") == free
	})
}

func TestHugePagesThatTheKernelHasNot(t *testing.T) {
	s, opt := startDaemon(t, func(o *server.Options) {
		// More than any machine sets aside for tests.
		o.Pools = []resource.Spec{{Kind: resource.Hugetlb, Size: 1 << 40}}
	})
	c := open(t, opt.Socket, func(cfg *share.Config) { cfg.PageSize, cfg.RegionSize = 1<<30, 1<<39 })
	if _, err := c.Alloc(t.Context()); !errors.Is(err, share.ErrFull) {
		t.Fatalf("got %v, want %v", err, share.ErrFull)
	}
	if info := s.Info(); info.Regions != 0 || info.Pools[0].Free != info.Pools[0].Size {
		t.Fatalf("after the failure: %d regions, %d of %d bytes free", info.Regions, info.Pools[0].Free, info.Pools[0].Size)
	}
}
