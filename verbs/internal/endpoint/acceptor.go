package endpoint

import (
	"errors"
	"fmt"
	"net"

	"polder/internal/accept"
)

// An acceptor accepts stream connections and has each greeted in a gate, so that
// only peers that have done their handshake count as connections.
type acceptor struct {
	nl     net.Listener
	cfg    Config
	greet  func(nc net.Conn, admit Admit) error
	gate   *accept.Gate
	places chan struct{} // a token per connection
}

func newAcceptor(nl net.Listener, cfg Config, greet func(nc net.Conn, admit Admit) error) *acceptor {
	return &acceptor{
		nl: nl, cfg: cfg, greet: greet,
		gate:   accept.NewGate(cfg.Log, cfg.HandshakeTimeout),
		places: make(chan struct{}, cfg.MaxConns),
	}
}

// run accepts until the listener is closed, and returns when the last handshake
// has ended.
func (a *acceptor) run() {
	defer a.gate.Close()
	err := accept.Each(a.cfg.Log, a.gate.Accept(a.nl.Accept), a.receive)
	if !errors.Is(err, net.ErrClosed) {
		a.cfg.Log.Error("a listener is of no use any more", "addr", a.nl.Addr(), "err", err)
	}
}

func (a *acceptor) receive(nc net.Conn) {
	nc = socket(nc)
	if a.cfg.TLS != nil {
		nc = accept.TLS(nc, a.cfg.TLS)
	}
	a.gate.Go(nc, func(v *accept.Visitor) error {
		return a.greet(nc, func() (leave func(), err error) { return a.admit(v) })
	})
}

// admit is an Admit for a visitor.
func (a *acceptor) admit(v *accept.Visitor) (leave func(), err error) {
	select {
	case a.places <- struct{}{}:
	default:
		return nil, fmt.Errorf("there are %d connections, as many as may be", a.cfg.MaxConns)
	}
	leave = func() { <-a.places }
	if err := v.Enter(); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}
