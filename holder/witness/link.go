package witness

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"polder/internal/scheme"
)

const (
	dialTime    = 5 * time.Second        // how long connecting may take, with TLS and greetings
	silentTime  = 30 * time.Second       // after this time without an owed answer, the link hangs up
	maxCalls    = 256                    // the most requests that wait for a witness
	firstRedial = 20 * time.Millisecond  // after a failure; it doubles
	lastRedial  = 500 * time.Millisecond // the longest
)

// A link is the way to one witness. It connects when there is something to ask. When the connection breaks, it fails
// all requests that wait: their callers know best whether to ask again.
//
// Its goroutine dials and writes. While there is a connection, a second goroutine reads.
type link struct {
	addr string
	tls  func() *tls.Config // if it is nil or returns nil, the connection is plain
	// insecure allows plain connections with other machines.
	insecure bool
	// connect, if it is set, makes connections that have already shown who this end is; tls and insecure are not used
	// then.
	connect func(ctx context.Context) (net.Conn, error)

	ctx     context.Context // ends with the link
	end     context.CancelFunc
	running sync.WaitGroup
	queue   chan *call // has room for maxCalls calls

	mu     sync.Mutex
	calls  map[uint64]*call // the calls that wait for an answer; guarded by mu
	number uint64           // of the last call; guarded by mu
	conn   net.Conn         // nil if there is none; guarded by mu
	heard  time.Time        // when the last answer came, or since when calls wait; guarded by mu
	down   error            // why there is no connection, after a failure; guarded by mu
}

// A call is a request that is under way.
type call struct {
	request request
	done    func(*reply, error) // called once, by a goroutine that must not wait
}

var (
	errLinkClosed = errors.New("the client is closed")
	errCrowded    = fmt.Errorf("%d requests wait for its answer", maxCalls)
)

func newLink(addr string, t func() *tls.Config, insecure bool) *link {
	return startLink(&link{addr: addr, tls: t, insecure: insecure})
}

func startLink(l *link) *link {
	l.queue, l.calls = make(chan *call, maxCalls), make(map[uint64]*call)
	l.ctx, l.end = context.WithCancel(context.Background())
	l.running.Go(l.run)
	return l
}

// ask sends a request, and calls done with the reply, or with why there will be none. It does not wait. done may be
// called before ask returns.
func (l *link) ask(q request, done func(*reply, error)) {
	l.mu.Lock()
	var err error
	switch {
	case l.ctx.Err() != nil:
		err = errLinkClosed
	case len(l.calls) > 0 && time.Since(l.heard) > silentTime:
		err = fmt.Errorf("it has not answered for %v", silentTime)
		if l.conn != nil {
			closeNow(l.conn)
		}
	case len(l.calls) >= maxCalls:
		err = errCrowded
	}
	if err != nil {
		l.mu.Unlock()
		done(nil, err)
		return
	}
	if len(l.calls) == 0 {
		l.heard = time.Now()
	}
	l.number++
	q.Call = l.number
	c := &call{q, done}
	select {
	case l.queue <- c:
		l.calls[q.Call] = c
		l.mu.Unlock()
	default: // calls that have failed may still be in the queue
		l.mu.Unlock()
		done(nil, errCrowded)
	}
}

// take removes a call, and returns it, or nil if it has been answered already.
func (l *link) take(number uint64) *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.calls[number]
	delete(l.calls, number)
	return c
}

// run connects and writes, until the link is closed.
func (l *link) run() {
	var conn net.Conn
	var reading sync.WaitGroup
	var out []byte
	pause, again := time.Duration(0), time.Time{}
	hangUp := func(why error) {
		if conn != nil {
			closeNow(conn)
			reading.Wait()
			conn = nil
		}
		l.failAll(why)
	}
	defer func() { hangUp(errLinkClosed) }()
	for {
		var c *call
		select {
		case <-l.ctx.Done():
			return
		case c = <-l.queue:
		}
		l.mu.Lock()
		waits := l.calls[c.request.Call] == c
		broken := conn != nil && l.conn == nil
		l.mu.Unlock()
		if broken { // the reader has seen that the connection broke
			reading.Wait()
			conn = nil
		}
		if !waits {
			continue
		}
		if conn == nil {
			if time.Now().Before(again) {
				l.mu.Lock()
				why := l.down
				l.mu.Unlock()
				l.fail(c, why)
				continue
			}
			nc, err := l.dial()
			if err != nil {
				pause = min(max(2*pause, firstRedial), lastRedial)
				again = time.Now().Add(pause)
				hangUp(err)
				continue
			}
			pause, conn = 0, nc
			l.mu.Lock()
			l.conn, l.down = nc, nil
			l.mu.Unlock()
			reading.Go(func() { l.read(nc) })
		}
		out = appendFrame(out[:0], c.request.append)
		err := conn.SetWriteDeadline(time.Now().Add(silentTime))
		if err == nil {
			_, err = conn.Write(out)
		}
		if err != nil {
			hangUp(fmt.Errorf("cannot ask it: %w", err))
		}
		if cap(out) > 16<<10 {
			out = nil
		}
	}
}

// dial connects, and exchanges greetings.
func (l *link) dial() (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(l.ctx, dialTime, errors.New("no answer in time"))
	defer cancel()
	conn, err := l.reach(ctx)
	if err != nil {
		return nil, err
	}
	nc := conn
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var b [len(greeting)]byte
	_, err = io.WriteString(conn, greeting)
	if err == nil {
		_, err = io.ReadFull(conn, b[:])
	}
	switch {
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil && string(b[:]) != greeting:
		err = fmt.Errorf("it is no witness, or speaks another version: it greets with %q, want %q", b[:], greeting)
	case err == nil && !stop(): // the deadline has come, or is about to
		err = context.Cause(ctx)
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("cannot greet it: %w", err)
	}
	return conn, nil
}

// reach connects.
func (l *link) reach(ctx context.Context) (net.Conn, error) {
	if l.connect != nil {
		return l.connect(ctx)
	}
	if path, ok := strings.CutPrefix(l.addr, scheme.Unix); ok {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return nil, err
	}
	conn, err := l.secure(nc, l.addr)
	if err != nil {
		nc.Close()
	}
	return conn, err
}

// secure returns nc, with TLS over it if the link uses TLS.
func (l *link) secure(nc net.Conn, addr string) (net.Conn, error) {
	var t *tls.Config
	if l.tls != nil {
		t = l.tls()
	}
	if t == nil {
		if to, ok := nc.RemoteAddr().(*net.TCPAddr); !l.insecure && ok && !to.IP.IsLoopback() {
			return nil, errors.New("it is on another machine: expected certificates (--tls-ca, --tls-cert, --tls-key), or --insecure")
		}
		return nc, nil
	}
	if t.ServerName == "" {
		t = t.Clone()
		t.ServerName, _, _ = net.SplitHostPort(addr) // no error: addr was dialled
	}
	return tls.Client(nc, t), nil
}

// read takes replies until the connection breaks.
func (l *link) read(nc net.Conn) {
	var header [frameHeader]byte
	var body []byte
	in := bufio.NewReaderSize(nc, 4096)
	for {
		_, err := io.ReadFull(in, header[:])
		var r *reply
		if err == nil {
			body, err = readBody(in, header, body)
		}
		if err == nil {
			r, err = decodeReply(body)
		}
		if err != nil {
			nc.Close()
			l.mu.Lock()
			l.conn = nil
			l.mu.Unlock()
			if errors.Is(err, io.EOF) {
				err = errors.New("it has hung up")
			}
			l.failAll(err)
			return
		}
		l.mu.Lock()
		l.heard = time.Now()
		l.mu.Unlock()
		if c := l.take(r.Call); c != nil {
			c.done(r, nil)
		}
	}
}

// fail ends a call that gets no answer.
func (l *link) fail(c *call, why error) {
	if c := l.take(c.request.Call); c != nil {
		c.done(nil, why)
	}
}

// failAll ends all calls that wait for an answer.
func (l *link) failAll(why error) {
	l.mu.Lock()
	calls := l.calls
	l.calls, l.down = make(map[uint64]*call), why
	l.mu.Unlock()
	for _, c := range calls {
		c.done(nil, why)
	}
}

// close ends the link. All calls that wait fail.
func (l *link) close() {
	l.end()
	l.mu.Lock()
	if l.conn != nil {
		closeNow(l.conn)
	}
	l.mu.Unlock()
	l.running.Wait()
}
