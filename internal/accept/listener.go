package accept

import (
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"
)

// HandshakeTimeout is how long a TLS handshake may take at a listener of Listen.
const HandshakeTimeout = 5 * time.Second

// Listen returns a listener that accepts what lis does, as Each does. If lis gives
// TLS connections (tls.NewListener), their handshakes are done, and only those
// that have succeeded are accepted. It closes lis when it is closed.
func Listen(lis net.Listener, log *slog.Logger) net.Listener {
	return listen(lis, log, NewGate(log, HandshakeTimeout))
}

func listen(lis net.Listener, log *slog.Logger, gate *Gate) *listener {
	l := &listener{
		Listener: lis,
		gate:     gate,
		ready:    make(chan arrival),
		closing:  make(chan struct{}),
		done:     make(chan struct{}),
	}
	go func() {
		defer close(l.done)
		l.err = Each(log, l.gate.Accept(lis.Accept), l.take)
		l.gate.Close()
	}()
	return l
}

type listener struct {
	net.Listener
	gate    *Gate
	ready   chan arrival
	once    sync.Once
	closing chan struct{}
	done    chan struct{} // closed when no more can arrive
	err     error         // why; immutable once done is closed
}

// arrival is a connection that is ready to be accepted.
type arrival struct {
	nc      net.Conn
	visitor *Visitor // of the gate until it is accepted; nil if nc was never in it
}

// take passes a connection on, if it is a TLS connection by way of the gate.
func (l *listener) take(nc net.Conn) {
	t, ok := nc.(*tls.Conn)
	if !ok {
		select {
		case l.ready <- arrival{nc: nc}:
		case <-l.closing:
			nc.Close()
		}
		return
	}
	l.gate.Go(nc, func(v *Visitor) error {
		if err := t.Handshake(); err != nil {
			return err
		}
		select {
		case l.ready <- arrival{nc, v}:
		case <-v.Gone():
		}
		return nil
	})
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		select {
		case a := <-l.ready:
			if a.visitor == nil || a.visitor.Enter() == nil {
				return a.nc, nil
			}
		case <-l.done:
			return nil, l.err
		}
	}
}

// Close implements net.Listener. It returns when nothing of the listener runs any
// more.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closing) })
	err := l.Listener.Close()
	<-l.done
	return err
}
