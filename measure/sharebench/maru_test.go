package sharebench

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"polder/share/maru"
	"polder/share/resource"
	"polder/share/server"
)

func TestTheWorkOfMarusClientsIsMeasured(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "maru")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	s, err := server.Start(server.Options{
		Dir: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "s"), MaruDir: filepath.Join(dir, "regions"),
		Pools: []resource.Spec{{Kind: resource.Memfd, Size: 16 << 20}}, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d, err := maru.Start(s, maru.Options{Directory: []string{"tcp://127.0.0.1:0"}, Resources: "127.0.0.1:0", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	addrs, _ := d.Addrs()
	res, err := maruWork(task{Socket: addrs[0], Size: 4 << 10, N: 100, Prefix: "t"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"store", "memcpy", "lookup", "get", "batch", "tcp", "tcp batch"} {
		if res.Series[name].P50 <= 0 {
			t.Errorf("nothing was measured of %q", name)
		}
	}
	if info := s.Info(); info.Keys != 0 || info.Deferred != 0 {
		t.Errorf("%d keys and %d regions are left, want none", info.Keys, info.Deferred)
	}
}
