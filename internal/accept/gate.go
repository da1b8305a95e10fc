package accept

import (
	"container/list"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Places is how many peers a gate lets wait at a time, if the process may have
// four times as many descriptors; else a quarter of those.
const Places = 1024

// Stay is how long a peer may wait in a gate even if others come.
const Stay = 250 * time.Millisecond

// Why a gate has closed a connection before its time.
var (
	ErrCrowded = errors.New("others have come, and it had not yet shown who it is")
	errFull    = errors.New("too many have come at once who have not shown who they are")
)

// A Gate holds connections whose peers have not yet shown who they are.
type Gate struct {
	log     *slog.Logger
	timeout time.Duration
	places  int
	running sync.WaitGroup

	mu      sync.Mutex
	closed  bool      // guarded by mu
	waiting list.List // of *Visitor, those who came first in front; guarded by mu
}

// NewGate returns a gate that gives each peer this much time. It logs what it refuses to log, which should be bounded
// (package ratelog).
func NewGate(log *slog.Logger, timeout time.Duration) *Gate {
	g := &Gate{log: log, timeout: timeout, places: Places}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur/4 < Places {
		g.places = max(int(limit.Cur/4), 1)
	}
	return g
}

// A Visitor is a connection in a gate.
type Visitor struct {
	net.Conn
	gate  *Gate
	came  time.Time
	place *list.Element // nil once it is not waiting any more; guarded by gate.mu
	why   error         // why the gate has closed it; guarded by gate.mu
	gone  chan struct{} // closed when the gate closes it
}

// Go takes nc in, and runs prove in a goroutine of its own to find out who the peer is. Meanwhile the connection has
// a deadline, and the gate may close it. When prove is satisfied, it, or the code that it hands v to, calls Enter.
// When prove fails, nc is closed.
func (g *Gate) Go(nc net.Conn, prove func(v *Visitor) error) {
	v := &Visitor{Conn: nc, gate: g, came: time.Now(), gone: make(chan struct{})}
	if t, ok := nc.(*tls.Conn); ok {
		v.Conn = t.NetConn() // to close it never waits for the peer
	}
	if err := g.admit(v); err != nil {
		v.Conn.Close()
		g.refused(nc, err)
		return
	}
	v.Conn.SetDeadline(time.Now().Add(g.timeout)) // if that fails, so does what prove does
	go func() {
		defer g.running.Done()
		err := prove(v)
		if err == nil {
			return
		}
		nc.Close()
		if why := v.leave(); why != nil {
			err = why
		}
		g.refused(nc, err)
	}()
}

func (g *Gate) refused(nc net.Conn, err error) {
	if !errors.Is(err, net.ErrClosed) {
		g.log.Warn("connection refused", "peer", nc.RemoteAddr(), "err", err)
	}
}

// admit gives v a place, if need be that of the connection that has waited longest.
func (g *Gate) admit(v *Visitor) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return net.ErrClosed
	}
	if g.waiting.Len() >= g.places {
		first := g.waiting.Front()
		if v.came.Sub(first.Value.(*Visitor).came) < Stay {
			return errFull
		}
		g.turnAway(first, ErrCrowded)
	}
	v.place = g.waiting.PushBack(v)
	g.running.Add(1)
	return nil
}

// turnAway closes a connection that waits.
//
// Preconditions: g.mu is held.
func (g *Gate) turnAway(place *list.Element, why error) {
	v := g.waiting.Remove(place).(*Visitor)
	v.place, v.why = nil, why
	close(v.gone)
	v.Conn.Close()
}

// Enter takes the connection out of the gate: it has no deadline any more, its
// peer may send what it likes, and it belongs to the caller. It fails if the gate has closed it.
func (v *Visitor) Enter() error {
	if err := v.leave(); err != nil {
		return err
	}
	if s, ok := v.Conn.(*stranger); ok {
		s.entered.Store(true)
	}
	return v.Conn.SetDeadline(time.Time{})
}

// leave gives the place back. It fails if the gate has closed the connection.
func (v *Visitor) leave() error {
	v.gate.mu.Lock()
	defer v.gate.mu.Unlock()
	if v.place != nil {
		v.gate.waiting.Remove(v.place)
		v.place = nil
	}
	return v.why
}

// Gone is closed when the gate closes the connection: for code that waits for something other than the connection.
func (v *Visitor) Gone() <-chan struct{} { return v.gone }

// Accept wraps accept for Each. When accept fails, most likely for want of descriptors, the gate closes the older
// half of its waiting connections, so that silent peers cannot keep others out by holding descriptors.
func (g *Gate) Accept(accept func() (net.Conn, error)) func() (net.Conn, error) {
	return func() (net.Conn, error) {
		nc, err := accept()
		if err != nil && passing(err) {
			g.mu.Lock()
			for range (g.waiting.Len() + 1) / 2 {
				g.turnAway(g.waiting.Front(), ErrCrowded)
			}
			g.mu.Unlock()
		}
		return nc, err
	}
}

// Waiting is how many connections wait in the gate.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting.Len()
}

// Close closes the connections that wait, and returns when every goroutine of the
// gate has ended. Connections that have entered stay. It is idempotent.
func (g *Gate) Close() {
	g.mu.Lock()
	g.closed = true
	for g.waiting.Len() > 0 {
		g.turnAway(g.waiting.Front(), net.ErrClosed)
	}
	g.mu.Unlock()
	g.running.Wait()
}
