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

var inherited struct {
	sync.Mutex
	read  bool
	files map[string]*os.File
	err   error
}

// take calls f with the descriptors that nobody has taken yet.
func take(f func(map[string]*os.File)) error {
	inherited.Lock()
	defer inherited.Unlock()
	if !inherited.read {
		inherited.read = true
		inherited.files, inherited.err = files()
	}
	if inherited.err == nil {
		f(inherited.files)
	}
	return inherited.err
}

// Files takes all descriptors that the manager has passed on and nobody has taken,
// by name.
func Files() (map[string]*os.File, error) {
	list := map[string]*os.File{}
	err := take(func(files map[string]*os.File) {
		for name, f := range files {
			list[name] = f
			delete(files, name)
		}
	})
	return list, err
}

// Listener takes the socket of that name at which the manager listens; nil if there
// is none.
func Listener(name string) (net.Listener, error) {
	var f *os.File
	if err := take(func(files map[string]*os.File) { f = files[name]; delete(files, name) }); err != nil || f == nil {
		return nil, err
	}
	lis, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("cannot use the socket %q of the service manager: %w", name, err)
	}
	return lis, nil
}

// files reads the descriptors from 3 on that LISTEN_FDS and LISTEN_FDNAMES
// announce.
func files() (map[string]*os.File, error) {
	list := map[string]*os.File{}
	count := os.Getenv("LISTEN_FDS")
	pid := os.Getenv("LISTEN_PID")
	if count == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return list, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("cannot use LISTEN_FDS=%q: want a number", count)
	}
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for i := range n {
		const first = 3
		unix.CloseOnExec(first + i)
		name := "unknown"
		if i < len(names) {
			name = names[i]
		}
		if old := list[name]; old != nil {
			old.Close()
		}
		list[name] = os.NewFile(uintptr(first+i), name)
	}
	return list, nil
}
