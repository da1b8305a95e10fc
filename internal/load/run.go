package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// Config says what a Run does.
type Config struct {
	Addr      string // of the server, HOST:PORT
	Conns     int
	Pipeline  int // commands in a batch
	Op        Op
	ValueSize int      // at least KeySize
	Sequence  []uint32 // the keys, in order; from the start again at the end
	Offset    int      // where in Sequence to begin, so that runs differ

	// The run ends when Count commands were sent, or if that is zero after
	// Duration. Replies in the first Warmup of it are not measured.
	Count    int
	Duration time.Duration
	Warmup   time.Duration

	// Stall is how long the server may be silent. Zero means 10 s.
	Stall time.Duration
}

// Result is what a Run measured.
type Result struct {
	Ops     int64 // commands answered, after the warm-up
	Elapsed time.Duration
	Latency *hdrhistogram.Histogram // in nanoseconds

	Missing int64  // GETs that found nothing
	Failed  int64  // error replies
	Failure string // the first of them
}

// Throughput is commands answered a second.
func (r Result) Throughput() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Ops) / r.Elapsed.Seconds()
}

// Run drives a server. It fails if a connection cannot be made or is lost, if
// the server falls silent or says what it must not, or with ctx's error.
func Run(ctx context.Context, cfg Config) (Result, error) {
	if cfg.Conns < 1 || cfg.Pipeline < 1 || cfg.ValueSize < KeySize || len(cfg.Sequence) == 0 || cfg.Offset < 0 {
		return Result{}, fmt.Errorf("cannot run a load of %d connections, %d commands a batch, %d-byte values and %d keys from the %dth: "+
			"expected at least 1, 1, %d, 1 and 0", cfg.Conns, cfg.Pipeline, cfg.ValueSize, len(cfg.Sequence), cfg.Offset, KeySize)
	}
	if cfg.Stall == 0 {
		cfg.Stall = 10 * time.Second
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	l, err := newLoop(cfg)
	if err != nil {
		return Result{}, fmt.Errorf("cannot load %s: %w", cfg.Addr, err)
	}
	defer l.close()
	if err = l.connect(); err == nil {
		err = l.run(ctx)
	}
	if err != nil {
		return Result{}, fmt.Errorf("cannot load %s: %w", cfg.Addr, err)
	}
	return l.result, nil
}

// loop is one run's event loop.
type loop struct {
	cfg    Config
	epoll  int
	conns  []*conn
	parser *parser

	next   int // index of Sequence
	sent   int
	busy   int       // connections with a batch in flight
	start  time.Time // of what is measured
	end    time.Time
	result Result
}

type conn struct {
	fd    int
	batch batch
	keys  []uint32 // of the batch in flight
	sent  time.Time
	left  int    // replies still to come
	out   []byte // of the batch, not yet written
	in    []byte
	n     int // bytes in in
}

func newLoop(cfg Config) (*loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create an epoll descriptor: %w", err)
	}
	return &loop{cfg: cfg, epoll: epoll, parser: newParser(cfg.Op, cfg.ValueSize), next: cfg.Offset % len(cfg.Sequence)}, nil
}

func (l *loop) connect() error {
	cfg := l.cfg
	addr, err := net.ResolveTCPAddr("tcp", cfg.Addr)
	if err != nil {
		return err
	}
	for i := range cfg.Conns {
		fd, err := dial(addr)
		if err != nil {
			return err
		}
		l.conns = append(l.conns, &conn{
			fd:    fd,
			batch: newBatch(cfg.Op, cfg.Pipeline, cfg.ValueSize),
			keys:  make([]uint32, cfg.Pipeline),
			in:    make([]byte, cfg.Pipeline*max(cfg.ValueSize+32, maxLine)+maxLine),
		})
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}
		if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
			return fmt.Errorf("cannot watch a connection: %w", err)
		}
	}
	return nil
}

// dial returns a connected socket that does not block.
func dial(addr *net.TCPAddr) (int, error) {
	family, to := unix.AF_INET6, unix.Sockaddr(nil)
	if ip4 := addr.IP.To4(); ip4 != nil {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(ip4)}
	} else {
		to = &unix.SockaddrInet6{Port: addr.Port, Addr: [16]byte(addr.IP.To16())}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("cannot create a socket: %w", err)
	}
	err = unix.Connect(fd, to)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = unix.Close(fd) // the error at hand says more
		return 0, fmt.Errorf("cannot connect: %w", err)
	}
	return fd, nil
}

func (l *loop) close() {
	for _, c := range l.conns {
		_ = unix.Close(c.fd) // nothing is left to be written
	}
	_ = unix.Close(l.epoll)
}

func (l *loop) run(ctx context.Context) error {
	// Three digits of precision from a microsecond to a minute.
	l.result.Latency = hdrhistogram.New(1000, int64(time.Minute), 3)
	begin := time.Now()
	l.start = begin.Add(l.cfg.Warmup)
	l.end = l.start.Add(l.cfg.Duration)
	last := begin
	for i, c := range l.conns {
		if err := l.send(i, c, begin); err != nil {
			return err
		}
	}
	events := make([]unix.EpollEvent, len(l.conns))
	for l.busy > 0 {
		n, err := unix.EpollWait(l.epoll, events, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("cannot wait for replies: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if n <= 0 {
			if silent := time.Since(last); silent > l.cfg.Stall {
				return fmt.Errorf("no reply for %v", silent.Round(time.Millisecond))
			}
			continue
		}
		for _, ev := range events[:n] {
			c := l.conns[ev.Fd]
			if ev.Events&unix.EPOLLOUT != 0 {
				if err := l.flush(int(ev.Fd), c, true); err != nil {
					return err
				}
			}
			if ev.Events&^unix.EPOLLOUT == 0 {
				continue
			}
			if last, err = l.receive(int(ev.Fd), c); err != nil {
				return err
			}
		}
	}
	l.result.Elapsed = last.Sub(l.start)
	return nil
}

// send puts the next batch on its way, unless the run is to end.
func (l *loop) send(i int, c *conn, now time.Time) error {
	n := l.cfg.Pipeline
	if l.cfg.Count > 0 {
		n = min(n, l.cfg.Count-l.sent)
	} else if !now.Before(l.end) {
		n = 0
	}
	if n == 0 {
		return nil
	}
	for j := range n {
		k := l.cfg.Sequence[l.next]
		if l.next++; l.next == len(l.cfg.Sequence) {
			l.next = 0
		}
		c.keys[j] = k
		c.batch.put(j, k)
	}
	l.sent += n
	l.busy++
	c.left, c.keys = n, c.keys[:n]
	c.out = c.batch.wire[:n*c.batch.size]
	c.sent = now
	return l.flush(i, c, false)
}

// flush writes what the socket takes, and has epoll say when it takes more.
// Watched says that epoll is doing so already.
func (l *loop) flush(i int, c *conn, watched bool) error {
	for len(c.out) > 0 {
		n, err := unix.Write(c.fd, c.out)
		switch {
		case err == nil:
			c.out = c.out[n:]
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("cannot write to a connection: %w", err)
		}
		if watched {
			return nil
		}
		return l.watch(i, c, unix.EPOLLIN|unix.EPOLLOUT)
	}
	if watched {
		return l.watch(i, c, unix.EPOLLIN)
	}
	return nil
}

func (l *loop) watch(i int, c *conn, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(i)}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_MOD, c.fd, &ev); err != nil {
		return fmt.Errorf("cannot watch a connection: %w", err)
	}
	return nil
}

// receive reads once, takes the complete replies, and sends the next batch
// after the last of them. It returns the time of the read.
func (l *loop) receive(i int, c *conn) (time.Time, error) {
	n, err := unix.Read(c.fd, c.in[c.n:])
	now := time.Now()
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return now, nil
	case err != nil:
		return now, fmt.Errorf("cannot read from a connection: %w", err)
	case n == 0:
		return now, errors.New("the server closed a connection")
	}
	c.n += n
	at, answered := 0, 0
	for c.left > 0 {
		k := c.keys[len(c.keys)-c.left]
		size, what, err := l.parser.parse(c.in[at:c.n], k)
		if errors.Is(err, errIncomplete) {
			break
		}
		if err != nil {
			return now, err
		}
		l.note(what, c.in[at:at+size])
		at += size
		c.left--
		answered++
	}
	if !now.Before(l.start) && answered > 0 {
		l.result.Ops += int64(answered)
		if err := l.result.Latency.RecordValues(int64(now.Sub(c.sent)), int64(answered)); err != nil {
			return now, fmt.Errorf("cannot record a latency of %v: %w", now.Sub(c.sent), err)
		}
	}
	c.n = copy(c.in, c.in[at:c.n])
	if c.left > 0 {
		return now, nil
	}
	if c.n > 0 {
		return now, fmt.Errorf("got %d bytes more than there were replies to come", c.n)
	}
	l.busy--
	c.keys = c.keys[:cap(c.keys)]
	return now, l.send(i, c, now)
}

func (l *loop) note(what reply, line []byte) {
	switch what {
	case replyMissing:
		l.result.Missing++
	case replyFailed:
		if l.result.Failed == 0 {
			l.result.Failure = string(line[1 : len(line)-2])
		}
		l.result.Failed++
	}
}
