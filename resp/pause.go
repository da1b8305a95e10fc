package resp

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/table"
)

// maxPause is the longest CLIENT PAUSE: a number that is too large by mistake is
// refused, and does not stop the clients for years.
const maxPause = time.Hour

// pause is what CLIENT PAUSE has asked for: the commands that it concerns wait,
// unread, until it ends.
type pause struct {
	srv  *Server
	what atomic.Int32 // pauseNone and so on

	mu    sync.Mutex
	timer *time.Timer   // ends it; guarded by mu
	over  chan struct{} // closed when it ends or changes; guarded by mu
	shut  bool          // the server ends: no more pauses; guarded by mu
}

const (
	pauseNone int32 = iota
	pauseWrites
	pauseAll
)

// begin pauses for d, and replaces the pause that there was: no command passes between the two.
func (p *pause) begin(what int32, d time.Duration) {
	p.mu.Lock()
	if d <= 0 || p.shut {
		what = pauseNone
	}
	p.set(what)
	if what != pauseNone {
		var timer *time.Timer
		timer = time.AfterFunc(d, func() {
			p.mu.Lock()
			if p.timer == timer { // no other pause has replaced this one
				p.set(pauseNone)
			}
			p.mu.Unlock()
			p.resume()
		})
		p.timer = timer
	}
	p.mu.Unlock()
	p.resume()
}

// end ends the pause, if there is one.
func (p *pause) end() {
	p.mu.Lock()
	p.set(pauseNone)
	p.mu.Unlock()
	p.resume()
}

// close ends the pause, and no other one begins.
func (p *pause) close() {
	p.mu.Lock()
	p.shut = true
	p.mu.Unlock()
	p.end()
}

// set changes what is paused, stops the timer, and has the streams that wait look again.
//
// Preconditions: p.mu is held.
func (p *pause) set(what int32) {
	p.what.Store(what)
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if p.over != nil {
		close(p.over)
		p.over = nil
	}
}

// resume has the event loops look at their paused clients again.
func (p *pause) resume() {
	for _, l := range p.srv.loops {
		l.resuming.Store(true)
		l.rouse()
	}
}

// wait returns a channel that is closed when the pause ends or changes, nil if
// there is none.
func (p *pause) wait() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.what.Load() == pauseNone {
		return nil
	}
	if p.over == nil {
		p.over = make(chan struct{})
	}
	return p.over
}

// paused reports whether a command must wait for the end of a pause. Monitors and RESP2 subscribers never wait: they
// run no commands that a pause concerns. Unlike in Redis, CLIENT never waits: somebody has to be able to end a pause.
func (s *session) paused(cmd *table.Command) bool {
	what := s.srv.pause.what.Load()
	if what == pauseNone || s.info.monitors.Load() || s.Ver < 3 && s.subs.Any() || cmd.Flags&(table.NoAuth|table.Unpaused) != 0 {
		return false
	}
	return what == pauseAll || cmd.WritesOrPublishes() ||
		cmd.Name == "exec" && slices.ContainsFunc(s.queue, func(q queued) bool { return q.cmd.WritesOrPublishes() })
}

func cmdClientPause(s *session, a [][]byte) error {
	what := pauseAll
	switch {
	case len(a) > 4:
		return reply.Error("ERR unknown subcommand or wrong number of arguments for '" + proto.Clip(a[1], 128) + "'. Try CLIENT HELP.")
	case len(a) == 3, proto.Is(a[3], "all"):
	case proto.Is(a[3], "write"):
		what = pauseWrites
	default:
		return reply.Error("ERR CLIENT PAUSE mode must be WRITE or ALL")
	}
	ms, ok := proto.ParseInt(a[2])
	switch {
	case !ok:
		return reply.Error("ERR timeout is not an integer or out of range")
	case ms < 0:
		return reply.Error("ERR timeout is negative")
	case ms > maxPause.Milliseconds():
		return reply.Error("ERR timeout is out of range: a pause is " + itoa(maxPause.Milliseconds()) + " milliseconds at most")
	}
	s.srv.pause.begin(what, time.Duration(ms)*time.Millisecond)
	s.OK()
	return nil
}

func cmdClientUnpause(s *session, a [][]byte) error {
	s.srv.pause.end()
	s.OK()
	return nil
}
