package pooltest

import (
	"net"
	"sync"
	"testing"
)

// A Proxy forwards TCP connections until it is told to hold them up, or until it has forwarded a given number of
// bytes.
type Proxy struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	frozen chan struct{} // nil, or closed when the proxy thaws
	oneWay bool          // only what the dialled side sends is held up
	left   int           // bytes until everything is cut; negative: no end
}

// NewProxy starts a proxy for the listener at to. It ends with the test.
func NewProxy(t testing.TB, to string) *Proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{l: l, to: to, left: -1}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.Thaw()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

func (p *Proxy) accept() {
	for {
		a, err := p.l.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", p.to)
		if err != nil {
			a.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, a, b)
		p.mu.Unlock()
		p.wg.Go(func() { p.forward(a, b, false) })
		p.wg.Go(func() { p.forward(b, a, true) })
	}
}

func (p *Proxy) forward(from, to net.Conn, back bool) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		frozen := p.frozen
		if p.oneWay && !back {
			frozen = nil
		}
		last := false
		if p.left >= 0 {
			n = min(n, p.left)
			p.left -= n
			if last = p.left == 0; last {
				p.left = -1
			}
		}
		p.mu.Unlock()
		if frozen != nil {
			<-frozen
		}
		_, werr := to.Write(buf[:n])
		if last {
			p.Cut()
		}
		if werr != nil || err != nil {
			return
		}
	}
}

// Freeze holds up what comes from either side until Thaw.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = make(chan struct{})
}

// FreezeBack holds up only what comes from the side that the proxy has dialled.
func (p *Proxy) FreezeBack() {
	p.Freeze()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.oneWay = true
}

// Thaw lets held-up data go on.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// CutAfter cuts all connections when n more bytes have been forwarded.
func (p *Proxy) CutAfter(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = n
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}
