package endpoint

import (
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"polder/internal/brief"
)

// socket makes a TCP connection one of the fabric's. Any other stays what it is.
func socket(nc net.Conn) net.Conn {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nc
	}
	unpace(tcp)
	return brief.Of(tcp)
}

// unpace has nc not be paced. BBR, which some systems have for all connections, sends no faster than it has seen the peer
// take. Of a peer that waited for a processor, it thinks that the link is slow: over loopback it has come to 20 Mbit/s, and
// held answers back for up to 84 ms.
func unpace(nc *net.TCPConn) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if err != nil || !strings.HasPrefix(name, "bbr") {
			return
		}
		if unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") != nil {
			// Who is not root may not have all that there is, but this.
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
	})
}
