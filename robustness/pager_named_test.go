package robustness

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/pages/region"
)

// TestARegionOutlivesItsPager: with a heap that is kept, whoever maps the name after the pager and the client have died has
// what was synced; and a client that lives goes on with a new pager, with what was synced, what is in its memory, and
// errors for all else: never with an older page.
func TestARegionOutlivesItsPager(t *testing.T) {
	const count, size = 1024, 4096
	addr, dir := "unix:"+filepath.Join(t.TempDir(), "pager"), t.TempDir()
	start := func() *child.Process {
		return proctest.Run(t, "pager", "--listen", addr, "--admin", "127.0.0.1:0", "--disk", dir, "--heap", "regions", "--local", "8MiB", "--size", "64MiB", "--compress")
	}
	kill := func(p *child.Process) {
		p.Kill()
		<-p.Done()
	}
	attach := func() *region.Region {
		r, err := region.Map(t.Context(), addr, count*size, region.Config{Name: "results", Local: 256 << 10, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	page := func(number, version int) []byte {
		b := make([]byte, size)
		if version > 0 {
			binary.LittleEndian.PutUint64(b, uint64(number)+1)
			b[size-1] = byte(version)
		}
		return b
	}
	p := start()
	r := attach()
	versions, changed := make([]int, count), make([]bool, count)
	write := func(number, version int) {
		t.Helper()
		versions[number] = version
		if _, err := r.WriteAt(page(number, version), int64(number)*size); err != nil {
			t.Fatal(err)
		}
	}
	for number := range count / 2 {
		write(number, 1)
	}
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range count / 4 { // what is written now is in the memory, or evicted, but in no checkpoint
		number := random.IntN(count * 3 / 4)
		changed[number] = true
		write(number, random.IntN(3))
	}
	kill(p)
	p = start()
	lost, b := map[int]bool{}, make([]byte, size)
	for number := range count {
		_, err := r.ReadAt(b, int64(number)*size)
		switch {
		case errors.Is(err, region.ErrLost) && changed[number]:
			lost[number] = true
		case err != nil:
			t.Errorf("page %d: %v", number, err)
		case !bytes.Equal(b, page(number, versions[number])):
			t.Errorf("page %d has version %d, want %d", number, b[size-1], versions[number])
		}
	}
	if len(lost) == 0 {
		t.Error("no page was lost: this tests nothing")
	}
	for number := range count {
		if !lost[number] {
			write(number, 7)
		}
	}
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	for number := range count / 4 { // which may be there or not
		if !lost[number] {
			write(number, 8)
		}
	}
	kill(p)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	p = start()
	r = attach()
	if !r.Again() {
		t.Error("the region was not there")
	}
	check := func(want ...int) {
		t.Helper()
		for number := range count {
			_, err := r.ReadAt(b, int64(number)*size)
			if lost[number] { // for good: the heap has an older one
				if !errors.Is(err, region.ErrLost) {
					t.Fatalf("page %d, which was lost, has version %d: %v", number, b[size-1], err)
				}
				continue
			}
			if err != nil || !slices.ContainsFunc(want, func(version int) bool { return bytes.Equal(b, page(number, version)) }) {
				t.Fatalf("page %d has version %d, want one of %v: %v", number, b[size-1], want, err)
			}
		}
	}
	check(7, 8)
	for number := range count {
		if !lost[number] {
			write(number, 9)
		}
	}
	if err := r.Close(); err != nil { // without Sync: the pager lives
		t.Error(err)
	}
	r = attach()
	check(9)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("the pager ended with %v", err)
	}
}
