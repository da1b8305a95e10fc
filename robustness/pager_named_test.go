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

// namedPager returns what starts a pager of a heap on a disk, and what maps its region "results", of size bytes, as often as they are called.
func namedPager(t *testing.T, size int64) (start func() *child.Process, attach func() *region.Region) {
	addr, dir := "unix:"+filepath.Join(t.TempDir(), "pager"), t.TempDir()
	start = func() *child.Process {
		return proctest.Run(t, "pager", "--listen", addr, "--admin", "off", "--disk", dir, "--heap", "regions", "--local", "8MiB", "--size", "64MiB")
	}
	attach = func() *region.Region {
		r, err := region.Map(t.Context(), addr, size, region.Config{Name: "results", Local: 256 << 10, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	return start, attach
}

// TestALaterClientGoesOnWithANewPager: who maps a name, and has not called Sync yet, finds what the client before it has kept
// when the pager dies, and when the next one does, before anything else was kept.
func TestALaterClientGoesOnWithANewPager(t *testing.T) {
	t.Parallel()
	const count, size = 256, 4096
	start, attach := namedPager(t, count*size)
	p := start()
	r := attach()
	for number := range count {
		if _, err := r.WriteAt([]byte{byte(number), 1}, int64(number)*size); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(r.Sync(t.Context()), r.Close()); err != nil {
		t.Fatal(err)
	}
	r = attach()
	for range 2 {
		p.Kill()
		<-p.Done()
		p = start()
		b := make([]byte, 2)
		for number := range count {
			if _, err := r.ReadAt(b, int64(number)*size); err != nil || b[0] != byte(number) || b[1] != 1 {
				t.Fatalf("page %d begins with %v: %v", number, b, err)
			}
		}
	}
	if err := errors.Join(r.Close(), p.Stop()); err != nil {
		t.Error(err)
	}
}

// TestWhatIsLostStaysLost: a page of which a client was told that it is lost does not come back, as it was before, for the client
// after it, though the pager that has told it has died before anything else was kept.
func TestWhatIsLostStaysLost(t *testing.T) {
	t.Parallel()
	const count, size = 256, 4096
	start, attach := namedPager(t, count*size)
	p := start()
	r := attach()
	for version := range byte(2) {
		for number := range count {
			if _, err := r.WriteAt([]byte{version + 1}, int64(number)*size); err != nil {
				t.Fatal(err)
			}
		}
		if version == 0 {
			if err := r.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	kill := func() {
		p.Kill()
		<-p.Done()
	}
	kill()
	p = start()
	var lost []int
	b := make([]byte, 1)
	for number := range count {
		if _, err := r.ReadAt(b, int64(number)*size); errors.Is(err, region.ErrLost) {
			lost = append(lost, number)
		} else if err != nil || b[0] != 2 {
			t.Errorf("page %d begins with %d: %v", number, b[0], err)
		}
	}
	if len(lost) == 0 {
		t.Error("no page was lost: this tests nothing")
	}
	kill()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	p = start()
	r = attach()
	for _, number := range lost {
		if _, err := r.ReadAt(b, int64(number)*size); !errors.Is(err, region.ErrLost) {
			t.Fatalf("page %d, which was lost, begins with %d: %v", number, b[0], err)
		}
	}
	if err := errors.Join(r.Close(), p.Stop()); err != nil {
		t.Error(err)
	}
}

// TestAStandbyTakesAPagersClientsOver: the pager of a heap at nodes is killed, and its standby, which has waited for the heap and for the
// socket, goes on with the mapping: each page is as it was, those that are in the client's memory and those that are at nodes.
func TestAStandbyTakesAPagersClientsOver(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	witnesses := startWitnesses(t)
	_, far := startNodes(t, 3)
	addr := "unix:" + filepath.Join(t.TempDir(), "pager")
	args := named(far, witnesses, "--size", "64MiB")
	p := proctest.Run(t, "pager", append([]string{"--listen", addr, "--admin", "127.0.0.1:0"}, args...)...)
	r, err := region.Map(t.Context(), addr, size, region.Config{Name: "results", Local: 512 << 10, Timeout: 2 * hang})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	fillRegion(r)
	want, b := make([]int, size/4096), make([]byte, 4096) // what each page has been filled with
	for page := range want {
		want[page] = page
	}
	check := func() {
		t.Helper()
		for page, number := range want {
			if _, err := r.ReadAt(b, int64(page)*4096); err != nil {
				t.Fatalf("page %d: %v", page, err)
			}
			if !bytes.HasPrefix(b, pageIs(number)) || !bytes.HasSuffix(b, pageIs(number)) {
				t.Fatalf("page %d has %x, want %x", page, b[:16], pageIs(number))
			}
		}
	}
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	standby := startStandby(t, "pager", addr, args)
	check()
	p.Kill()
	<-p.Done()
	check()
	if p = <-standby; p == nil {
		t.FailNow()
	}
	for page := 0; page < len(want); page += 3 {
		want[page] += len(want)
		copy(b, pageIs(want[page]))
		copy(b[4096-16:], pageIs(want[page]))
		if _, err := r.WriteAt(b, int64(page)*4096); err != nil {
			t.Fatal(err)
		}
	}
	check()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("the pager ended with %v", err)
	}
}
