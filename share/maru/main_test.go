package maru

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/share"
	"polder/share/maru/marutest"
	"polder/share/resource"
	"polder/share/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// patience bounds what should happen at all.
const patience = time.Minute

// house is a daemon with a door.
type house struct {
	*server.Server
	*Door
	opt     server.Options
	doorOpt Options
	tcp     string
	ipc     string
	rm      string
}

// build starts a daemon and a door, and ends them with the test.
func build(t testing.TB, change func(*server.Options, *Options)) *house {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "maru")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &house{
		opt: server.Options{
			Dir: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "s"), MaruDir: filepath.Join(dir, "regions"),
			Pools: []resource.Spec{{Kind: resource.Memfd, Size: 64 << 20}}, Tick: 5 * time.Millisecond, Log: quiet,
			SegmentSize: 256 << 10, Late: 30 * time.Second, // a loaded machine is slow
		},
		doorOpt: Options{
			Directory: []string{"tcp://127.0.0.1:0", "ipc://" + dir + "/maru"}, Resources: "127.0.0.1:0", Log: quiet, Late: 30 * time.Second,
		},
	}
	if change != nil {
		change(&h.opt, &h.doorOpt)
	}
	h.start(t)
	t.Cleanup(h.stop)
	return h
}

func (h *house) start(t testing.TB) {
	t.Helper()
	var err error
	if h.Server, err = server.Start(h.opt); err != nil {
		t.Fatal(err)
	}
	if h.Door, err = Start(h.Server, h.doorOpt); err != nil {
		h.Server.Close()
		t.Fatal(err)
	}
	directory, rm := h.Addrs()
	h.tcp, h.ipc, h.rm = directory[0], directory[1], rm
	h.doorOpt.Directory[0], h.doorOpt.Resources = h.tcp, rm // the same, when it is started again
}

func (h *house) stop() {
	h.Door.Close()
	h.Server.Close()
}

func (h *house) restart(t testing.TB) {
	t.Helper()
	h.stop()
	h.start(t)
}

func (h *house) dial(t testing.TB, addr, identity, instance string) *marutest.Client {
	t.Helper()
	c, err := marutest.Dial(addr, identity, instance)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// native opens a client of the library.
func (h *house) native(t testing.TB) *share.Client {
	t.Helper()
	c, err := share.Open(context.Background(), share.Config{Socket: h.opt.Socket, PageSize: 4096, RegionSize: 16384})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// owner is a client with a mapped region.
type owner struct {
	*marutest.Client
	region server.MaruRegion
	mem    []byte
}

func (h *house) owner(t testing.TB, addr, identity, instance string, size int64) *owner {
	t.Helper()
	o := &owner{Client: h.dial(t, addr, identity, instance)}
	var err error
	if o.region, err = o.Alloc(size); err != nil {
		t.Fatal(err)
	}
	if o.mem, err = o.Map(o.region); err != nil {
		t.Fatal(err)
	}
	return o
}

// store fills a place and registers a key for it.
func (o *owner) store(t testing.TB, key string, at int64, value string) {
	t.Helper()
	copy(o.mem[at:], value)
	isNew, err := o.Register(server.MaruKey{Key: key, Region: o.region.ID, Offset: at, Length: int64(len(value))})
	if err != nil || !isNew {
		t.Fatalf("registering %q: got new %v, %v, want new", key, isNew, err)
	}
}

// want looks a key up, and compares its bytes; "" stands for a miss.
func want(t testing.TB, c *marutest.Client, key, value string) {
	t.Helper()
	b, err := c.Get(key)
	if err != nil || string(b) != value {
		t.Fatalf("%q: got %q, %v, want %q", key, b, err, value)
	}
}

func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came about that %s", what)
		}
	}
}
