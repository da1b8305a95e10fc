package accept

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
)

// MaxHandshake is how many bytes a peer may send, in all, until it has entered:
// more than a ClientHello and a chain of certificates take. TLS itself allows
// 320 KiB and keeps them in memory.
const MaxHandshake = 16 << 10

var errLongHandshake = fmt.Errorf("it has sent %d bytes and not yet shown who it is", MaxHandshake)

// TLS is tls.Server for a connection that is then given to a Gate, which bounds
// what its peer may send before it enters.
func TLS(nc net.Conn, config *tls.Config) *tls.Conn {
	return tls.Server(&stranger{Conn: nc, left: MaxHandshake}, config)
}

// ListenTLS is tls.NewListener for Listen, with that bound.
func ListenTLS(lis net.Listener, config *tls.Config) net.Listener {
	return &tlsListener{lis, config}
}

type tlsListener struct {
	net.Listener
	config *tls.Config
}

// Accept implements net.Listener. The connection is a *tls.Conn.
func (l *tlsListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return TLS(nc, l.config), nil
}

// stranger is the connection under TLS. Until its peer has entered, no more than
// MaxHandshake bytes can be read from it.
type stranger struct {
	net.Conn
	left    int // used only by the reader
	entered atomic.Bool
}

// Read implements net.Conn.
func (s *stranger) Read(b []byte) (int, error) {
	if s.entered.Load() {
		return s.Conn.Read(b)
	}
	if s.left == 0 {
		return 0, errLongHandshake
	}
	n, err := s.Conn.Read(b[:min(len(b), s.left)])
	s.left -= n
	return n, err
}
