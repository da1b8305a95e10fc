// Package systemd speaks with the service manager that has started this process,
// if one has: sd_notify(3), and the descriptors of sd_listen_fds_with_names(3), be
// they sockets that the manager listens at or memory that it has kept.
//
// Concurrency: any number of goroutines.
package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects with the service manager; nil if there is none.
func Dial() (*net.UnixConn, error) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil, nil
	}
	if path[0] != '/' && path[0] != '@' {
		return nil, fmt.Errorf("cannot use NOTIFY_SOCKET=%q: want an absolute path or an abstract socket", path)
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("cannot reach the service manager: %w", err)
	}
	return conn, nil
}

// Notify tells the service manager what the process does now, such as READY=1. It
// does nothing if there is none. It waits a second at most.
func Notify(state string) error {
	conn, err := Dial()
	if err != nil || conn == nil {
		return err
	}
	defer conn.Close()
	err = conn.SetWriteDeadline(time.Now().Add(time.Second))
	if err == nil {
		_, err = conn.Write([]byte(state))
	}
	if err != nil {
		return fmt.Errorf("cannot tell the service manager: %w", err)
	}
	return nil
}

// Reloading is the state of a process that reads its configuration anew, until it
// is ready again.
func Reloading() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "RELOADING=1"
	}
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000)
}

// Watchdog is how often the manager expects WATCHDOG=1 at least; 0 is never.
func Watchdog() time.Duration {
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || usec <= 0 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

// passed is what the manager has passed on: a socket that it listens at, or a file.
type passed struct {
	name string
	lis  net.Listener // nil of a file
	file *os.File
}

var inherited struct {
	sync.Mutex
	read bool
	list []passed
	err  error
}

// take takes of what the manager has passed on, and nobody has taken yet, what is
// wanted.
func take(wanted func(passed) bool) (list []passed, err error) {
	inherited.Lock()
	defer inherited.Unlock()
	if !inherited.read {
		inherited.read = true
		inherited.list, inherited.err = readPassed()
	}
	inherited.list = slices.DeleteFunc(inherited.list, func(p passed) bool {
		if !wanted(p) {
			return false
		}
		list = append(list, p)
		return true
	})
	return list, inherited.err
}

// Files takes all files, by name.
func Files() (map[string]*os.File, error) {
	list, err := take(func(p passed) bool { return p.file != nil })
	files := map[string]*os.File{}
	for _, p := range list {
		if old := files[p.name]; old != nil {
			old.Close()
		}
		files[p.name] = p.file
	}
	return files, err
}

// Listener takes the socket of that name; nil if there is none.
func Listener(name string) (net.Listener, error) {
	return takeOne(func(p passed) bool { return p.name == name })
}

// ListenerAt takes the socket that is bound to an address: HOST:PORT, or the path of
// a Unix socket; nil if there is none.
func ListenerAt(network, addr string) (net.Listener, error) {
	return takeOne(func(p passed) bool { return p.lis.Addr().Network() == network && same(p.lis.Addr(), addr) })
}

// takeOne takes the first socket that is wanted.
func takeOne(wanted func(passed) bool) (net.Listener, error) {
	found := false
	list, err := take(func(p passed) bool {
		if found || p.lis == nil || !wanted(p) {
			return false
		}
		found = true
		return true
	})
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0].lis, nil
}

// same reports whether addr names the address a.
func same(a net.Addr, addr string) bool {
	at, ok := a.(*net.TCPAddr)
	if !ok {
		path, err := filepath.Abs(addr)
		return err == nil && a.String() == path
	}
	to, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return false
	}
	every := func(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }
	return at.Port == to.Port && (at.IP.Equal(to.IP) || every(at.IP) && every(to.IP))
}

// Unused are the addresses of sockets that nobody has taken.
func Unused() (addrs []string) {
	_, _ = take(func(p passed) bool { // whoever takes one is told of an error
		if p.lis != nil {
			addrs = append(addrs, p.lis.Addr().String())
		}
		return false
	})
	return addrs
}

// readPassed reads the descriptors from 3 on that LISTEN_FDS and LISTEN_FDNAMES
// announce.
func readPassed() (list []passed, err error) {
	count := os.Getenv("LISTEN_FDS")
	pid := os.Getenv("LISTEN_PID")
	if count == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("cannot use LISTEN_FDS=%q: want a number", count)
	}
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for i := range n {
		const first = 3
		unix.CloseOnExec(first + i)
		p := passed{name: "unknown"}
		if i < len(names) {
			p.name = names[i]
		}
		p.file = os.NewFile(uintptr(first+i), p.name)
		if listens, err := unix.GetsockoptInt(first+i, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && listens == 1 {
			lis, err := net.FileListener(p.file)
			if err = errors.Join(err, p.file.Close()); err != nil {
				return nil, fmt.Errorf("cannot use the socket %q of the service manager: %w", p.name, err)
			}
			p.lis, p.file = lis, nil
		}
		list = append(list, p)
	}
	return list, nil
}
