package stream

import (
	"crypto/tls"
	"net"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// unpaced has nc, if it is over TCP, not be paced. BBR, which some systems have for all connections, sends no faster than
// it has seen the peer take. Of a peer that waited for a processor, it thinks that the link is slow: over loopback it has
// come to 20 Mbit/s, and held answers back for up to 84 ms.
func unpaced(nc net.Conn) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if err != nil || !strings.HasPrefix(name, "bbr") {
			return // it is a Unix socket, or need not be changed
		}
		if unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") != nil {
			// Who is not root may not have all that there is, but this.
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
	})
}
