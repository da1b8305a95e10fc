// Package memcached serves memcached's text and meta protocols out of a soft.Map, so that programs that had a
// memcached of their own can use idle memory.
//
// It is a cache without a size: it uses what memory there is, and an item whose memory is taken away is a miss. The
// expiry of items, their flags, their unique numbers (cas) and the choice of the client that may recache an item are
// as in memcached; memcached's answers to the same commands are in testdata. Commands that depend on memcached's
// slabs (lru_crawler, slabs, watch) are answered with an error.
//
// # Concurrency
//
// One goroutine for each connection, and one that accepts. Commands that read
// and then write hold one of a fixed number of locks, chosen by the key; plain
// reads and writes do too, so that each command is atomic for its key.
//
// # Wire
//
// protocol.txt of memcached 1.6, over TCP, with the flags E, x and N of ms that
// came later. Keys are up to 250 bytes without
// blanks or control characters (any bytes with the meta flag b), values up to
// MaxValue bytes, command lines up to MaxLine.
package memcached

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/accept"
	"polder/internal/brief"
	"polder/internal/ratelog"
	"polder/resp/clientmem"
	"polder/soft"
)

// Limits of the protocol.
const (
	MaxKey   = 250
	MaxValue = 1 << 20
	MaxLine  = 64 << 10
)

// refusalTimeout is how long a client beyond MaxConns may take to be told that it is refused.
const refusalTimeout = time.Second

// Config says what to serve. Heap is required.
type Config struct {
	Heap *soft.Heap

	// MaxConns bounds connections. Default 1024.
	MaxConns int

	// WriteTimeout is how long a client may take to read an answer. Default
	// 30 s.
	WriteTimeout time.Duration

	// ClientMemory bounds what all connections together hold of keys and values on their way in and out; when they
	// hold more, the connection that holds most is closed. Servers may share one budget. Default: 128 MiB, for this
	// server alone.
	ClientMemory *clientmem.Budget

	Logger *slog.Logger // default: slog.Default
}

// Server serves connections.
type Server struct {
	cfg   Config
	items *soft.ByteMap
	locks [256]sync.Mutex // by key
	cas   atomic.Uint64
	flush flush
	uses  uses
	begun time.Time
	clock func() time.Time // as memcached's: begun and the time since, so that setting the host's clock ages no item
	stats counters

	refusals *accept.Gate // connections beyond MaxConns, which are told so

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	lis    map[net.Listener]struct{}
	closed bool
	done   sync.WaitGroup
}

type counters struct {
	gets, hits, sets, touches, deletes, total, flushes atomic.Uint64
}

// New makes a server.
func New(cfg Config) (*Server, error) {
	if cfg.Heap == nil {
		return nil, errors.New("cannot serve memcached: no heap is given")
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 1024
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = 30 * time.Second
	}
	if cfg.MaxConns < 0 || cfg.WriteTimeout < 0 {
		return nil, errors.New("cannot serve memcached: a limit is negative")
	}
	if cfg.ClientMemory == nil {
		cfg.ClientMemory = clientmem.New(128 << 20)
	}
	if most := cfg.ClientMemory.Max(); most < 4*MaxValue {
		return nil, fmt.Errorf("cannot serve memcached: clients may hold %d bytes, want at least %d, four times the largest value", most, 4*MaxValue)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Logger = ratelog.Bound(cfg.Logger)
	m, err := soft.NewByteMap(cfg.Heap, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot serve memcached: %w", err)
	}
	begun := time.Now()
	return &Server{
		cfg: cfg, items: m, begun: begun, clock: func() time.Time { return begun.Add(time.Since(begun)) },
		refusals: accept.NewGate(cfg.Logger, refusalTimeout),
		conns:    make(map[net.Conn]struct{}), lis: make(map[net.Listener]struct{}),
	}, nil
}

// Serve accepts connections until the listener or the server is closed; then
// it returns nil. If lis gives TLS connections, only those whose handshake has
// succeeded count.
func (s *Server) Serve(lis net.Listener) error {
	lis = accept.Listen(lis, s.cfg.Logger)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return lis.Close()
	}
	s.lis[lis] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.lis, lis)
		s.mu.Unlock()
		lis.Close() // again, mostly
	}()
	for {
		conn, err := lis.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot accept: %w", err)
		}
		conn = brief.Of(conn)
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			conn.Close()
			continue
		}
		if len(s.conns) >= s.cfg.MaxConns {
			s.mu.Unlock()
			s.refusals.Go(conn, func(*accept.Visitor) error { return s.refuse(conn) })
			continue
		}
		s.conns[conn] = struct{}{}
		s.stats.total.Add(1)
		s.done.Go(func() {
			s.serve(conn)
			conn.Close()
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
		})
		s.mu.Unlock()
	}
}

// refuse tells a client that there are too many. The error says so, too.
func (s *Server) refuse(conn net.Conn) error {
	_, err := io.WriteString(conn, "ERROR Too many open connections\r\n")
	return errors.Join(fmt.Errorf("there are %d connections, as many as may be", s.cfg.MaxConns), err)
}

// Close ends all connections and forgets all items. The heap stays open.
// Closing twice is a no-op.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	var errs []error
	for l := range s.lis {
		errs = append(errs, l.Close())
	}
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.refusals.Close()
	s.done.Wait()
	s.items.Close()
	return errors.Join(errs...)
}

// errQuit ends a connection without an error.
var errQuit = errors.New("quit")

// client is one connection's state.
type client struct {
	s    *Server
	src  io.Reader // the connection
	in   *bufio.Reader
	out  *bufio.Writer
	now  time.Time // when the command that is being answered came
	args [][]byte
	item []byte // the last one read
	data []byte // the last block received
	code []byte // the last item written

	misses soft.Misses
	mem    *clientmem.Account
}

func (s *Server) newClient(r io.Reader, w io.Writer) *client {
	c := &client{s: s, out: bufio.NewWriterSize(w, idleBuffer), mem: s.cfg.ClientMemory.Join()}
	c.src = arrivals{r, c}
	c.in = bufio.NewReaderSize(c.src, idleBuffer)
	return c
}

func (s *Server) serve(conn net.Conn) {
	c := s.newClient(conn, deadline{conn, s.cfg.WriteTimeout})
	defer c.mem.Leave()
	c.mem.HangUp = func() { clientmem.HangUp(conn) }
	for {
		err := c.command()
		if c.mem.Evicted() {
			return
		}
		if err == nil && c.in.Buffered() == 0 {
			err = c.out.Flush() // one flush for what came together
			c.shrink()
		}
		if err != nil {
			_ = c.out.Flush()
			if !errors.Is(err, errQuit) && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				s.cfg.Logger.Debug("a memcached client has gone", "remote", conn.RemoteAddr(), "err", err)
			}
			return
		}
	}
}

// idleBuffer is the size of each of an idle connection's two buffers, and keptBuffer how large each of its other
// buffers may stay. There may be many connections.
const (
	idleBuffer = 16 << 10
	keptBuffer = 4 << 10
)

// shrink forgets what large commands have made large.
//
// Preconditions: no input is buffered.
func (c *client) shrink() {
	for _, b := range []*[]byte{&c.item, &c.data, &c.code} {
		if cap(*b) > keptBuffer {
			*b = nil
		}
	}
	if cap(c.args)*argSize > keptBuffer {
		c.args = nil
	}
	if c.in.Size() > idleBuffer {
		c.in = bufio.NewReaderSize(c.src, idleBuffer)
	}
	c.hold()
}

const argSize = 24 // of a slice, on 64 bits

// hold accounts for what the connection has beside its idle buffers. If that is too much, the budget closes the
// connection that holds most; the goroutine of that one finds out when it uses it next.
func (c *client) hold() {
	c.mem.Hold(cap(c.item) + cap(c.data) + cap(c.code) + cap(c.args)*argSize + c.in.Size() - idleBuffer)
}

// line reads a line, with the line feed. It is valid until the next one is read.
func (c *client) line() ([]byte, error) {
	for {
		line, err := c.in.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) || c.in.Size() >= MaxLine {
			return line, err
		}
		again := io.MultiReader(bytes.NewReader(bytes.Clone(line)), c.src)
		c.in = bufio.NewReaderSize(again, min(2*c.in.Size(), MaxLine))
		c.hold()
	}
}

// arrivals notes when input came. Looking at the clock for each command would take longer than some commands do; not
// looking while there is more to read would leave a client that sends without a pause in the past.
type arrivals struct {
	r io.Reader
	c *client
}

func (r arrivals) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if n > 0 {
		r.c.now = r.c.s.clock()
	}
	return n, err
}

// deadline bounds each write.
type deadline struct {
	net.Conn
	d time.Duration
}

func (w deadline) Write(p []byte) (int, error) {
	if err := w.SetWriteDeadline(time.Now().Add(w.d)); err != nil {
		return 0, err
	}
	return w.Conn.Write(p)
}

// ListenAndServe serves at a TCP address until ctx is done.
func (s *Server) ListenAndServe(ctx context.Context, addr string) error {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("cannot serve memcached: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { lis.Close() })
	defer stop()
	return s.Serve(lis)
}
