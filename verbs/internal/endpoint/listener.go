package endpoint

import (
	"context"
	"fmt"
	"net"

	"polder/internal/systemd"
)

// A Listener is a driver's verbs.Listener: it accepts stream connections, and
// hands out the requests that come over them.
type Listener struct {
	*Requests
	acceptor *acceptor
	scheme   string
}

// A Greeting does the handshake on nc, then calls admit, and makes a connection of
// nc, which offers its requests to q. If it fails, nc is closed and the peer is
// logged.
type Greeting func(nc net.Conn, q *Requests, admit Admit) error

// Admit is called when the handshake is done. The connection counts as one until
// leave is called, once. Admit fails if there are too many.
type Admit func() (leave func(), err error)

// Anybody is an Admit for the end that has dialled.
func Anybody() (leave func(), err error) { return func() {}, nil }

// Listen accepts at addr (host:port; port 0 picks one) and is one of a device's
// ends from then on. If the service manager listens there already, its socket is
// used.
func Listen(addr string, cfg Config, ends *Ends, greet Greeting) (*Listener, error) {
	nl, err := systemd.ListenerAt("tcp", addr)
	if nl != nil {
		if err = cfg.checkListen("tcp", nl.Addr().String(), nil); err != nil {
			nl.Close()
		}
		nl = keptAlive{nl, cfg.keepAlive()}
	} else if err == nil {
		lc := net.ListenConfig{Control: cfg.checkListen, KeepAliveConfig: cfg.keepAlive()}
		nl, err = lc.Listen(context.Background(), "tcp", addr)
	}
	if err != nil {
		return nil, err
	}
	return Serve(nl, "", cfg, ends, greet)
}

// keptAlive gives accepted connections the keep-alive of a net.ListenConfig, because a socket of the service
// manager's was made without one.
type keptAlive struct {
	net.Listener
	config net.KeepAliveConfig
}

func (l keptAlive) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if c, ok := nc.(*net.TCPConn); ok && err == nil {
		_ = c.SetKeepAliveConfig(l.config) // fails only for a connection that is gone already
	}
	return nc, err
}

// Serve is Listen for a net.Listener that is open, which it closes if it fails.
// The scheme comes before its address. Of cfg only MaxConns, Backlog,
// HandshakeTimeout, Log and TLS count.
func Serve(nl net.Listener, scheme string, cfg Config, ends *Ends, greet Greeting) (*Listener, error) {
	l := &Listener{Requests: NewRequests(cfg.Backlog), scheme: scheme}
	l.acceptor = newAcceptor(nl, cfg, func(nc net.Conn, admit Admit) error {
		return greet(nc, l.Requests, admit)
	})
	remove, err := ends.Add(l)
	if err != nil {
		nl.Close()
		return nil, err
	}
	go func() {
		defer remove()
		l.acceptor.run()
	}()
	return l, nil
}

// Addr implements verbs.Listener.
func (l *Listener) Addr() string { return l.scheme + l.acceptor.nl.Addr().String() }

// Peers is how many connections there are, without those in their handshake.
func (l *Listener) Peers() int { return len(l.acceptor.places) }

// Close implements verbs.Listener. Connections that have been made stay. It is
// idempotent.
func (l *Listener) Close() error {
	// First, so that nobody connects to a listener that refuses everything.
	err := l.acceptor.nl.Close()
	if !l.Requests.Close() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot close the listener: %w", err)
	}
	return nil
}
