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
	e, err := startEchoes()
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	res, err := maruWork(task{Socket: addrs[0], Size: 4 << 10, N: 100, Prefix: "t", Echoes: e.addrs()})
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
