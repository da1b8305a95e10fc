// Package uffd is userfaultfd(2) for memory that is a memfd. The holder of an FD learns of accesses to pages that are
// absent or protected against writes, and lets them go on.
//
// Concurrency: an FD may be used by any number of goroutines, but Read by one at a time. Close must not race with the
// others; Stop ends Read.
package uffd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Constants of the kernel's interface.
const (
	apiVersion = 0xaa

	featureWriteProtect      = 1 << 0
	featureMissingShmem      = 1 << 5
	featureWriteProtectShmem = 1 << 12
	featurePoison            = 1 << 14
	needed                   = featureWriteProtect | featureMissingShmem | featureWriteProtectShmem | featurePoison

	userModeOnly = 1
	modeMissing  = 1 << 0
	modeProtect  = 1 << 1

	ioNew          = 0xaa00
	ioAPI          = 0xc018aa3f
	ioRegister     = 0xc020aa00
	ioWake         = 0x8010aa02
	ioCopy         = 0xc028aa03
	ioWriteProtect = 0xc018aa06
	ioPoison       = 0xc020aa08

	copyProtected = 2 // pages are protected as they are copied
	protect       = 1

	pageSize       = 4096
	messageSize    = 32
	eventPagefault = 0x12
	flagWrite      = 1
	flagProtected  = 2
)

// FD is a userfaultfd.
type FD struct {
	f  *os.File
	fd uintptr

	// Used by Read's goroutine only.
	raw  syscall.RawConn
	more func(fd uintptr) bool // u.take, made once
	in   [16 * messageSize]byte
	n    int
	err  error
}

// newOf makes an FD of a descriptor that is in non-blocking mode.
func newOf(f *os.File, fd uintptr) (*FD, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	u := &FD{f: f, fd: fd, raw: raw}
	u.more = u.take
	return u, nil
}

// take reads the messages that there are. It returns false if there is none yet.
func (u *FD) take(fd uintptr) (done bool) {
	for {
		n, errno := read(fd, u.in[:])
		switch errno {
		case 0:
			u.n, u.err = n, nil
			return true
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			u.n, u.err = 0, os.NewSyscallError("read", errno)
			return true
		}
	}
}

// Open makes a userfaultfd of this process. kernel reports whether system calls may touch the memory, too; otherwise
// they fail with EFAULT where a page is absent.
func Open() (u *FD, kernel bool, err error) {
	const flags = unix.O_CLOEXEC | unix.O_NONBLOCK
	kernel = true
	fd, errno := newFD(flags)
	if errno != 0 {
		fd, errno = newFromDevice(flags)
	}
	if errno != 0 {
		kernel = false
		fd, errno = newFD(flags | userModeOnly)
	}
	if errno != 0 {
		return nil, false, fmt.Errorf("cannot make a userfaultfd: %w: the kernel has none, or forbids it (seccomp)", errno)
	}
	u, err = newOf(os.NewFile(fd, "userfaultfd"), fd)
	if err != nil {
		return nil, false, err
	}
	api := struct{ api, features, ioctls uint64 }{apiVersion, needed, 0}
	if errno := ioctl(fd, ioAPI, &api); errno != 0 {
		u.Close()
		return nil, false, fmt.Errorf("cannot use userfaultfd: %w: Linux 6.6 or later is needed, which protects and poisons pages of shared memory", errno)
	}
	return u, kernel, nil
}

func newFromDevice(flags uintptr) (uintptr, unix.Errno) {
	f, err := os.Open("/dev/userfaultfd")
	if err != nil {
		return 0, unix.ENOENT
	}
	defer f.Close()
	return newByDevice(f.Fd(), flags)
}

// Adopt makes an FD of a userfaultfd that another process has made and passed on.
func Adopt(f *os.File) (*FD, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd uintptr
	if err := raw.Control(func(n uintptr) { fd = n }); err != nil {
		return nil, err
	}
	what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("cannot tell what a descriptor is: %w", err)
	}
	if what != "anon_inode:[userfaultfd]" {
		return nil, errors.New("what was passed is no userfaultfd")
	}
	if err := unix.SetNonblock(int(fd), true); err != nil {
		return nil, err
	}
	return newOf(f, fd)
}

// File is the descriptor. It stays the FD's.
func (u *FD) File() *os.File { return u.f }

// Stop makes Read fail from now on.
func (u *FD) Stop() { _ = u.f.SetReadDeadline(time.Unix(1, 0)) }

// Close closes the descriptor. Closing twice is a no-op.
func (u *FD) Close() {
	_ = u.f.Close()
}

// Fault is an access that waits.
type Fault struct {
	Addr      uint64
	Write     bool // the access is a write
	Protected bool // the page is there, but protected
}

// Read waits for faults, and returns how many it has put into faults. It fails after Stop.
func (u *FD) Read(faults *[16]Fault) (int, error) {
	for {
		if err := u.raw.Read(u.more); err != nil {
			return 0, err
		}
		if u.err != nil {
			return 0, u.err
		}
		count := 0
		for b := u.in[:u.n]; len(b) >= messageSize; b = b[messageSize:] {
			if b[0] == eventPagefault {
				flags := binary.NativeEndian.Uint64(b[8:])
				faults[count] = Fault{binary.NativeEndian.Uint64(b[16:]), flags&flagWrite != 0, flags&flagProtected != 0}
				count++
			}
		}
		if count > 0 {
			return count, nil
		}
	}
}

type span struct{ start, length uint64 }

// Register makes u get the faults of the mapping mem.
func (u *FD) Register(mem []byte) error {
	r := struct {
		span
		mode, ioctls uint64
	}{span{Addr(mem), uint64(len(mem))}, modeMissing | modeProtect, 0}
	return named("register", ioctl(u.fd, ioRegister, &r))
}

// Copy places pages at addr, and lets accesses that wait for one of them go on at once. It leaves pages that are
// there already as they are.
func (u *FD) Copy(addr uint64, pages []byte, protected bool) error {
	for len(pages) > 0 {
		c := struct {
			dst, src, length, mode uint64
			copied                 int64
		}{dst: addr, src: Addr(pages), length: uint64(len(pages))}
		if protected {
			c.mode = copyProtected
		}
		errno, done := ioctlOnce(u.fd, ioCopy, &c), int64(pageSize)
		switch {
		case c.copied > 0:
			done = c.copied
		case errno == unix.EEXIST:
			if err := u.Wake(addr, pageSize); err != nil {
				return err
			}
		case errno == unix.EAGAIN:
			done = 0
		default:
			return named("place", errno)
		}
		addr, pages = addr+uint64(done), pages[done:]
	}
	return nil
}

// Protect protects n bytes against writes, or ends their protection and lets the writes that wait for that go on.
func (u *FD) Protect(addr, n uint64, on bool) error {
	p := struct {
		span
		mode uint64
	}{span{addr, n}, 0}
	if on {
		p.mode = protect
	}
	return named("protect", ioctl(u.fd, ioWriteProtect, &p))
}

// Wake makes accesses that wait for one of these pages try again.
func (u *FD) Wake(addr, n uint64) error {
	s := span{addr, n}
	return named("wake", ioctl(u.fd, ioWake, &s))
}

// Poison makes every access to the absent pages of a range fail with SIGBUS for good.
func (u *FD) Poison(addr, n uint64) error {
	for end := addr + n; addr < end; {
		p := struct {
			span
			mode    uint64
			updated int64
		}{span{addr, end - addr}, 0, 0}
		errno := ioctlOnce(u.fd, ioPoison, &p)
		switch {
		case p.updated > 0:
			addr += uint64(p.updated)
		case errno == unix.EEXIST:
			addr += pageSize
		case errno != 0 && errno != unix.EAGAIN:
			return named("poison", errno)
		}
	}
	return nil
}

// named is the error of an operation, or nil if errno is 0. Success allocates nothing, since a fault may not
// allocate.
func named(what string, errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return fmt.Errorf("cannot %s pages: %w", what, errno)
}
