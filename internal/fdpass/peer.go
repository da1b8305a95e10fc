package fdpass

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a connection, as it was when it
// connected.
type Peer struct {
	PID int // in this process's namespace; 0 if it is not in it
	UID int
}

// Trusted reports whether p runs as this process's user or as root, and so can do anything to this process.
func (p Peer) Trusted() bool { return trusted(p.UID, os.Geteuid()) }

// trusted reports whether a process of user uid can do anything to a process of user self.
func trusted(uid, self int) bool { return uid == self || uid == 0 }

// Peer asks the kernel who connected.
func (c *Conn) Peer() (Peer, error) { return peer(c.raw) }

// PeerOf asks the kernel who is at the other end of a socket.
func PeerOf(sock *net.UnixConn) (Peer, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("cannot use the socket: %w", err)
	}
	return peer(raw)
}

func peer(raw syscall.RawConn) (Peer, error) {
	var p Peer
	var cerr error
	err := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); cerr == nil {
			p.PID, p.UID = int(cred.Pid), int(cred.Uid)
		}
	})
	if err := errors.Join(err, cerr); err != nil {
		return Peer{}, fmt.Errorf("cannot tell who is connected: %w", err)
	}
	return p, nil
}

// PeerPidFD returns a pidfd of the process that connected, whatever has become
// of its pid. It fails before Linux 6.5. The caller owns the file.
func (c *Conn) PeerPidFD() (*os.File, error) {
	var pidfd int
	var serr error
	err := c.raw.Control(func(fd uintptr) {
		pidfd, serr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	})
	if err := errors.Join(err, serr); err != nil {
		return nil, fmt.Errorf("cannot tell which process is connected: %w", err)
	}
	return os.NewFile(uintptr(pidfd), "pidfd"), nil
}

// StartTime returns when the process pid started, in clock ticks since boot,
// as proc (usually "/proc") has it: with it, a pid names a process for good.
func StartTime(proc string, pid int) (uint64, error) {
	data, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The second field is the command in parentheses, and may hold any byte.
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return 0, fmt.Errorf("cannot read the start time of process %d: no command in %q", pid, data)
	}
	fields := strings.Fields(string(data[i+1:]))
	const startTime = 22 - 3 // the field is the 22nd, and these begin with the third
	if len(fields) <= startTime {
		return 0, fmt.Errorf("cannot read the start time of process %d: %d fields", pid, len(fields))
	}
	return strconv.ParseUint(fields[startTime], 10, 64)
}

// Alive reports whether the process pid that started at start still runs; a
// later process with the same pid is another one.
func Alive(proc string, pid int, start uint64) bool {
	now, err := StartTime(proc, pid)
	return err == nil && now == start
}

// OpenProcess returns a pidfd of the process pid that started at start, or an
// error if it is gone.
func OpenProcess(pid int, start uint64) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open process %d: %w", pid, err)
	}
	// The pidfd names whatever had the pid just now: look after it was taken.
	if !Alive("/proc", pid, start) {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot open process %d: %w", pid, unix.ESRCH)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}
