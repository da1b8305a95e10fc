package endpoint

import (
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"polder/internal/brief"
)

// socket sets up a TCP connection for the fabric. It returns any other connection unchanged.
func socket(nc net.Conn) net.Conn {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nc
	}
	unpace(tcp)
	return brief.Of(tcp)
}

// unpace turns off pacing for nc. BBR, which some systems use for all connections, sends no faster than it has seen
// the peer take data. If the peer only waited for a processor, BBR believes that the link is slow: over loopback it
// has come down to 20 Mbit/s, and has held answers back for up to 84 ms.
func unpace(nc *net.TCPConn) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return // nc is closed
	}
	_ = raw.Control(func(fd uintptr) {
		name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if err != nil || !strings.HasPrefix(name, "bbr") {
			return
		}
		if unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") != nil {
			// Not every congestion control is allowed to a process without privileges, but this one is.
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
	})
}
