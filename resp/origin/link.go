package origin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"polder/resp/proto"
	"polder/soft"
)

// Bounds of what the cache asks for on the link.
const (
	maxFlights = 1024
	maxKey     = 4 << 10 // longer keys are not cached
)

// tracker keeps the link, and caches what comes over it.
type tracker struct {
	cfg   *Config
	dial  func(context.Context) (net.Conn, error)
	m     *soft.ByteMap
	since time.Time
	code  []byte // an encoded value; belongs to the goroutine that reads the link

	up        atomic.Bool            // the cache may answer
	confirmed atomic.Int64           // a time on the tracker's clock: all invalidations from before it have come
	applied   atomic.Uint64          // odd while something is being forgotten
	why       atomic.Pointer[error]  // why there is no link
	password  atomic.Pointer[string] // with which the next link authenticates

	mu      sync.Mutex
	link    net.Conn           // nil while there is none; guarded by mu
	out     []byte             // what the goroutine that writes has yet to take; guarded by mu
	asked   []*question        // in the order of their replies; guarded by mu
	barrier *question          // a PING that is still in out, and that others may wait for, too; guarded by mu
	flights map[string]*flight // the flights that a client that comes now may join; guarded by mu
	flying  int                // how many of asked are about keys; guarded by mu
	wake    chan struct{}      // capacity 1: out has grown

	stats counters
}

// question is something that was asked on the link: GET and PTTL of a key, or PING.
type question struct {
	at     time.Duration // before it was sent
	flight *flight       // nil for PING
	half   bool          // GET has been answered; belongs to the goroutine that reads the link
	done   chan struct{} // closed when it has been answered or the link has gone
}

// flight is a read of a key at the origin.
type flight struct {
	key       string
	overtaken bool // an invalidation has come meanwhile; belongs to the goroutine that reads the link
	done      chan struct{}

	// The result, once done is closed. It is kindUnknown if there is none.
	kind  kind
	value []byte
}

func newTracker(cfg *Config, m *soft.ByteMap, dial func(context.Context) (net.Conn, error)) *tracker {
	t := &tracker{cfg: cfg, dial: dial, m: m, since: time.Now(), flights: map[string]*flight{}, wake: make(chan struct{}, 1)}
	t.password.Store(&cfg.URL.Password)
	return t
}

// now returns the time on the tracker's clock, which begins at 1 ns.
func (t *tracker) now() time.Duration { return time.Since(t.since) + 1 }

// fetch returns the flight of a key. It begins one if there is none. It returns nil if there is no link, or if so
// many flights are under way that the caller must ask the origin by itself.
func (t *tracker) fetch(key []byte) *flight {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.link == nil {
		return nil
	}
	if f := t.flights[string(key)]; f != nil {
		t.stats.joined.Add(1)
		return f
	}
	if t.flying >= maxFlights {
		return nil
	}
	f := &flight{key: string(key), done: make(chan struct{})}
	t.flights[f.key] = f
	t.flying++
	t.out = proto.AppendCommand(t.out, "GET", f.key)
	t.out = proto.AppendCommand(t.out, "PTTL", f.key)
	t.ask(&question{at: t.now(), flight: f, done: f.done})
	return f
}

// settle returns when every invalidation has been applied that the origin had sent before the call.
func (t *tracker) settle() {
	t.mu.Lock()
	if t.link == nil {
		t.mu.Unlock() // without a link, nothing is answered from the cache
		return
	}
	if t.barrier == nil {
		t.ping()
	}
	q := t.barrier
	t.mu.Unlock()
	<-q.done // it is answered, or the link is given up for its silence
}

// ping asks the origin for a PING's reply, and makes that the barrier.
//
// Preconditions: t.mu is held, and there is a link.
func (t *tracker) ping() {
	t.out = proto.AppendCommand(t.out, "PING")
	t.barrier = &question{at: t.now(), done: make(chan struct{})}
	t.ask(t.barrier)
}

// ask notes the question q, whose commands are in t.out.
//
// Preconditions: t.mu is held.
func (t *tracker) ask(q *question) {
	t.asked = append(t.asked, q)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// hangUp closes the link, if there is one.
func (t *tracker) hangUp() {
	t.mu.Lock()
	if t.link != nil {
		_ = t.link.Close()
	}
	t.mu.Unlock()
}

const (
	firstPause = 50 * time.Millisecond // the pause between two attempts to make a link, which doubles
	lastPause  = 2 * time.Second
)

// run keeps a link to the origin until ctx is done.
func (t *tracker) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		err := t.serve(ctx, func() { pause = firstPause })
		if ctx.Err() != nil {
			return
		}
		t.why.Store(&err)
		t.cfg.Logger.Warn("the origin is not cached", "origin", t.cfg.URL, "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, lastPause)
	}
}

// serve makes a link and applies what comes over it until it breaks. When the link is made, serve calls made.
func (t *tracker) serve(ctx context.Context, made func()) error {
	dialCtx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	conn, err := t.dial(dialCtx)
	cancel()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	tooLong := time.AfterFunc(10*t.cfg.Timeout, func() { _ = conn.Close() })
	defer tooLong.Stop()
	r := &lines{r: bufio.NewReaderSize(&attentive{conn, t.cfg.Timeout}, 64<<10)}
	if err := t.greet(conn, r); err != nil {
		return errors.Join(err, conn.Close())
	}
	tooLong.Stop()
	var writer sync.WaitGroup
	ended := make(chan struct{})
	t.confirmed.Store(int64(t.now()))
	t.mu.Lock()
	t.link = conn
	t.mu.Unlock()
	t.up.Store(true)
	made()
	t.cfg.Logger.Info("the origin is cached", "origin", t.cfg.URL)
	writer.Go(func() { t.write(conn, ended) })
	for err == nil {
		err = t.apply(r)
	}
	close(ended)
	t.drop(conn)
	writer.Wait()
	return fmt.Errorf("the connection has gone: %w", err)
}

// greet logs in on a new connection, and has the origin send invalidations there.
func (t *tracker) greet(conn net.Conn, r *lines) error {
	u := &t.cfg.URL
	hello := []string{"HELLO", "3"}
	if u.guarded() {
		hello = append(hello, "AUTH", u.user(), *t.password.Load())
	}
	b := proto.AppendCommand(nil, append(hello, "SETNAME", "polder-cache")...)
	b = proto.AppendCommand(b, "SELECT", fmt.Sprint(u.DB))
	b = proto.AppendCommand(b, "CLIENT", "TRACKING", "ON")
	if err := conn.SetWriteDeadline(time.Now().Add(t.cfg.Timeout)); err != nil {
		return err
	}
	if _, err := conn.Write(b); err != nil {
		return fmt.Errorf("cannot greet: %w", err)
	}
	for _, what := range []string{"HELLO 3", fmt.Sprint("SELECT ", u.DB), "CLIENT TRACKING ON"} {
		line, err := r.line()
		if err != nil {
			return fmt.Errorf("cannot read the answer to %s: %w", what, err)
		}
		if line[0] == '-' {
			return fmt.Errorf("cannot cache: the origin answers %q to %s (it must be Redis 6 or later, and let the user in)", line[1:], what)
		}
		if err := r.skip(line); err != nil {
			return fmt.Errorf("cannot read the answer to %s: %w", what, err)
		}
	}
	return nil
}

// drop gives up the link. First it lets nothing more be answered from the cache, then it forgets everything, and only
// then it wakes those who wait for replies of the link.
func (t *tracker) drop(conn net.Conn) {
	t.up.Store(false)
	_ = conn.Close()
	t.mu.Lock()
	asked := t.asked
	t.link, t.asked, t.out, t.barrier, t.flying = nil, nil, nil, nil, 0
	t.mu.Unlock()
	t.forgetAll()
	for _, q := range asked {
		close(q.done)
	}
}

// write sends what is asked, and a PING four times in each Config.Lag, until the link has ended.
func (t *tracker) write(conn net.Conn, ended <-chan struct{}) {
	tick := time.NewTicker(t.cfg.Lag / 4)
	defer tick.Stop()
	var spare []byte
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			t.mu.Lock()
			// late: the origin sends something, but not the reply to this question.
			late := len(t.asked) > 0 && t.now()-t.asked[0].at > 30*t.cfg.Timeout
			if t.link == conn && t.barrier == nil && len(t.asked) < 2*maxFlights {
				t.ping()
			}
			t.mu.Unlock()
			if late {
				_ = conn.Close()
			}
		case <-t.wake:
		}
		t.mu.Lock()
		if t.link != conn {
			t.mu.Unlock()
			return
		}
		b := t.out
		if len(b) == 0 {
			t.mu.Unlock()
			continue
		}
		t.out, t.barrier = spare[:0], nil
		t.mu.Unlock()
		err := conn.SetWriteDeadline(time.Now().Add(t.cfg.Timeout))
		if err == nil {
			_, err = conn.Write(b)
		}
		if err != nil {
			_ = conn.Close()
			return
		}
		if spare = b; cap(spare) > 1<<20 {
			spare = nil
		}
	}
}

// apply reads an invalidation or a reply from the link, and does what it says.
func (t *tracker) apply(r *lines) error {
	line, err := r.line()
	if err != nil {
		return err
	}
	if line[0] == '>' {
		return t.push(r, line)
	}
	t.mu.Lock()
	var q *question
	if len(t.asked) > 0 {
		q = t.asked[0]
	}
	t.mu.Unlock()
	switch {
	case q == nil:
		return proto.ErrReply // a reply to nothing
	case q.flight == nil:
		err = r.skip(line)
	case !q.half:
		q.half = true
		return t.value(r, line, q.flight)
	default:
		err = t.land(r, line, q)
	}
	if err != nil {
		return err
	}
	t.mu.Lock()
	if t.asked = t.asked[1:]; q.flight != nil {
		t.flying--
		if t.flights[q.flight.key] == q.flight {
			delete(t.flights, q.flight.key)
		}
	}
	t.mu.Unlock()
	t.confirmed.Store(max(int64(q.at), t.confirmed.Load()))
	close(q.done)
	return nil
}

// value reads the answer to GET.
func (t *tracker) value(r *lines, line []byte, f *flight) error {
	switch line[0] {
	case '_':
		f.kind = kindNull
		return nil
	case '$':
	default:
		return r.skip(line) // an error reply; the client gets it when it asks the origin itself
	}
	n, err := length(line)
	switch {
	case err != nil:
		return err
	case n < 0:
		f.kind = kindNull
		return nil
	case n > int64(t.cfg.MaxValue):
		f.kind = kindLarge
		return r.discard(n + 2)
	}
	f.kind = kindValue
	f.value, err = r.bytes(int(n))
	return err
}

// land reads the answer to PTTL, and caches what the flight has brought unless it was
// overtaken.
func (t *tracker) land(r *lines, line []byte, q *question) error {
	f := q.flight
	if line[0] != ':' {
		return r.skip(line)
	}
	ttl, ok := proto.ParseInt(line[1:])
	if !ok {
		return proto.ErrReply
	}
	if f.overtaken {
		t.stats.overtaken.Add(1)
		return nil
	}
	switch {
	case f.kind == kindNull && ttl == -2, ttl == -1 && f.kind != kindNull && f.kind != kindUnknown:
		t.keep(q, never)
	case ttl > 0 && f.kind != kindNull && f.kind != kindUnknown:
		t.keep(q, q.at+min(time.Duration(ttl), 1<<40)*time.Millisecond)
	}
	return nil
}

// push reads an invalidation. It passes over other pushes.
func (t *tracker) push(r *lines, line []byte) error {
	n, err := length(line)
	if err != nil || n < 1 {
		return proto.ErrReply
	}
	if line, err = r.line(); err != nil {
		return err
	}
	name := ""
	if line[0] == '$' {
		if size, err := length(line); err == nil && size >= 0 && size <= 16 {
			b, err := r.bytes(int(size))
			if err != nil {
				return err
			}
			name, line = string(b), nil
		}
	}
	if line != nil {
		if err := r.skip(line); err != nil {
			return err
		}
	}
	if name != "invalidate" || n != 2 {
		return r.skipValues(n - 1)
	}
	if line, err = r.line(); err != nil {
		return err
	}
	n, err = length(line)
	switch {
	case line[0] == '_' || line[0] == '*' && n == -1 && err == nil:
		t.forgetAll()
		return nil
	case line[0] != '*' || err != nil:
		return proto.ErrReply
	}
	for range n {
		if err := t.invalidate(r); err != nil {
			return err
		}
	}
	return nil
}

// invalidate reads the name of a key and forgets the key.
func (t *tracker) invalidate(r *lines) error {
	line, err := r.line()
	if err != nil {
		return err
	}
	n, err := length(line)
	switch {
	case err != nil || line[0] != '$' || n < 0:
		return proto.ErrReply
	case n > maxKey: // such a key was never asked for
		return r.discard(n + 2)
	}
	key, err := r.bytes(int(n))
	if err == nil {
		t.forget(key)
	}
	return err
}

// state returns nil if the origin is cached, and otherwise says why not.
func (t *tracker) state() error {
	if t.up.Load() {
		return nil
	}
	if why := t.why.Load(); why != nil {
		return fmt.Errorf("the origin %s is not cached: %w", t.cfg.URL, *why)
	}
	return fmt.Errorf("the origin %s has not answered yet", t.cfg.URL)
}
