package stream

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"polder/verbs/internal/endpoint"
)

// congestion returns by what nc's congestion control is, after setting it unless to is empty.
func congestion(t *testing.T, nc net.Conn, to string) string {
	t.Helper()
	raw, err := nc.(*net.TCPConn).SyscallConn()
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

// TestConnectionsAreNotPaced, whatever the system has connections be, at either end and with TLS.
func TestConnectionsAreNotPaced(t *testing.T) {
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	client, err := net.Dial("tcp", nl.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := nl.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, nc := range []net.Conn{client, server} {
		congestion(t, nc, "bbr")
	}
	cfg, err := Config{}.Normalized()
	if err != nil {
		t.Fatal(err)
	}
	established := make(chan error)
	here, there := newDevice(t), newDevice(t)
	go func() {
		c := &testConn{}
		established <- c.Establish(context.Background(), c, there, server, cfg, endpoint.NewRequests(1), endpoint.Anybody)
	}()
	c := &testConn{}
	if err := c.Establish(patient(t), c, here, client, cfg, nil, endpoint.Anybody); err != nil {
		t.Fatal(err)
	}
	if err := <-established; err != nil {
		t.Fatal(err)
	}
	for end, nc := range map[string]net.Conn{"the end that dialled": client, "the end that was dialled": server} {
		if name := congestion(t, nc, ""); strings.HasPrefix(name, "bbr") {
			t.Errorf("%s has %s", end, name)
		}
	}
	c.Close()

	if client, err = net.Dial("tcp", nl.Addr().String()); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	congestion(t, client, "bbr")
	unpaced(tls.Client(client, nil))
	if name := congestion(t, client, ""); strings.HasPrefix(name, "bbr") {
		t.Errorf("with TLS, it has %s", name)
	}
}
