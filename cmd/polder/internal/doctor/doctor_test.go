package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"polder/internal/hostmem"
	"polder/verbs/ibv"
)

func printed(t *testing.T, r Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func wants(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("the report does not say %q:\n%s", part, text)
		}
	}
}

func TestWithoutRDMAItSaysHowToGetIt(t *testing.T) {
	wants(t, printed(t, Report{Err: errors.New("built without")}), "built without it", "-tags ibverbs", "libibverbs-dev", "rdma_rxe", "over TCP")
	wants(t, printed(t, Report{Built: true}), "this host has no device", "rdma_rxe")
	wants(t, printed(t, Report{Built: true, Err: errors.New("no such module")}), "no such module")
}

func TestADeviceThatDoesNotCheckBoundsIsNamed(t *testing.T) {
	d := ibv.Info{Name: "rxe0", Known: "Soft-RoCE", PortActive: true, Ethernet: true, Addresses: []string{"10.0.0.1"},
		Window1: true, Window2B: true, Atomics: true, MaxMRSize: 1 << 30}
	d.Quirks.WindowBounds = true
	text := printed(t, Report{Built: true, Devices: []ibv.Info{d}})
	wants(t, text, "RDMA device rxe0: Soft-RoCE", "10.0.0.1", "bounds checked: no", "--trust-clients", "1GiB", "lend and borrow by rpcmw", "lend and borrow by finemem",
		"by the device's atomics on the node too")
	d.Quirks.WindowBounds = false
	if text := printed(t, Report{Built: true, Devices: []ibv.Info{d}}); strings.Contains(text, "--trust-clients") {
		t.Errorf("a device that checks bounds is suspected:\n%s", text)
	}
	d.Window2B, d.Atomics, d.PortActive = false, false, false
	wants(t, printed(t, Report{Built: true, Devices: []ibv.Info{d}}), "lend by finemem: the device has no windows of type 1, or no atomics", "no windows of type 2B", "no atomics", "down: Polder cannot use it")
	wants(t, printed(t, Report{Built: true, Devices: []ibv.Info{{Name: "mlx5_0", Err: "no permission"}}}), "cannot be used: no permission")
}

func TestLimitsAreExplained(t *testing.T) {
	h := Host{Kernel: "6.1", CPUs: 2, Memlock: 8 << 20, Seen: []string{"mlx5_0"}}
	wants(t, printed(t, Report{Host: h, Built: true}), "8MiB", "limits.conf", "mlx5_0", "modprobe ib_uverbs")
	h.Root = true
	wants(t, printed(t, Report{Host: h, Built: true}), "does not bind root")
	h.Memory = &hostmem.Memory{Total: 300 << 20, Available: 290 << 20, Bound: "the control group /pod"}
	wants(t, printed(t, Report{Host: h, Built: true}), "290MiB of 300MiB available, bounded by the control group /pod; a node started here now can lend 226MiB")
	h.Memlock = ^uint64(0)
	wants(t, printed(t, Report{Host: h, Built: true}), "no limit")
}

func TestLookReadsTheSystem(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"sys/class/infiniband/rxe0", "sys/module/rdma_rxe", "dev/infiniband"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := look(root)
	if len(h.Seen) != 1 || h.Seen[0] != "rxe0" || len(h.Modules) != 1 || h.Modules[0] != "rdma_rxe" || h.Char {
		t.Errorf("got %+v, want rxe0, rdma_rxe, and no character device in an empty directory", h)
	}
	if h.Kernel == "unknown" || h.CPUs < 1 {
		t.Errorf("got %+v, want the kernel and the processors", h)
	}
}
