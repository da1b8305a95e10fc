package endpoint

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// congestion returns by what nc's congestion control is, after setting it unless to is empty.
func congestion(t *testing.T, nc net.Conn, to string) string {
	t.Helper()
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var failed error
	if err := raw.Control(func(fd uintptr) {
		if to != "" {
			failed = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, to)
		}
		if failed == nil {
			name, failed = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if to != "" && failed != nil {
		t.Skipf("no connection can have %s: %v", to, failed)
	}
	if failed != nil {
		t.Fatal(failed)
	}
	return name
}

// paced is a listener whose connections have BBR, whatever the system has them be.
type paced struct {
	net.Listener
	t        *testing.T
	accepted chan net.Conn
}

func (l *paced) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err == nil {
		congestion(l.t, nc, "bbr")
		l.accepted <- nc
	}
	return nc, err
}

// TestConnectionsAreNotPaced, whatever the system has connections be, at either end and with TLS.
func TestConnectionsAreNotPaced(t *testing.T) {
	for name, security := range map[string]*tls.Config{"plain": nil, "TLS": {}} {
		t.Run(name, func(t *testing.T) {
			cfg, err := Config{TLS: security}.Normalized()
			if err != nil {
				t.Fatal(err)
			}
			nl, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			lis := &paced{nl, t, make(chan net.Conn, 1)}
			var ends Ends
			greeted, seen := make(chan struct{}), make(chan struct{})
			l, err := Serve(lis, "", cfg, &ends, func(net.Conn, *Requests, Admit) error {
				close(greeted)
				<-seen
				return errors.New("that was all")
			})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			defer close(seen)

			client, err := net.Dial("tcp", l.Addr())
			if err != nil {
				t.Fatal(err)
			}
			congestion(t, client, "bbr")
			defer socket(client).Close()
			if name := congestion(t, client, ""); strings.HasPrefix(name, "bbr") {
				t.Errorf("the end that dialled has %s", name)
			}
			accepted := <-lis.accepted
			<-greeted
			if name := congestion(t, accepted, ""); strings.HasPrefix(name, "bbr") {
				t.Errorf("the end that was dialled has %s", name)
			}
		})
	}
}
