package memnode

import (
	"time"

	"polder/verbs"
)

// This file is how the control goroutine runs FineMem's worker (package rebind).

// ring makes the worker take a turn. Anybody may call it.
func (m *finemem) ring() {
	select {
	case m.wake <- time.Now():
	default: // a turn is due already
	}
}

func (m *finemem) ticks() <-chan time.Time { return m.wake }

// tick is a turn of the worker. woken is when the worker was woken, which may be a while ago.
func (m *finemem) tick(woken time.Time) {
	if m.answerBells() {
		m.looked = woken // a doorbell ended the worker's sleep: what it finds now was freed about then
	}
	rest := m.worker.Turn()
	if m.worker.Idle() {
		m.looked = time.Now()
	}
	if now := time.Now(); now.Sub(m.felt) >= m.node.cfg.Heartbeat {
		m.felt = now
		m.feel(now)
		if m.broken() != nil {
			for c := range m.clients {
				m.node.ready.add(c) // to be dropped
			}
		}
	}
	m.timer.Reset(min(rest, m.node.cfg.Heartbeat))
}

// answerBells posts a new receive for every doorbell that has arrived, and reports whether any had.
func (m *finemem) answerBells() (rang bool) {
	var wcs [32]verbs.WC
	for {
		n := m.bells.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			if qp := m.ringer[wc.QPN]; qp != nil && wc.Err() == nil {
				rang = true
				_ = qp.PostRecv(verbs.RecvWR{}) // fails only if qp has failed, and then its client is disconnected
			}
		}
		if n < len(wcs) {
			return rang
		}
	}
}

// maxMissed is how many heartbeats a client may miss.
const maxMissed = 3

// feel disconnects clients whose hearts have stopped beating.
func (m *finemem) feel(now time.Time) {
	for c, t := range m.clients {
		user := m.users[c.session]
		if t.meta == nil || user == 0 {
			continue
		}
		if v := m.table.Beats(user); v != t.beats {
			t.beats, t.beatAt, t.beating = v, now, true
			continue
		}
		if t.beating && now.Sub(t.beatAt) > maxMissed*m.node.cfg.Heartbeat {
			m.node.log.Warn("client does not show that it is alive", "peer", c.conn.RemoteAddr(), "session", c.session.wire.ID)
			c.gone.Store(true)
			m.node.ready.add(c)
		}
	}
}

// work gives one batch of freed memory new keys.
func (m *finemem) work() bool {
	if m.worker.Idle() {
		return false
	}
	m.worked(m.worker.Batch())
	now := time.Now()
	m.lag.Store(int64(now.Sub(m.looked)))
	if m.worker.Idle() {
		m.looked = now
		if m.worker.Again() {
			m.ring()
		}
	}
	return !m.worker.Idle()
}

// worked counts n new keys, and logs err.
func (m *finemem) worked(n int, err error) {
	m.rebound.Add(int64(n))
	if err != nil {
		m.node.log.Warn("cannot rebind windows", "error", err)
	}
}

// settling is the progress of the node with a client's request to settle (see settle).
type settling struct {
	rebound uint64 // what rebind.Worker.Done must reach: then all that had been freed has new keys
	closed  uint32 // sections whose idle spans have been closed
}

// settleSlice is how long the control goroutine settles at a time.
const settleSlice = time.Millisecond

// settle gives new keys to everything that had been freed when s first asked, and then closes the spans that nobody
// has anything in. It works for about settleSlice, and reports whether it has finished; if not, s must ask again.
func (m *finemem) settle(s *session) bool {
	start := time.Now()
	p, begun := m.settles[s]
	if !begun {
		p.rebound = m.worker.Backlog()
	}
	for p.rebound > m.worker.Done() {
		m.worked(m.worker.Batch())
		if time.Since(start) > settleSlice {
			m.settles[s] = p
			return false
		}
	}
	for ; p.closed < m.table.Sections(); p.closed++ {
		if p.closed%256 == 0 && time.Since(start) > settleSlice {
			m.settles[s] = p
			return false
		}
		m.worker.CloseIdle(p.closed)
	}
	delete(m.settles, s)
	return true
}
