package partition

import (
	"context"
	"slices"
	"time"
)

// served is a partition that is opened, served or closed here.
type served struct {
	ctx    context.Context // ends when the partition is to be closed
	cancel context.CancelFunc
	mine   chan struct{} // closed when the map makes this server the owner
	came   time.Time     // when mine was closed, or zero; guarded by Member.mu
	open   bool          // Config.Open has succeeded, and the partition is served; guarded by Member.mu
	lost   chan struct{} // capacity 1: full when Member.Lost was called
	done   chan struct{} // closed when keep ends
}

// Lost is called when another server has opened partition p, which this server had open; the caller has closed it
// before. If the map still gives the partition to this server it is opened again. Call Lost at most once for each
// success of Config.Open. Config.Close may be called nevertheless, if the map gives the partition to another server
// at that moment.
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

// serve starts what the map asks of this server: opening the partitions that it owns or expects, closing those that
// belong to other servers, and handing one over. A partition that has no owner goes on being served.
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

// toHandOver reports whether the server with this ID is to hand partition p over.
func (m *Map) toHandOver(p int, id string) bool { return m.Owner[p] == id && m.Next[p] != "" }

// keep opens a partition, and closes it when s.ctx ends. After Member.Lost it opens the partition again.
func (m *Member) keep(p int, s *served) {
	defer func() {
		s.cancel()
		m.mu.Lock()
		delete(m.parts, p) // if the map gives it to this server again, the next beat opens it
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

// opened opens a partition, and reports whether it is open. It tries until it succeeds or s.ctx ends.
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

// lookAgain acts on a map that was read after the call began. It reports whether ctx has not ended.
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

// handOver makes the next owner of a partition its owner, unless the map has dropped the move by then. The partition
// is closed only afterwards: it is served here until the map is known to have changed, and meanwhile the next owner
// prepares.
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
	if s != nil && m.Map().Owner[p] != m.cfg.ID { // install has cancelled s.ctx
		<-s.done
	}
}

// expected reports whether the next owner of p waits for it. A next owner of a version that does not set Expects
// counts as waiting once it has beaten since the move was planned: it has seen the plan by then.
//
// Preconditions: mu is held.
func (m *Member) expected(now *Map, p int) bool {
	next, _ := now.Server(now.Next[p])
	return next.Expects == p+1 || next.Expects == 0 && next.Beat != m.planned[p]
}

// handedOver reports whether this server owns no partition any more, or no other server could take one.
func (m *Member) handedOver() bool {
	now := m.Map()
	others := slices.ContainsFunc(now.Servers, func(s Server) bool { return s.ID != m.cfg.ID && !s.Leaving })
	return !others || !slices.Contains(now.Owner, m.cfg.ID)
}

// halt closes the partitions that are open here, and ends all goroutines.
func (m *Member) halt() {
	m.mu.Lock()
	m.stop() // under mu, so that serve begins nothing after it
	m.mu.Unlock()
	m.wg.Wait()
	m.abort()
}
