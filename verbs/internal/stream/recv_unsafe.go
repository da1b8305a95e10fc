package stream

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// oobSize is the room for maxFiles files.
var oobSize = unix.CmsgSpace(4 * maxFiles)

// message is what recvmsg(2) is told and tells. The calls of packages net and unix
// allocate for the sender's address, which is not asked for here.
type message struct {
	header unix.Msghdr
	iov    unix.Iovec
	oob    []byte
}

// receive receives bytes into b, and what comes with them, which is valid until the
// next call. It does not wait.
func (m *message) receive(fd uintptr, b []byte) (n int, oob []byte, truncated bool, errno unix.Errno) {
	if m.oob == nil {
		m.oob = make([]byte, oobSize)
	}
	m.iov.Base = unsafe.SliceData(b)
	m.iov.SetLen(len(b))
	m.header = unix.Msghdr{Iov: &m.iov, Control: unsafe.SliceData(m.oob)}
	m.header.SetIovlen(1)
	m.header.SetControllen(len(m.oob))
	r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&m.header)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	m.iov.Base = nil
	if errno != 0 {
		return 0, nil, false, errno
	}
	return int(r), m.oob[:m.header.Controllen], m.header.Flags&unix.MSG_CTRUNC != 0, 0
}
