//go:build guests

package swap

import (
	"flag"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/robustness/rdma/plan"
	"polder/robustness/rdma/vm"
)

// How often the guest swaps under pressure.
var (
	runs   = flag.Int("swap.runs", 5, "how often the guest swaps under pressure")
	within = flag.Duration("swap.within", 12*time.Hour, "how long after the first run others may begin, or that a benchmark may take")
	long   = flag.Bool("swap.long", false, "run benchmarks as long as they are outside a guest")
	kernel = flag.String("swap.kernel", "", "the `file` of the package of the guest's kernel, instead of the distribution's")
)

func TestMain(m *testing.M) {
	flag.Parse()
	proctest.Main(m)
}

// modules are what a guest needs of its kernel. crc32c_generic is first: ext4 asks for it by
// what it does.
var modules = []string{"crc32c_generic", "virtio_pci", "virtio_net", "nbd", "ext4", "zram"}

// tools are the programs of the system that the guest uses.
var tools = []string{"nbd-client", "mkswap", "swapon", "swapoff", "mkfs.ext4", "e2fsck"}

// config is a guest that runs the program inside with these arguments.
func config(t testing.TB, timeout time.Duration, args ...string) vm.Config {
	t.Helper()
	cache, err := vm.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	say := func(s string) { t.Log(s) }
	kept := "kernel-swap"
	if *kernel != "" {
		kept += "-given"
	}
	k, err := vm.OpenKernel(t.Context(), filepath.Join(cache, kept), *kernel, modules, say)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	init, err := vm.BuildInit(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(dir, "inside")
	if err := vm.Build(t.Context(), inside, "polder/robustness/swap/inside", []string{"CGO_ENABLED=0"}, "build"); err != nil {
		t.Fatal(err)
	}
	c := vm.Config{
		Name: args[0], Kernel: k, Init: init, MemoryMiB: 768, Host: true,
		Files:   map[string]string{"/bin/inside": inside, "/bin/polder": proctest.Binary()},
		Timeout: timeout + 10*time.Second, BootTimeout: 5 * time.Minute, // which takes 4 s where nothing else runs
		Console: say,
	}
	for _, name := range tools {
		addTool(t, c.Files, name)
	}
	c.Plan.Steps = []plan.Step{{Name: args[0], Args: append([]string{"/bin/inside"}, args...), Timeout: timeout}}
	return c
}

var library = regexp.MustCompile(`(/\S+) \(0x`)

// addTool adds a program of this system, and the libraries that it is linked with.
func addTool(t testing.TB, files map[string]string, name string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	files["/bin/"+name] = path
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", path, err)
	}
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		files[m[1]] = m[1]
	}
}

// node starts a node on this host, and returns where the guest finds it.
func node(t *testing.T, lend string) (*child.Process, string) {
	t.Helper()
	p := proctest.Start(t, "node", "--listen", "127.0.0.1:0", "--lend", lend) // the guest reaches no other address
	_, port, err := net.SplitHostPort(p.Addr("verbs"))
	if err != nil {
		t.Fatal(err)
	}
	return p, net.JoinHostPort(vm.HostAddress, port)
}

// pass boots a guest that has to pass.
func pass(t testing.TB, c vm.Config) {
	t.Helper()
	g, err := vm.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if res := g.Wait(); res.Err != nil {
		t.Fatal(res.Err)
	}
}

// TestTheKernelHasAFileSystemOnIt: mkfs, a soak, fsck.
func TestTheKernelHasAFileSystemOnIt(t *testing.T) {
	_, addr := node(t, "512MiB")
	pass(t, config(t, 5*time.Minute, "disk", addr))
}

// TestTheGuestSwapsUnderPressure: no page has other bytes, and nothing hangs.
func TestTheGuestSwapsUnderPressure(t *testing.T) {
	_, addr := node(t, "1GiB")
	const longest = 10 * time.Minute // that a run takes
	pass(t, config(t, min(time.Duration(*runs)*longest, *within+longest), "pressure", addr, strconv.Itoa(*runs), strconv.Itoa(int(within.Seconds()))))
}

// TestANodeOfTwoIsKilledUnderPressure: no page has other bytes, none is lost, and nothing hangs.
func TestANodeOfTwoIsKilledUnderPressure(t *testing.T) {
	_, first := node(t, "1GiB")
	victim, second := node(t, "1GiB")
	c := config(t, 10*time.Minute, "lose", first+","+second)
	var once sync.Once
	killed := false
	c.Event = func(e plan.Event) {
		if e.Kind == plan.Asked {
			once.Do(func() { victim.Kill(); killed = true })
		}
	}
	pass(t, c)
	if !killed {
		t.Error("no node was killed")
	}
}

// TestTheServerIsKilledUnderPressure: a program whose pages are gone is told so by SIGBUS, and the guest lives.
func TestTheServerIsKilledUnderPressure(t *testing.T) {
	_, addr := node(t, "1GiB")
	pass(t, config(t, 5*time.Minute, "kill", addr))
}

// BenchmarkKernelSwap runs those benchmarks of polder in a guest that compare it with the kernel's swapping, which takes a kernel
// that swaps to zram and over NBD: everything that is compared is in the guest, the nodes as well.
func BenchmarkKernelSwap(b *testing.B) {
	for _, bench := range []struct {
		name string
		args []string
		rows []string // the last that are printed for a disk that the kernel swaps to
	}{
		{"pages", []string{"pages"}, []string{"zram, hash join", "NBD, hash join"}},
		{"paging", []string{"far", "paging"}, []string{"kernel swap, zram", "kernel swap, NBD"}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			c := config(b, *within, bench.name)
			args := append([]string{"/bin/polder", "bench"}, bench.args...)
			if !*long {
				args = append(args, "-short")
			}
			c.Plan.Steps[0].Args, c.MemoryMiB = args, 2560
			c.CPUs = 1 // so that what is measured is what everybody has to do, and not how QEMU has two of them wait for each other
			var out strings.Builder
			c.Console = func(line string) {
				fmt.Println(line)
				fmt.Fprintln(&out, line)
			}
			pass(b, c)
			for _, row := range bench.rows {
				if !strings.Contains(out.String(), row) {
					b.Errorf("there is no row %q", row)
				}
			}
		})
	}
}
