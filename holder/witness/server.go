package witness

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/accept"
	"polder/internal/ratelog"
)

// Defaults of Config.
const (
	DefaultRegisters = 4096
	DefaultBytes     = 64 << 20
	DefaultClients   = 256
)

const (
	greetTime = 10 * time.Second // how long a client may take to greet
	frameTime = 10 * time.Second // how long receiving a request that has begun may take, and sending an answer
	idleTime  = 10 * time.Minute // how long a client may say nothing
	atATime   = 64               // the most answers of a connection that wait for the disk
	tidyEvery = time.Second      // the time between two checks of how long the log is
)

// Config says what a witness is. Dir is required.
type Config struct {
	Dir       string       // where the witness keeps its state; made if need be
	Registers int          // the most registers; DefaultRegisters if it is 0
	Bytes     int64        // the most bytes of names and values; DefaultBytes if it is 0
	Clients   int          // the most connections; DefaultClients if it is 0
	Logger    *slog.Logger // slog.Default if it is nil
}

// A Server is a witness.
type Server struct {
	cfg     Config
	gate    *accept.Gate
	journal *journal
	quit    chan struct{}  // closed by Close, or when the log fails
	done    sync.WaitGroup // connections, and tidy

	mu     sync.Mutex
	closed bool                      // guarded by mu
	failed error                     // the error with which the log has failed for good; guarded by mu
	tidied error                     // the error of the last attempt to shorten the log; guarded by mu
	lis    map[net.Listener]struct{} // guarded by mu
	conns  map[net.Conn]struct{}     // guarded by mu

	stats counters
}

// ErrClosed says that the server was closed.
var ErrClosed = errors.New("the witness is closed")

// withDefaults returns c with defaults for the fields that are not set, or an error if c is wrong.
func (c Config) withDefaults() (Config, error) {
	if c.Registers == 0 {
		c.Registers = DefaultRegisters
	}
	if c.Bytes == 0 {
		c.Bytes = DefaultBytes
	}
	if c.Clients == 0 {
		c.Clients = DefaultClients
	}
	if c.Registers < 0 || c.Bytes < 0 || c.Clients < 0 {
		return c, errors.New("cannot be a witness: a limit is negative")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = ratelog.Bound(c.Logger)
	return c, nil
}

func newServer(cfg Config, j *journal) *Server {
	return &Server{
		cfg: cfg, gate: accept.NewGate(cfg.Logger, greetTime), journal: j, quit: make(chan struct{}),
		lis: make(map[net.Listener]struct{}), conns: make(map[net.Conn]struct{}),
	}
}

// NewCells returns a server of a node's cells for a Pair: one without a directory, which is no witness. Take gives it
// clients.
func NewCells(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return newServer(cfg, forgetful(limits{cfg.Registers, cfg.Bytes})), nil
}

// NewServer reads the state of the witness in cfg.Dir, or makes a new witness if the directory is empty. It serves
// nobody yet.
func NewServer(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	j, fresh, err := openJournal(cfg.Dir, limits{cfg.Registers, cfg.Bytes}, cfg.Logger)
	if err != nil {
		return nil, err
	}
	s := newServer(cfg, j)
	switch st := s.Status(); {
	case fresh:
		cfg.Logger.Info("this is a new witness: it has no vote until it is let in", "identity", st.ID.String())
	case st.Set == nil:
		cfg.Logger.Info("this witness has no vote yet", "identity", st.ID.String())
	default:
		cfg.Logger.Info("this witness has a vote", "identity", st.ID.String(), "set", st.Set.String(), "registers", st.Registers)
	}
	s.done.Go(s.tidy)
	return s, nil
}

// Status is what a witness is and has.
type Status struct {
	ID        Identity
	Set       *Set // the set that it votes in; nil if it has no vote
	Next      *Set // the set that replaces Set, so that the witness votes no more; nil if there is none
	Registers int
	Bytes     int64 // of their names and values
	Log       int64 // bytes of the log, which a restart reads
}

// Status returns what the witness is and has now.
func (s *Server) Status() Status {
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	a := s.journal.acc
	st := Status{ID: a.id, Set: a.set, Next: a.next, Registers: len(a.registers), Bytes: a.used}
	if s.journal.log != nil {
		st.Log = s.journal.log.Size()
	}
	return st
}

// Health returns why the witness cannot keep what it would promise, or nil. A witness that has no vote is healthy:
// Status and the metrics tell that it has none.
func (s *Server) Health() error {
	s.mu.Lock()
	failed, tidied := s.failed, s.tidied
	s.mu.Unlock()
	switch starved := s.journal.starved(); {
	case failed != nil:
		return failed
	case starved != nil:
		return fmt.Errorf("there is no room for the log: %w", starved)
	}
	return tidied
}

// tidy keeps the log short.
func (s *Server) tidy() {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		err := s.journal.shorten()
		if err != nil {
			s.cfg.Logger.Warn("the witness's log cannot be shortened", "err", err)
		}
		s.mu.Lock()
		s.tidied = err
		s.mu.Unlock()
		select {
		case <-s.quit:
			return
		case <-tick.C:
		}
	}
}

// Serve serves lis, whose connections may use TLS (accept.ListenTLS), and closes it. It returns nil after Close, and
// an error when the log has failed.
func (s *Server) Serve(lis net.Listener) error {
	s.mu.Lock()
	if s.closed || s.failed != nil {
		defer s.mu.Unlock()
		return errors.Join(s.failed, lis.Close())
	}
	s.lis[lis] = struct{}{}
	s.mu.Unlock()
	err := accept.Each(s.cfg.Logger, s.gate.Accept(lis.Accept), func(nc net.Conn) {
		s.gate.Go(nc, func(v *accept.Visitor) error { return s.enter(v, nc) })
	})
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	switch {
	case failed != nil:
		return fmt.Errorf("cannot be a witness any more: %w", failed)
	case errors.Is(err, net.ErrClosed):
		return nil
	}
	return errors.Join(fmt.Errorf("cannot accept: %w", err), lis.Close())
}

// enter exchanges greetings with a client, and serves it in goroutines of its own.
func (s *Server) enter(v *accept.Visitor, nc net.Conn) error {
	if err := greet(nc); err != nil {
		return err
	}
	return s.take(nc, v.Enter, s.converse, func() {})
}

// greet exchanges greetings.
func greet(nc net.Conn) error {
	var b [len(greeting)]byte
	if _, err := io.ReadFull(nc, b[:]); err != nil {
		return err
	}
	if _, err := io.WriteString(nc, greeting); err != nil { // also to a client to be refused, so that it can say why
		return err
	}
	if string(b[:]) != greeting {
		return fmt.Errorf("it greets with %q, want %q", b[:], greeting)
	}
	return nil
}

// Take serves a client that has come by another way than Serve, and has already shown who it is. It does not wait,
// and calls left when the client has gone. If Take fails, nc remains the caller's, and left is not called.
func (s *Server) Take(nc net.Conn, left func()) error {
	return s.take(nc, func() error { return nil }, func(nc net.Conn) error {
		err := nc.SetDeadline(time.Now().Add(greetTime))
		if err == nil {
			err = greet(nc)
		}
		if err == nil {
			err = nc.SetDeadline(time.Time{})
		}
		if err != nil {
			nc.Close()
			return s.unlessGone(err)
		}
		return s.converse(nc)
	}, left)
}

// take serves a client in a goroutine of its own, if enter returns nil.
func (s *Server) take(nc net.Conn, enter func() error, serve func(nc net.Conn) error, left func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || s.failed != nil:
		return ErrClosed
	case len(s.conns) >= s.cfg.Clients:
		return fmt.Errorf("there are %d connections: it is one too many", len(s.conns))
	}
	if err := enter(); err != nil {
		return err
	}
	s.conns[nc] = struct{}{}
	s.stats.accepted.Add(1)
	s.done.Go(func() {
		defer left()
		if err := serve(nc); err != nil {
			s.cfg.Logger.Warn("a client of the witness was disconnected", "client", nc.RemoteAddr().String(), "why", err)
		}
		s.mu.Lock()
		delete(s.conns, nc)
		s.mu.Unlock()
	})
	return nil
}

// answer is a reply that waits for the disk.
type answer struct {
	reply  reply
	commit uint64
}

// converse answers a client's requests until the client goes. It decides them in the order in which they come. One
// sync of the log serves all the answers that have gathered meanwhile.
func (s *Server) converse(nc net.Conn) (err error) {
	answers := make(chan answer, atATime)
	var writing sync.WaitGroup
	writing.Go(func() {
		if err := s.send(nc, answers); err != nil {
			nc.Close()
			for range answers { // the reader will end soon, too
			}
		}
	})
	defer func() {
		close(answers)
		writing.Wait()
		nc.Close()
	}()
	var header [frameHeader]byte
	var body []byte
	in := bufio.NewReaderSize(nc, 4096)
	for {
		if err := nc.SetReadDeadline(time.Now().Add(idleTime)); err != nil {
			return s.unlessGone(err)
		}
		if _, err := io.ReadFull(in, header[:]); err != nil {
			return s.unlessGone(err)
		}
		if err := nc.SetReadDeadline(time.Now().Add(frameTime)); err != nil {
			return s.unlessGone(err)
		}
		if body, err = readBody(in, header, body); err != nil {
			return s.unlessGone(err)
		}
		q, err := decodeRequest(body)
		if err != nil {
			return err
		}
		s.stats.requests[q.Kind].Add(1)
		r, commit := s.journal.decide(q)
		if r.Status == statusBroken {
			s.cfg.Logger.Warn("the witness cannot keep what it would promise", "err", r.Text)
		}
		s.stats.answers[r.Status].Add(1)
		answers <- answer{r, commit}
		if cap(body) > 16<<10 {
			body = nil // an idle client keeps little
		}
	}
}

// send writes answers as soon as the changes that they depend on are on the medium.
func (s *Server) send(nc net.Conn, answers <-chan answer) error {
	var out []byte
	for a := range answers {
		out = a.reply.appendFrame(out[:0])
		upto := a.commit
		for len(answers) > 0 && len(out) < maxBody {
			more := <-answers
			out, upto = more.reply.appendFrame(out), more.commit
		}
		if err := s.journal.commit(upto); err != nil {
			s.fail(err)
			return err
		}
		if err := nc.SetWriteDeadline(time.Now().Add(frameTime)); err != nil {
			return err
		}
		if _, err := nc.Write(out); err != nil {
			return err
		}
		if cap(out) > 16<<10 {
			out = nil
		}
	}
	return nil
}

func (r *reply) appendFrame(b []byte) []byte { return appendFrame(b, r.append) }

// unlessGone returns nil for an error that only says that the client has gone, or that this server is closing, and
// otherwise err.
func (s *Server) unlessGone(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// fail ends the witness, because nobody knows which part of its log is on the medium.
func (s *Server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.failed != nil {
		return
	}
	s.failed = err
	s.cfg.Logger.Error("the witness's log has failed: it answers nobody any more", "err", err)
	s.hangUp()
}

// hangUp closes listeners and connections.
//
// Preconditions: mu is held.
func (s *Server) hangUp() (err error) {
	close(s.quit)
	for lis := range s.lis {
		if e := lis.Close(); !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	for nc := range s.conns {
		closeNow(nc)
	}
	return err
}

// closeNow closes a connection without waiting for its peer. Closing a TLS connection would wait.
func closeNow(nc net.Conn) {
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = t.NetConn()
	}
	nc.Close()
}

// Close stops listening, ends all connections, and closes the log. Closing twice is a no-op.
func (s *Server) Close() (err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if s.failed == nil {
		err = s.hangUp()
	}
	s.mu.Unlock()
	s.gate.Close()
	s.done.Wait()
	return errors.Join(err, s.journal.close())
}

// counters count since the server was made.
type counters struct {
	accepted atomic.Int64
	requests [kinds]atomic.Int64
	answers  [statuses]atomic.Int64
}
