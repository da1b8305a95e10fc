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
func congestion(nc net.Conn, to string) (name string, err error) {
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		return "", err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if to != "" {
			failed = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, to)
		}
		if failed == nil {
			name, failed = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		}
	})
	return name, errors.Join(err, failed)
}

// notPaced fails the test if nc has BBR.
func notPaced(t *testing.T, end string, nc net.Conn) {
	t.Helper()
	if name, err := congestion(nc, ""); err != nil || strings.HasPrefix(name, "bbr") {
		t.Errorf("%s has %s, %v", end, name, err)
	}
}

// paced is a listener whose connections have BBR, whatever the system has them be.
type paced struct {
	net.Listener
	accepted chan net.Conn
}

func (l *paced) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err == nil {
		_, err = congestion(nc, "bbr")
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
			client, err := net.Dial("tcp", nl.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := congestion(client, "bbr"); err != nil {
				nl.Close()
				client.Close()
				t.Skipf("no connection can have BBR: %v", err)
			}
			lis := &paced{nl, make(chan net.Conn, 1)}
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

			defer socket(client).Close()
			notPaced(t, "the end that dialled", client)
			accepted := <-lis.accepted
			<-greeted
			notPaced(t, "the end that was dialled", accepted)
		})
	}
}
