package partition

import (
	"context"
	"slices"
)

// served is a partition that is opened, served or closed here.
type served struct {
	ctx    context.Context // ends when it is to be closed
	cancel context.CancelFunc
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

// serve begins what the map says: opening partitions, closing those that other servers own, handing one over. What nobody owns goes on being served.
//
// Preconditions: mu is held.
func (m *Member) serve() {
	now, me := m.Map(), m.cfg.ID
	for p, owner := range now.Owner {
		switch s := m.parts[p]; {
		case s != nil && owner != me && owner != "":
			s.cancel()
		case s == nil && owner == me && p != m.handing && m.ctx.Err() == nil:
			s = &served{lost: make(chan struct{}, 1), done: make(chan struct{})}
			s.ctx, s.cancel = context.WithCancel(m.ctx)
			m.parts[p] = s
			m.wg.Go(func() { m.keep(p, s) })
		}
	}
	if m.handing != nobody || m.ctx.Err() != nil {
		return
	}
	for p := range now.Owner {
		if now.toHandOver(p, me) {
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
		err := m.cfg.Open(s.ctx, p)
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

// handOver hands a partition over to the next owner, unless the map changes its mind before the partition is closed.
func (m *Member) handOver(p int) {
	defer func() {
		m.mu.Lock()
		m.handing = nobody
		m.serve()
		m.mu.Unlock()
	}()
	if !m.expected(p) {
		return
	}
	m.mu.Lock()
	s := m.parts[p]
	open := s != nil && s.open
	m.mu.Unlock()
	if open && m.cfg.Prepare != nil {
		if err := m.cfg.Prepare(s.ctx, p); err != nil && s.ctx.Err() == nil {
			m.cfg.Logger.Warn("cannot prepare a partition for being handed over", "partition", p, "error", err)
		}
		if !m.Map().toHandOver(p, m.cfg.ID) {
			return
		}
	}
	if s != nil {
		s.cancel()
		<-s.done
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
		if err == nil || !sleep(m.ctx, m.cfg.Beat) {
			return
		}
	}
}

// expected waits until the next owner of p has beaten since the move was planned, and so has seen the plan: else it could not know for a beat that it
// is the owner, and nobody would serve the partition. It reports whether p is still to be handed over.
func (m *Member) expected(p int) bool {
	for {
		m.mu.Lock()
		renewed, now, planned := m.renewed, m.Map(), m.planned[p]
		m.mu.Unlock()
		if !now.toHandOver(p, m.cfg.ID) {
			return false
		}
		if next, _ := now.Server(now.Next[p]); next.Beat != planned {
			return true
		}
		select {
		case <-renewed:
		case <-m.ctx.Done():
			return false
		}
	}
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
