// Package swap makes this machine swap to a block device in borrowed memory, and undoes it. It
// starts polder block in a process of its own, and connects the kernel's NBD client to it,
// by the system's tools: nbd-client, mkswap, swapon and swapoff.
//
// The package keeps no record of what it has done. It looks for the servers' sockets in
// Host.Dir, which are called after the devices, and at what the kernel says of its devices and
// its swap. On and Off hold a lock, so that two calls do not take the same device.
package swap

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/scheme"
)

// Host is the machine that swaps.
type Host struct {
	Dir    string // directory of the servers' sockets and logs
	Dev    string // directory of devices, /dev
	Sys    string // directory of what the kernel says of devices and modules, /sys
	Swaps  string // file in which the kernel lists what it swaps to
	Free   string // file that says how much memory the kernel keeps free
	Config string // file that says how the kernel was built, compressed
	Server string // program that serves the device
	Root   bool   // this process runs as root, which swapping takes
}

// Dir is where the sockets and logs of this machine's servers are.
const Dir = "/run/polder/swap"

// This returns the machine that the program runs on.
func This() Host {
	return Host{Dir, "/dev", "/sys", "/proc/swaps", "/proc/sys/vm/min_free_kbytes", "/proc/config.gz", "/proc/self/exe", os.Geteuid() == 0}
}

// Options say what to swap to.
type Options struct {
	Device   string        // such as nbd0; "" is the first that is free
	Priority int           // the kernel swaps to devices of higher priority first
	Args     []string      // the server's arguments, except where it listens
	Timeout  time.Duration // after which the kernel gives up a server that does not answer
}

// connections is how many connections the kernel has to a server. The server handles 16 requests of each at a time.
const connections = 4

const stopTimeout = 15 * time.Second

// tools are the programs that swapping takes, and the Debian packages that have them.
var tools = []struct{ name, of string }{{"nbd-client", "nbd-client"}, {"mkswap", "util-linux"}, {"swapon", "mount"}, {"swapoff", "mount"}}

// missing returns, as an error, what this machine lacks for swapping. It loads the kernel's module if it can.
func (h Host) missing(ctx context.Context) error {
	var lacks []string
	if !h.Root {
		lacks = append(lacks, "it takes root")
	}
	for _, t := range tools {
		if _, err := exec.LookPath(t.name); err != nil {
			lacks = append(lacks, fmt.Sprintf("there is no %s in the path (Debian: apt-get install %s)", t.name, t.of))
		}
	}
	if !h.hasModule() && len(lacks) == 0 {
		err := run(ctx, "modprobe", "nbd")
		if err == nil && !h.hasModule() {
			err = errors.New("it loads nothing")
		}
		if err != nil && h.builtWithout() {
			err = errors.New("it was built without (CONFIG_BLK_DEV_NBD is not set)")
		}
		if err != nil {
			lacks = append(lacks, fmt.Sprintf("the kernel has no NBD client, its module nbd: %v", err))
		}
	}
	if len(lacks) > 0 {
		return errors.New(strings.Join(lacks, "; "))
	}
	return nil
}

// builtWithout reports whether the kernel is known to have been built without the module nbd.
func (h Host) builtWithout() bool {
	f, err := os.Open(h.Config)
	if err != nil {
		return false
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return false
	}
	b, err := io.ReadAll(r)
	return err == nil && bytes.Contains(b, []byte("\n# CONFIG_BLK_DEV_NBD is not set\n"))
}

func (h Host) hasModule() bool { return exists(filepath.Join(h.Sys, "module/nbd")) }

// connected reports whether a device has a server.
func (h Host) connected(device string) bool {
	return exists(filepath.Join(h.Sys, "block", device, "pid"))
}

// free chooses a device that nobody uses.
func (h Host) free(device string) (string, error) {
	if device != "" {
		switch {
		case !exists(filepath.Join(h.Sys, "block", device)):
			return "", fmt.Errorf("there is no device %s", device)
		case h.connected(device):
			return "", fmt.Errorf("device %s is in use", device)
		}
		return device, nil
	}
	n := 0
	for ; exists(filepath.Join(h.Sys, "block", fmt.Sprint("nbd", n))); n++ {
		if device = fmt.Sprint("nbd", n); !h.connected(device) {
			return device, nil
		}
	}
	return "", fmt.Errorf("there are %d devices, and all of them are in use: modprobe nbd nbds_max=N makes N", n)
}

// leastFree is how much memory the kernel should keep free, in KiB. While memory is short, the server
// may use a part of it.
const leastFree = 64 << 10

// Warn returns a warning if the kernel keeps so little memory free that the machine may hang, and "" otherwise.
func (h Host) Warn() (string, error) {
	b, err := os.ReadFile(h.Free)
	if err != nil {
		return "", fmt.Errorf("cannot tell how much memory the kernel keeps free: %w", err)
	}
	kib, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return "", fmt.Errorf("cannot tell how much memory the kernel keeps free: %w", err)
	}
	if kib >= leastFree {
		return "", nil
	}
	return fmt.Sprintf("the kernel keeps %d KiB free, with which the machine may hang when memory is short: sysctl vm.min_free_kbytes=%d", kib, leastFree), nil
}

// On makes the kernel swap to a device, and returns the device's path. If a step fails, the steps
// before it are undone.
func (h Host) On(ctx context.Context, o Options) (path string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot swap to borrowed memory: %w", err)
		}
	}()
	if err := h.missing(ctx); err != nil {
		return "", err
	}
	unlock, err := h.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	device, err := h.free(o.Device)
	if err != nil {
		return "", err
	}
	path = filepath.Join(h.Dev, device)
	defer func() {
		if err != nil {
			err = errors.Join(err, h.undo(context.WithoutCancel(ctx), device))
		}
	}()
	if err := h.start(ctx, device, o.Args); err != nil {
		return "", err
	}
	timeout := max(1, int(o.Timeout/time.Second))
	for _, step := range [][]string{
		{"nbd-client", "-unix", h.socket(device), path, "-N", "polder", "-C", strconv.Itoa(connections), "-b", "4096", "-t", strconv.Itoa(timeout)},
		{"mkswap", path},
		{"swapon", "--discard=pages", "-p", strconv.Itoa(o.Priority), path},
	} {
		if err := run(ctx, step[0], step[1:]...); err != nil {
			return "", err
		}
	}
	return path, nil
}

// Off makes the kernel stop swapping to a device that On has made, and ends the device's server. If
// device is "", it takes the only device. The kernel brings back what was swapped out, which needs
// enough free memory.
func (h Host) Off(ctx context.Context, device string) (path string, err error) {
	unlock, err := h.lock()
	if err != nil {
		return "", fmt.Errorf("cannot stop swapping: %w", err)
	}
	defer unlock()
	devices, err := h.devices()
	switch {
	case err != nil:
	case device == "" && len(devices) > 1:
		err = fmt.Errorf("there are several devices, %s: --nbd says which", strings.Join(devices, " and "))
	case device == "" && len(devices) == 1:
		device = devices[0]
	case !slices.Contains(devices, device):
		err = errors.New("there is no such device of polder swap on")
	}
	if err == nil {
		err = h.undo(ctx, device)
	}
	if err != nil {
		return "", fmt.Errorf("cannot stop swapping: %w", err)
	}
	return filepath.Join(h.Dev, device), nil
}

// undo undoes whatever was done for a device. If the kernel cannot stop swapping to it, undo leaves
// the rest as it is.
func (h Host) undo(ctx context.Context, device string) error {
	path := filepath.Join(h.Dev, device)
	list, err := h.swaps()
	if err != nil {
		return err
	}
	if _, on := list[path]; on {
		if err := run(ctx, "swapoff", path); err != nil {
			return fmt.Errorf("%w: it is still in use", err)
		}
	}
	if h.connected(device) {
		if err := run(ctx, "nbd-client", "-d", path); err != nil {
			return err
		}
	}
	if err := h.stop(device); err != nil {
		return err
	}
	return errors.Join(remove(h.socket(device)), remove(h.log(device)))
}

// lock makes the directory, and keeps other calls of On and Off out. It locks a file beside the
// directory, not the directory: a server locks that while it makes its socket.
func (h Host) lock() (unlock func(), err error) {
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(h.Dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another polder swap is at work: cannot lock %s: %w", f.Name(), err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

const socketSuffix = ".sock"

func (h Host) socket(device string) string { return filepath.Join(h.Dir, device+socketSuffix) }
func (h Host) log(device string) string    { return filepath.Join(h.Dir, device+".log") }

// devices returns the devices that On has made: those that have a socket.
func (h Host) devices() (list []string, err error) {
	files, err := os.ReadDir(h.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		if device, ok := strings.CutSuffix(f.Name(), socketSuffix); ok {
			list = append(list, device)
		}
	}
	return list, nil
}

// start starts a server and waits until it is ready. The server outlives this process.
func (h Host) start(ctx context.Context, device string, args []string) error {
	out, err := os.OpenFile(h.log(device), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	ready, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := exec.Command(h.Server, append(slices.Clone(args), "--listen", scheme.Unix+h.socket(device), "--ready-file", "/dev/fd/3")...)
	// The server's configuration is in args.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "POLDER_") })
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = out, out, []*os.File{write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = write.Close() // the server has its own
	if err != nil {
		return err
	}
	end := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer end()
	var addrs map[string]string
	if err := json.NewDecoder(ready).Decode(&addrs); err != nil { // the server has ended
		_ = cmd.Wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		said, _ := os.ReadFile(h.log(device))
		return fmt.Errorf("its server ended: %s", lastWords(said, "polder: "))
	}
	return cmd.Process.Release()
}

// lastWords is the last line that a program has written, without the prefix who.
func lastWords(said []byte, who string) string {
	lines := bytes.Split(bytes.TrimSpace(said), []byte("\n"))
	return strings.TrimPrefix(string(lines[len(lines)-1]), who)
}

// server is the process that listens at a device's socket; 0 if nobody does.
func (h Host) server(device string) (pid int, err error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: h.socket(device), Net: "unix"})
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	if e := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return 0, errors.Join(e, err)
	}
	return int(peer.Pid), nil
}

// stop ends the server of a device, if there is one, and waits for its end.
func (h Host) stop(device string) error {
	pid, err := h.server(device)
	if err != nil || pid == 0 {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("cannot end the server, process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil && err != unix.ESRCH {
			return fmt.Errorf("cannot end the server, process %d: %w", pid, err)
		}
		if ended(fd, stopTimeout) {
			return nil
		}
	}
	return fmt.Errorf("the server, process %d, does not end", pid)
}

// ended waits until the process of a descriptor has ended.
func ended(fd int, timeout time.Duration) bool {
	for limit := time.Now().Add(timeout); ; {
		left := time.Until(limit)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(left, 0)/time.Millisecond))
		if err != unix.EINTR || left <= 0 {
			return n == 1
		}
	}
}

// Device is a device that On has made.
type Device struct {
	Path       string
	Server     int   // the process of its server, 0 if that has ended
	On         bool  // the kernel swaps to the device
	Size, Used int64 // bytes
	Priority   int
}

// Status lists the devices that On has made.
func (h Host) Status() ([]Device, error) {
	devices, err := h.devices()
	if err != nil {
		return nil, fmt.Errorf("cannot list what is swapped to: %w", err)
	}
	on, err := h.swaps()
	if err != nil {
		return nil, fmt.Errorf("cannot list what is swapped to: %w", err)
	}
	var list []Device
	for _, name := range devices {
		d := on[filepath.Join(h.Dev, name)]
		d.Path = filepath.Join(h.Dev, name)
		if d.Server, err = h.server(name); err != nil {
			return nil, fmt.Errorf("cannot list what is swapped to: %w", err)
		}
		list = append(list, d)
	}
	return list, nil
}

var swapLine = regexp.MustCompile(`(?m)^(\S+)\s+\S+\s+(\d+)\s+(\d+)\s+(-?\d+)$`)

// swaps are what the kernel swaps to, by path.
func (h Host) swaps() (map[string]Device, error) {
	b, err := os.ReadFile(h.Swaps)
	if err != nil {
		return nil, err
	}
	list := map[string]Device{}
	for _, m := range swapLine.FindAllStringSubmatch(string(b), -1) {
		d := Device{Path: m[1], On: true}
		for i, v := range []*int64{&d.Size, &d.Used} {
			kib, err := strconv.ParseInt(m[2+i], 10, 53)
			if err != nil {
				return nil, err
			}
			*v = kib << 10
		}
		if d.Priority, err = strconv.Atoi(m[4]); err != nil {
			return nil, err
		}
		list[d.Path] = d
	}
	return list, nil
}

// run runs a tool. If the tool fails, the error has the last line that it has written.
func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", strings.Join(append([]string{name}, args...), " "), err)
	if said := lastWords(out, name+": "); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// remove removes a file, if it is there.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
