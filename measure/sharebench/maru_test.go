package sharebench

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"polder/internal/child"
	"polder/share/maru"
	"polder/share/maru/marutest"
	"polder/share/resource"
	"polder/share/server"
)

// startMaru runs a daemon with a door for clients of Maru's protocol, and returns the address of its directory.
func startMaru(t *testing.T) (s *server.Server, addr string) {
	dir, err := os.MkdirTemp("/dev/shm", "maru")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	s, err = server.Start(server.Options{
		Dir: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "s"), MaruDir: filepath.Join(dir, "regions"),
		Pools: []resource.Spec{{Kind: resource.Memfd, Size: 16 << 20}}, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	d, err := maru.Start(s, maru.Options{Directory: []string{"tcp://127.0.0.1:0"}, Resources: "127.0.0.1:0", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	addrs, _ := d.Addrs()
	return s, addrs[0]
}

func TestTheWorkOfMarusClientsIsMeasured(t *testing.T) {
	s, addr := startMaru(t)
	e, err := startEchoes()
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	res, err := maruWork(task{Socket: addr, Size: 4 << 10, N: 100, Prefix: "t", Echoes: e.addrs()})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Series) == 0 {
		t.Fatal("nothing was measured")
	}
	for name, s := range res.Series {
		if s.P50 <= 0 {
			t.Errorf("nothing was measured of %q", name)
		}
	}
	for _, name := range []string{"lookup", "get", "batch"} {
		if whole, served := res.Series[name], res.Series[name+", served"]; served.Total >= whole.Total {
			t.Errorf("of %s the daemon and the network took %v ns, want less than all of %v ns", name, served.Total, whole.Total)
		}
	}
	if info := s.Info(); info.Keys != 0 || info.Deferred != 0 {
		t.Errorf("%d keys and %d regions are left, want none", info.Keys, info.Deferred)
	}
}

func TestAStoreThatFindsItsKeyThereSaysSo(t *testing.T) {
	_, addr := startMaru(t)
	c, err := marutest.Dial(addr, "", "before")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := c.Alloc(4 << 10)
	if err != nil {
		t.Fatal(err)
	}
	work := task{Socket: addr, Size: 4 << 10, N: 2, Prefix: "t"}
	if _, err := c.Register(server.MaruKey{Key: work.key(1), Region: r.ID, Length: r.Length}); err != nil {
		t.Fatal(err)
	}
	if _, err := maruWork(work); err == nil || !strings.HasSuffix(err.Error(), "it is there already") {
		t.Errorf("got %v, want that the key is there", err)
	}
}

func TestWhatRedisRefusesIsSaid(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	r, err := child.StartRedis(t.Context(), "--unixsocket", socket, "--maxmemory", "1")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = redis(task{Socket: socket, Size: 8, N: 1})
	if want := `redis-server answers "-OOM `; err == nil || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), " to SET") {
		t.Errorf("got %v, want %s...", err, want)
	}
}
