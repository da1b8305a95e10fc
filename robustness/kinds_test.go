package robustness

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/pages/region"
)

// TestAHeapOfAnotherDaemonIsRefusedAndStays: the heap of a server, of a block device and of a pager is opened by that
// kind of daemon alone. One of another kind says so, and whoever has the heap next finds all that was there.
func TestAHeapOfAnotherDaemonIsRefusedAndStays(t *testing.T) {
	dir, socket := t.TempDir(), "unix:"+filepath.Join(t.TempDir(), "pager")
	args := func(kind, heap string) []string {
		a := []string{kind, "--disk", dir, "--disk-size", "256MiB", "--heap", heap, "--local", "8MiB", "--admin", "off"}
		switch kind {
		case "up":
			return append(a, "--listen", "127.0.0.1:0")
		case "block":
			return append(a, "--size", "16MiB", "--listen", "127.0.0.1:0")
		}
		return append(a, "--size", "64MiB", "--listen", socket)
	}
	start := func(kind string) *child.Process {
		a := args(kind, "of-"+kind)
		return proctest.Run(t, a[0], a[1:]...)
	}
	end := func(p *child.Process) {
		t.Helper()
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	page := []byte(strings.Repeat("page", 1024))
	attach := func() *region.Region {
		r, err := region.Map(t.Context(), socket, 4<<20, region.Config{Name: "results", Local: 256 << 10, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	p := start("up")
	var fields []any
	for i := range 1000 { // more than a hash that lies in one piece has
		fields = append(fields, fmt.Sprint("field:", i), strings.Repeat("v", 100))
	}
	if err := connect(t, p).HSet(t.Context(), "hash", fields...).Err(); err != nil {
		t.Fatal(err)
	}
	end(p)
	p = start("block")
	if err := openDisk(t, p, "polder").do(nbdWrite, nbdFUA, 0, page); err != nil {
		t.Fatal(err)
	}
	end(p)
	p = start("pager")
	r := attach()
	if _, err := r.WriteAt(page, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = r.Close() // what was synced stays
	end(p)

	for _, c := range []struct{ kind, heap, want string }{
		{"block", "of-up", "are no volumes"},
		{"pager", "of-up", "are no volumes"},
		{"up", "of-block", "are no keys"},
		{"pager", "of-block", "polder block"},
		{"up", "of-pager", "are no keys"},
		{"block", "of-pager", "polder pager"},
	} {
		if _, stderr, code := proctest.Output(t, nil, args(c.kind, c.heap)...); code != 1 || !strings.Contains(stderr, c.want) {
			t.Errorf("polder %s with heap %s: got exit code %d, want 1, and %q, want %q in it", c.kind, c.heap, code, stderr, c.want)
		}
	}

	p = start("up")
	if n, err := connect(t, p).HLen(t.Context(), "hash").Result(); err != nil || n != 1000 {
		t.Errorf("the server's hash has %d fields, %v, want 1000", n, err)
	}
	end(p)
	p = start("block")
	b := make([]byte, len(page))
	if err := openDisk(t, p, "polder").do(nbdRead, 0, 0, b); err != nil || string(b) != string(page) {
		t.Errorf("the block device has %.8q, %v, want what was written", b, err)
	}
	end(p)
	start("pager")
	r = attach()
	defer func() { _ = r.Close() }()
	if _, err := r.ReadAt(b, 0); err != nil || string(b) != string(page) {
		t.Errorf("the pager's region has %.8q, %v, want what was written", b, err)
	}
}
