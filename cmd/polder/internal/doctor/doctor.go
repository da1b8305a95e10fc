// Package doctor looks at what a host offers Polder and says, in words, what
// Polder will do with it. It changes nothing and needs no privilege.
package doctor

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"polder/internal/config"
	"polder/internal/hostmem"
	"polder/memnode"
	"polder/verbs/ibv"
)

// A Report is what was found.
type Report struct {
	Host    Host
	Built   bool       // this program can use RDMA devices
	Devices []ibv.Info // as libibverbs sees them
	Err     error      // why there are none
}

// Host is what the system says.
type Host struct {
	Kernel  string
	CPUs    int
	Memory  *hostmem.Memory // what a process here may use; nil if that is not known
	Memlock uint64          // limit on locked memory in bytes; ^0: none
	Root    bool            // the process runs as root, which Memlock does not limit
	Seen    []string        // RDMA devices that the kernel has, even if this program cannot use them
	Char    bool            // /dev/infiniband is there: programs may use the devices
	Modules []string        // modules for RDMA devices that are loaded
}

// Look reports on this host.
func Look() Report {
	r := Report{Host: look("/"), Built: ibv.Built}
	r.Devices, r.Err = ibv.Devices()
	return r
}

// look looks at the system below root.
func look(root string) Host {
	h := Host{CPUs: runtime.NumCPU(), Root: os.Geteuid() == 0, Kernel: "unknown"}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil {
		h.Memlock = l.Cur
	}
	if m, err := (hostmem.Host{Proc: filepath.Join(root, "proc"), Cgroup: filepath.Join(root, "sys/fs/cgroup")}).Read(); err == nil {
		h.Memory = &m
	}
	h.Seen = entries(filepath.Join(root, "sys/class/infiniband"))
	h.Char = len(entries(filepath.Join(root, "dev/infiniband"))) > 0
	for _, m := range []string{"ib_uverbs", "rdma_rxe", "mlx5_ib", "mlx4_ib", "irdma", "bnxt_re", "siw"} {
		if _, err := os.Stat(filepath.Join(root, "sys/module", m)); err == nil {
			h.Modules = append(h.Modules, m)
		}
	}
	return h
}

// entries lists a directory, which may be missing.
func entries(dir string) (names []string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// Print prints the report for people.
func (r Report) Print(w io.Writer) error {
	var b strings.Builder
	r.host(&b)
	switch {
	case !r.Built:
		r.notBuilt(&b)
	case r.Err != nil:
		fmt.Fprintf(&b, "\nRDMA: %v\n", r.Err)
		r.get(&b)
	case len(r.Devices) == 0:
		b.WriteString("\nRDMA: this host has no device.\n")
		r.get(&b)
	}
	for _, d := range r.Devices {
		device(&b, d)
	}
	b.WriteString("\nWithout RDMA, Polder does all of its work over TCP, and over shared memory on one host:\npolder node, polder serve --far HOST:PORT, polder serve --far unix:PATH.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Report) host(b *strings.Builder) {
	h := r.Host
	fmt.Fprintf(b, "Host: Linux %s, %d processors\n", h.Kernel, h.CPUs)
	if m := h.Memory; m != nil {
		fmt.Fprintf(b, "  memory          %s of %s available, bounded by %s; a node started here now can lend %s\n",
			mib(m.Available), mib(m.Total), m.Bound, mib(m.Spare()))
	}
	switch {
	case h.Memlock == ^uint64(0):
		b.WriteString("  locked memory   no limit\n")
	case h.Root:
		fmt.Fprintf(b, "  locked memory   %s, which does not bind root\n", config.FormatSize(int64(h.Memlock)))
	default:
		fmt.Fprintf(b, "  locked memory   %s: registered memory is locked, so a node can lend no more than that over RDMA;\n"+
			"                  raise it by ulimit -l, /etc/security/limits.conf (memlock), or LimitMEMLOCK= of the service\n",
			config.FormatSize(int64(h.Memlock)))
	}
	seen := "none"
	if len(h.Seen) > 0 {
		seen = strings.Join(h.Seen, ", ")
	}
	fmt.Fprintf(b, "  RDMA devices    %s (of the kernel)\n", seen)
	if len(h.Modules) > 0 {
		fmt.Fprintf(b, "  modules         %s\n", strings.Join(h.Modules, ", "))
	}
	if len(h.Seen) > 0 && !h.Char {
		b.WriteString("  /dev/infiniband is missing, so programs cannot use them: modprobe ib_uverbs\n")
	}
}

func (r Report) notBuilt(b *strings.Builder) {
	b.WriteString("\nRDMA: this program was built without it.\n" +
		"  To have it, install libibverbs-dev (Debian) or rdma-core-devel (Fedora), and build with\n" +
		"      CGO_ENABLED=1 go build -tags ibverbs ./cmd/polder\n")
	if len(r.Host.Seen) == 0 {
		r.get(b)
	}
}

// get says how to get a device.
func (r Report) get(b *strings.Builder) {
	b.WriteString("  A NIC that speaks RoCE v2 or InfiniBand is what makes it fast. To try it without one, Soft-RoCE:\n" +
		"      modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0\n" +
		"  or make test-rdma, which runs everything in virtual machines.\n")
}

func yes(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

func device(b *strings.Builder, d ibv.Info) {
	fmt.Fprintf(b, "\nRDMA device %s", d.Name)
	if d.Known != "" {
		fmt.Fprintf(b, ": %s", d.Known)
	}
	b.WriteByte('\n')
	if d.Err != "" {
		fmt.Fprintf(b, "  it cannot be used: %s\n", d.Err)
		return
	}
	line := func(what, format string, args ...any) {
		fmt.Fprintf(b, "  %-15s %s\n", what, fmt.Sprintf(format, args...))
	}
	firmware := d.Firmware
	if firmware == "" {
		firmware = "none"
	}
	line("identity", "vendor %#06x, part %d, firmware %s", d.Vendor, d.Part, firmware)
	state, link := "down: Polder cannot use it", "InfiniBand"
	if d.PortActive {
		state = "active"
	}
	if d.Ethernet {
		link = "Ethernet"
	}
	line("port 1", "%s, %s; addresses: %s", state, link, strings.Join(d.Addresses, ", "))
	line("limits", "%d queue pairs of %d requests, %d completion queues of %d,", d.MaxQP, d.MaxQPDepth, d.MaxCQ, d.MaxCQDepth)
	line("", "%d regions of up to %s, %d windows, %d SGEs, %d READs outstanding", d.MaxMR, size(d.MaxMRSize), d.MaxMW, d.MaxSGE, d.MaxRdAtom)
	line("windows", "type 1: %s; type 2B: %s; bounds checked: %s", yes(d.Window1), yes(d.Window2B), yes(!d.Quirks.WindowBounds))
	line("atomics", "%s; with the host's own: %s", yes(d.Atomics), yes(d.HostAtomics))

	b.WriteString("  Polder will\n")
	will := func(format string, args ...any) { fmt.Fprintf(b, "    + %s\n", fmt.Sprintf(format, args...)) }
	wont := func(format string, args ...any) { fmt.Fprintf(b, "    - %s\n", fmt.Sprintf(format, args...)) }
	if d.Window2B {
		will("lend and borrow by %s: messages, and a window of type 2B for each chunk (the default)", memnode.RPCMW)
	}
	if d.Window1 && d.Atomics {
		will("lend and borrow by %s: one-sided allocation, and windows of type 1, of which the device has %d", memnode.FineMem, d.MaxMW)
		if !d.HostAtomics {
			will("change the words of %s by the device's atomics on the node too: they are not atomic with the host's own", memnode.FineMem)
		}
	}
	b.WriteString("  Polder will not\n")
	if !d.Window2B {
		wont("lend by %s: the device has no windows of type 2B", memnode.RPCMW)
	}
	if !d.Window1 || !d.Atomics {
		wont("lend by %s: the device has no windows of type 1, or no atomics", memnode.FineMem)
	}
	if !d.Atomics {
		wont("swap and add in far memory: the device has no atomics")
	}
	if d.Quirks.WindowBounds {
		wont("lend by windows to more than one client at a time unless told --trust-clients: the device checks a\n" +
			"      window's key, queue pair and rights but not its bounds, so isolation is by window and not by range")
	}
	wont("lend by %s and %s: no device runs chains of work requests, or allocates, through libibverbs alone",
		memnode.OneSided, memnode.Native)
	wont("give pages back to the system that are lent and not in use: registered memory is pinned")
}

// mib is a size in whole MiB.
func mib(n int64) string { return config.FormatSize(n >> 20 << 20) }

func size(n uint64) string {
	if n >= 1<<60 {
		return "any size"
	}
	return config.FormatSize(int64(n))
}
