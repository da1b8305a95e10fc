package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The kinds of failure, for errors.Is. See also [ReplyError].
var (
	// ErrUnsent: the commands have certainly not been carried out.
	ErrUnsent = errors.New("the command was not sent")
	// ErrUncertain: the commands, or some of them, may have been carried out.
	ErrUncertain = errors.New("the command may have been carried out")
	// ErrTooLong: a reply exceeds Config.MaxReply. It is ErrUncertain, too.
	ErrTooLong = errors.New("the reply is too long")
)

// Why calls end when Close or Forget is called.
var (
	errClosed = errors.New("the links are closed")
	errLeft   = errors.New("the server has left")
)

// answerTime is how long a call that has sent something still waits for replies when its server has left: a server
// that ends in good order answers what it has got.
const answerTime = 500 * time.Millisecond

// ReplyError is an error that a server answered to a command before the last one. All
// commands of the call have been answered.
type ReplyError struct {
	Text string // without the leading '-'
}

func (e *ReplyError) Error() string { return e.Text }

// Config says how to reach other servers. The zero value is ready for use.
type Config struct {
	// Password, called for each new link, returns the password to present with AUTH. If it is nil or returns "",
	// there is no AUTH.
	Password func() string
	// Dial connects, by TCP by default. It must return when ctx ends. If a connection has a NetConn method, as
	// *tls.Conn does, it is closed by closing what NetConn returns. A connection with no socket at the bottom, such
	// as that of net.Pipe, is used only once.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// MaxReply is the longest reply in bytes, 64 MiB by default. A longer one is an error,
	// and ends its connection.
	MaxReply int
	// Conns is the most connections to one server, 16 by default. Further calls wait.
	Conns int
	// Held is the most links that are held, 256 by default. These do not count as Conns.
	Held int
}

// Links are the connections to other servers. Use New.
type Links struct {
	cfg   Config
	ctx   context.Context // done when l is closed
	close context.CancelCauseFunc
	calls sync.WaitGroup // Add only with mu held, and before l is closed

	mu      sync.Mutex
	servers map[string]*server // by address; guarded by mu
	held    int                // how many links are held; guarded by mu
}

// server has what is kept for one address.
type server struct {
	addr  string
	turns chan struct{} // has an element for each call that may use a link
	idle  []*link       // the links used last are at the end; guarded by Links.mu

	ctx   context.Context // done when the server has been forgotten, or Links.ctx is done
	leave context.CancelCauseFunc
}

// New makes links according to cfg. Nothing is connected before it is needed.
func New(cfg Config) *Links {
	if cfg.Password == nil {
		cfg.Password = func() string { return "" }
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if cfg.MaxReply == 0 {
		cfg.MaxReply = 64 << 20
	}
	if cfg.Conns == 0 {
		cfg.Conns = 16
	}
	if cfg.Held == 0 {
		cfg.Held = 256
	}
	l := &Links{cfg: cfg, servers: map[string]*server{}}
	l.ctx, l.close = context.WithCancelCause(context.Background())
	return l
}

// Do sends cmds to the server at addr, pipelined on one connection of version ver of the protocol, which no other
// call uses meanwhile. It returns the raw bytes of the reply to the last command, which may be an error reply,
// appended to dst. If an earlier reply is an error, Do returns the first such reply as a *ReplyError. Every other
// error is ErrUnsent or ErrUncertain, and wraps the context's error if that ended the call. With any error, dst is
// returned as it was.
//
// All commands are written before any reply is read. So not both should exceed a socket's buffer: the commands, and
// the replies before the last.
//
// Preconditions: ver is 2 or 3. Each command has a name, and is answered by one reply. The last command leaves the
// connection as it was before the first: no SUBSCRIBE, no SELECT, no MULTI without EXEC.
func (l *Links) Do(ctx context.Context, addr string, ver int, dst []byte, cmds ...[][]byte) ([]byte, error) {
	if !l.enter() {
		return dst, failure(ctx, addr, ErrUnsent, errClosed)
	}
	defer l.calls.Done()
	l.mu.Lock()
	s := l.server(addr)
	l.mu.Unlock()
	return l.do(ctx, s, nil, ver, dst, cmds)
}

// do is Do. If h is not nil, the call uses h's link; if h has none yet, the call gets one and leaves it to h.
//
// Preconditions: the call has entered l.
func (l *Links) do(ctx context.Context, s *server, h *Held, ver int, dst []byte, cmds [][][]byte) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var begun atomic.Bool // the commands are being sent, or never will be
	defer context.AfterFunc(s.ctx, func() {
		if begun.Swap(true) {
			select {
			case <-time.After(answerTime):
			case <-ctx.Done():
			case <-l.ctx.Done():
			}
		}
		cancel(context.Cause(s.ctx))
	})()
	w := works.Get().(*work)
	defer w.free()
	var k *link
	if h != nil {
		k, h.k = h.k, nil
	}
	if k == nil {
		select {
		case s.turns <- struct{}{}:
		case <-ctx.Done():
			return dst, failure(ctx, s.addr, ErrUnsent, nil)
		}
		defer func() { <-s.turns }()
		// Several cases may have been ready, and select may have chosen the turn. A call that ended for the same
		// reason as this one has to end may have left that turn.
		if left := context.Cause(s.ctx); left != nil || ctx.Err() != nil {
			return dst, failure(ctx, s.addr, ErrUnsent, left)
		}
		if k = l.idle(s, ver); k == nil {
			var err error
			if k, err = l.connect(ctx, s.addr, ver, w); err != nil {
				return dst, failure(ctx, s.addr, ErrUnsent, err)
			}
		}
	}
	if begun.Swap(true) {
		k.hangUp()
		return dst, failure(ctx, s.addr, ErrUnsent, context.Cause(s.ctx))
	}
	stop := context.AfterFunc(ctx, k.hangUp)
	reply, kind, err := k.exchange(w, dst, cmds, l.cfg.MaxReply)
	switch {
	case !stop() || kind != nil || w.from != w.to: // bytes behind the reply would answer nothing
		k.hangUp()
	case h != nil:
		h.k = k
	default:
		l.mu.Lock()
		l.keep(s, k)
		l.mu.Unlock()
	}
	if kind != nil {
		return dst, failure(ctx, s.addr, kind, err)
	}
	if err != nil {
		return dst, err
	}
	return reply, nil
}

// failure returns an error of a kind. If ctx has ended, it names the cause of that, and not err, which is only a
// consequence.
func failure(ctx context.Context, addr string, kind, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("cannot forward to %s: %w: %w", addr, kind, err)
}

// enter begins a call. It returns false if l is closed.
func (l *Links) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return false
	}
	l.calls.Add(1)
	return true
}

// server returns what is kept for an address.
//
// Preconditions: l.mu is held.
func (l *Links) server(addr string) *server {
	s := l.servers[addr]
	if s == nil {
		s = &server{addr: addr, turns: make(chan struct{}, l.cfg.Conns)}
		s.ctx, s.leave = context.WithCancelCause(l.ctx)
		l.servers[addr] = s
	}
	return s
}

// idle returns an idle link of version ver that is still open. If there is none, it returns nil and has made room for
// a new link.
//
// Preconditions: the caller has one of s.turns.
func (l *Links) idle(s *server, ver int) *link {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(s.idle) - 1; i >= 0; i-- {
		if k := s.idle[i]; k.ver == ver {
			s.idle = slices.Delete(s.idle, i, i+1)
			if k.quiet() {
				return k
			}
			k.hangUp()
		}
	}
	// The idle links that are left have the other version. At most len(s.turns) links are in use, the caller's
	// included.
	for len(s.idle) > 0 && len(s.idle)+len(s.turns) > l.cfg.Conns {
		s.idle[0].hangUp()
		s.idle = slices.Delete(s.idle, 0, 1)
	}
	return nil
}

// keep makes k an idle link to s. If s has been forgotten meanwhile, or l was closed, it closes k.
//
// Preconditions: l.mu is held.
func (l *Links) keep(s *server, k *link) {
	if s.ctx.Err() != nil {
		k.hangUp()
		return
	}
	s.idle = append(s.idle, k)
}

// Forget closes the idle links to the server at addr, which has left, and ends the calls under way. Calls that have
// sent nothing yet end at once with ErrUnsent. The others have half a second to be answered, and then end with
// ErrUncertain.
func (l *Links) Forget(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(addr)
}

// forget is Forget.
//
// Preconditions: l.mu is held.
func (l *Links) forget(addr string) {
	if s := l.servers[addr]; s != nil {
		delete(l.servers, addr)
		for _, k := range s.idle {
			k.hangUp()
		}
		s.idle = nil
		s.leave(errLeft)
	}
}

// Close ends all calls under way with an error, and returns when they have ended. Later
// calls fail with ErrUnsent. Close is idempotent.
func (l *Links) Close() {
	l.mu.Lock()
	l.close(errClosed)
	for addr := range l.servers {
		l.forget(addr)
	}
	l.mu.Unlock()
	l.calls.Wait()
}
