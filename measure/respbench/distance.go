package respbench

import (
	"errors"
	"net"
	"sync"
	"time"

	"polder/measure/delay"
)

// distance is a relay in front of a server, which stands for a slow network: it delays all data by
// a fixed time, in both directions, however much it is.
type distance struct {
	lis  net.Listener
	to   string
	late time.Duration
	done sync.WaitGroup

	mu     sync.Mutex
	closed bool                  // guarded by mu
	conns  map[net.Conn]struct{} // guarded by mu
}

// newDistance starts a relay to the server at address to, which delays data by late.
func newDistance(to string, late time.Duration) (*distance, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &distance{lis: lis, to: to, late: late, conns: map[net.Conn]struct{}{}}
	d.done.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			d.done.Go(func() { d.carry(conn) })
		}
	})
	return d, nil
}

func (d *distance) addr() string { return d.lis.Addr().String() }

// carry connects a client with the server until one of them hangs up.
func (d *distance) carry(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", d.to)
	if err != nil {
		return // the client sees that its connection is closed
	}
	defer far.Close()
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return
	}
	d.conns[near], d.conns[far] = struct{}{}, struct{}{}
	d.mu.Unlock()
	var ways sync.WaitGroup
	ways.Go(func() { d.pass(near, far) })
	ways.Go(func() { d.pass(far, near) })
	ways.Wait()
	d.mu.Lock()
	delete(d.conns, near)
	delete(d.conns, far)
	d.mu.Unlock()
}

// parcel is data on its way, which pass writes when it is due.
type parcel struct {
	due   time.Time
	bytes []byte
}

// pass carries data from one connection to the other. When it ends, it closes both, so that the
// other direction ends, too.
func (d *distance) pass(from, to net.Conn) {
	way := make(chan parcel, 64)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer to.Close()
	defer from.Close()
	reader.Go(func() {
		defer close(way)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			if n > 0 {
				way <- parcel{time.Now().Add(d.late), b[:n]}
			}
			if err != nil {
				return
			}
		}
	})
	for p := range way {
		err := delay.Sleep(time.Until(p.due))
		if err == nil {
			_, err = to.Write(p.bytes)
		}
		if err != nil {
			from.Close()
			for range way { // the reader may be waiting for room in way
			}
			return
		}
	}
}

// close ends all connections.
func (d *distance) close() error {
	err := d.lis.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.conns {
		if e := c.Close(); !errors.Is(e, net.ErrClosed) { // ErrClosed: pass or carry has just closed it
			err = errors.Join(err, e)
		}
	}
	d.mu.Unlock()
	d.done.Wait()
	return err
}
