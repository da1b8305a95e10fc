// Command guestinit is the first process of a guest: it mounts what every
// program expects, loads modules, creates the Soft-RoCE device, carries out the
// plan and tells QEMU how that went.
//
// It is process 1: if it dies, the kernel panics and QEMU exits with a code
// that is not a pass.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"polder/robustness/rdma/plan"
	"polder/robustness/rdma/steps"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guestinit: this is the first process of a guest, and does nothing elsewhere")
		os.Exit(2)
	}
	code := plan.PassCode
	if err := run(); err != nil {
		fmt.Printf("guest failed: %v\n", err)
		code = plan.FailCode
	}
	err := exit(code)
	fmt.Printf("guest cannot tell its exit code: %v\n", err)
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	if err := mountAll(); err != nil {
		return err
	}
	p, err := plan.Read()
	if err != nil {
		return err
	}
	port, err := os.OpenFile(plan.EventPort, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("cannot open the port for events: %w", err)
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return fmt.Errorf("cannot set host name %q: %w", p.Hostname, err)
	}
	for _, m := range p.Modules {
		if err := loadModule(m); err != nil {
			return err
		}
	}
	if err := network(p); err != nil {
		return err
	}
	if err := (plan.Event{Kind: plan.Booted}).Emit(port); err != nil {
		return err
	}
	r := &steps.Runner{
		Env:    append([]string{"PATH=/bin", "HOME=/tmp", "TMPDIR=/tmp"}, p.Env...),
		Dir:    "/tmp",
		Output: os.Stdout,
		Report: func(e plan.Event) error { return e.Emit(port) },
	}
	err = r.Run(p.Steps)
	if p.Serve && err == nil {
		err = awaitRelease(r.Failed())
	}
	if end := r.End(); err == nil {
		err = end
	}
	if p.Release != "" {
		if rel := release(p.Release); err == nil {
			err = rel
		}
	}
	return err
}

// mountAll mounts the file systems, and makes the links, that programs expect.
func mountAll() error {
	for _, m := range []struct{ kind, dir, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"cgroup2", "/sys/fs/cgroup", ""},
		{"devtmpfs", "/dev", ""},
		{"tmpfs", "/dev/shm", "size=50%"},
		{"tmpfs", "/tmp", "size=50%"},
		{"tmpfs", "/run", "size=10%"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return fmt.Errorf("cannot make mount point: %w", err)
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("cannot mount %s at %s: %w", m.kind, m.dir, err)
		}
	}
	// As in a container host: groups can be made that limit memory.
	if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
		return fmt.Errorf("cannot have control groups limit memory: %w", err)
	}
	for link, to := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(to, link); err != nil {
			return fmt.Errorf("cannot complete /dev: %w", err)
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot load module: %w", err)
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("cannot load module %s: %w", path, err)
	}
	return nil
}

// exit writes the code to QEMU's exit device, and returns only if there is
// none. What was written to the serial ports leaves first: QEMU ends at once.
func exit(code int) error {
	for _, tty := range []string{"/dev/console", plan.EventPort} {
		if err := drain(tty); err != nil {
			fmt.Printf("cannot wait for the last output: %v\n", err)
		}
	}
	f, err := os.OpenFile("/dev/port", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte{byte(code)}, plan.ExitPort); err != nil {
		return err
	}
	return fmt.Errorf("no device at port %#x", plan.ExitPort)
}

// drain waits until a serial port has sent everything, as tcdrain does.
func drain(tty string) error {
	f, err := os.OpenFile(tty, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1)
}

// releaseWord tells a guest that it may end. A connection without it is a guest
// that asks whether this one is up.
const releaseWord = "release"

// awaitRelease waits until another guest sends the word, or one of the
// background steps ends. The host's time-out bounds it.
func awaitRelease(failed <-chan error) error {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(plan.ReleasePort))
	if err != nil {
		return fmt.Errorf("cannot wait to be released: %w", err)
	}
	defer l.Close()
	released := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				released <- err
				return
			}
			word, err := io.ReadAll(c)
			c.Close()
			if err == nil && string(word) == releaseWord {
				released <- nil
				return
			}
		}
	}()
	select {
	case err := <-released:
		return err
	case err := <-failed:
		return err
	}
}

// release lets another guest end.
func release(host string) error {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(plan.ReleasePort)), 10*time.Second)
	if err != nil {
		return fmt.Errorf("cannot release the other guest: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(releaseWord)); err != nil {
		return fmt.Errorf("cannot release the other guest: %w", err)
	}
	return nil
}
