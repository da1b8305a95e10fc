package partition

import (
	"context"
	"slices"
	"time"
)

// served is a partition that is opened, served or closed here.
type served struct {
	ctx    context.Context // ends when it is to be closed
	cancel context.CancelFunc
	mine   chan struct{} // closed when it is this server's
	came   time.Time     // when that was, or zero; guarded by Member.mu
	open   bool          // it is served; guarded by Member.mu
	lost   chan struct{} // capacity 1: has something in it when it was closed because another server has opened it
	done   chan struct{} // closed when it is closed
}

// Lost says that another server has opened partition p, which this one had open, and that the caller has closed it. If the map still gives it to
// this server it is opened again. It is called once for each success of Config.Open at most. Config.Close may be called nevertheless, if the map
// gives the partition to another server at that moment.
func (m *Member) Lost(p int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.parts[p]; s != nil {
		select {
		case s.lost <- struct{}{}:
		default:
		}
	}
}

// serve begins what the map says: opening partitions that are this server's, or that it expects, closing those that are not, handing one over. What nobody owns
// goes on being served.
//
// Preconditions: mu is held.
func (m *Member) serve() {
	now, me := m.Map(), m.cfg.ID
	self, _ := now.Server(me)
	for p, owner := range now.Owner {
		s, next := m.parts[p], self.Expects == p+1 && now.Next[p] == me
		switch {
		case s != nil && owner != me && owner != "" && !(next && s.came.IsZero()):
			s.cancel()
		case s == nil && (owner == me || next) && m.ctx.Err() == nil:
			s = &served{mine: make(chan struct{}), lost: make(chan struct{}, 1), done: make(chan struct{})}
			s.ctx, s.cancel = context.WithCancel(m.ctx)
			m.parts[p] = s
			m.wg.Go(func() { m.keep(p, s) })
		}
		if s != nil && owner == me && s.came.IsZero() {
			s.came = time.Now()
			close(s.mine)
		}
	}
	if m.handing != nobody || m.ctx.Err() != nil {
		return
	}
	for p := range now.Owner {
		if now.toHandOver(p, me) && m.expected(now, p) {
			m.handing = p
			m.wg.Go(func() { m.handOver(p) })
			return
		}
	}
}

// toHandOver reports whether the server with that ID is to hand partition p over.
func (m *Map) toHandOver(p int, id string) bool { return m.Owner[p] == id && m.Next[p] != "" }

// keep opens a partition, and closes it when it is to be closed.
func (m *Member) keep(p int, s *served) {
	defer func() {
		s.cancel()
		m.mu.Lock()
		delete(m.parts, p) // if it is this server's again the next beat opens it
		m.mu.Unlock()
		close(s.done)
	}()
	for m.opened(p, s) {
		lost := false
		select {
		case <-s.lost:
			lost = true
		case <-s.ctx.Done():
		}
		m.setOpen(s, false)
		if !lost {
			if err := m.cfg.Close(m.life, p); err != nil {
				m.cfg.Logger.Warn("cannot close a partition", "partition", p, "error", err)
			}
			return
		}
		m.cfg.Logger.Warn("another server has opened a partition that was open here", "partition", p)
		if !m.lookAgain(s.ctx) {
			return
		}
	}
}

// opened opens a partition, and reports whether it is open. It tries until the partition is to be closed.
func (m *Member) opened(p int, s *served) bool {
	for pause := firstPause; s.ctx.Err() == nil; pause = min(2*pause, mostPause) {
		err := m.cfg.Open(s.ctx, p, s.mine)
		if err == nil {
			m.setOpen(s, true)
			return true
		}
		if s.ctx.Err() == nil {
			m.cfg.Logger.Warn("cannot open a partition", "partition", p, "error", err, "again", pause)
			sleep(s.ctx, pause)
		}
	}
	return false
}

func (m *Member) setOpen(s *served, open bool) {
	m.mu.Lock()
	s.open = open
	m.mu.Unlock()
}

// lookAgain acts on a map that is not older than the call. It reports whether ctx has not ended.
func (m *Member) lookAgain(ctx context.Context) bool {
	for {
		asking, cancel := context.WithTimeout(ctx, m.cfg.Patience/2)
		_, _, err := m.look(asking)
		cancel()
		if err == nil {
			return ctx.Err() == nil
		}
		if !sleep(ctx, m.cfg.Beat) {
			return false
		}
	}
}

// handOver makes the next owner of a partition the owner, unless the map changes its mind before that. Only then the partition is closed: until it is known that
// the map has changed it is served here, and the next owner is ready meanwhile.
func (m *Member) handOver(p int) {
	m.mu.Lock()
	s := m.parts[p]
	open := s != nil && s.open
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.handing = nobody
		m.serve()
		m.mu.Unlock()
	}()
	if open && m.cfg.Prepare != nil {
		if err := m.cfg.Prepare(s.ctx, p); err != nil && s.ctx.Err() == nil {
			m.cfg.Logger.Warn("cannot prepare a partition for being handed over", "partition", p, "error", err)
		}
	}
	for {
		ctx, cancel := context.WithTimeout(m.ctx, m.cfg.Patience/2)
		err := m.change(ctx, func(to *Map) bool {
			if !to.toHandOver(p, m.cfg.ID) {
				return false
			}
			to.Owner[p], to.Next[p] = to.Next[p], ""
			return true
		})
		cancel()
		if err == nil {
			break
		}
		if !sleep(m.ctx, m.cfg.Beat) {
			return
		}
	}
	if s != nil && m.Map().Owner[p] != m.cfg.ID { // install has had it closed
		<-s.done
	}
}

// expected reports whether the next owner of p waits for it. One of a version that does not say what it expects does so when it has beaten since the move
// was planned: it has seen the plan then.
//
// Preconditions: mu is held.
func (m *Member) expected(now *Map, p int) bool {
	next, _ := now.Server(now.Next[p])
	return next.Expects == p+1 || next.Expects == 0 && next.Beat != m.planned[p]
}

// handedOver reports whether this server owns nothing any more, or there is no server that could take it.
func (m *Member) handedOver() bool {
	now := m.Map()
	others := slices.ContainsFunc(now.Servers, func(s Server) bool { return s.ID != m.cfg.ID && !s.Leaving })
	return !others || !slices.Contains(now.Owner, m.cfg.ID)
}

// halt closes what is open, and ends all goroutines.
func (m *Member) halt() {
	m.mu.Lock()
	m.stop() // under mu, so that serve begins nothing after it
	m.mu.Unlock()
	m.wg.Wait()
	m.abort()
}
