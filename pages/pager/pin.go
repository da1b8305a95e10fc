package pager

import (
	"errors"
	"fmt"

	"polder/far"
	"polder/pages"
	"polder/pages/internal/ahead"
	"polder/pages/internal/wire"
)

// errRefused: a client asks for what may not be.
var errRefused = errors.New("refused")

// requests serves what the client asks for, until the connection ends.
func (m *mapping) requests() error {
	slots := make(chan struct{}, workers)
	for {
		b, err := m.conn.Recv()
		if err != nil {
			return err
		}
		r, err := wire.ParseRequest(b)
		m.conn.Done()
		if err != nil {
			return err
		}
		switch r.Op {
		case wire.OpUnpin:
			m.unpin(r.ID)
		case wire.OpPrefetch:
			if first, end, err := m.span(r); err == nil {
				for ; first < end; first += maxWindow {
					m.jobs <- job{ahead: ahead.Window{First: first, Stride: 1, Count: min(end-first, maxWindow), N: 1}}
				}
			}
		case wire.OpSync:
			slots <- struct{}{}
			m.helpers.Go(func() {
				err := m.sync(m.ctx)
				<-slots
				m.reply(r.ID, err)
			})
		case wire.OpPin:
			slots <- struct{}{}
			m.helpers.Go(func() {
				err := m.pin(r)
				<-slots
				m.reply(r.ID, err)
			})
		}
	}
}

// reply answers a request.
func (m *mapping) reply(id uint64, err error) {
	m.send(replyTo(id, err))
}

func (m *mapping) send(r wire.Reply) {
	m.sending.Lock()
	defer m.sending.Unlock()
	if err := m.conn.Send(r.Append(nil)); err != nil {
		m.end(err)
	}
}

func replyTo(id uint64, err error) wire.Reply {
	r := wire.Reply{ID: id}
	if err == nil {
		return r
	}
	var lost *far.LostError
	switch r.Text = err.Error(); {
	case errors.Is(err, errRefused):
		r.Status = wire.Refused
	case errors.As(err, &lost):
		r.Status = wire.Lost
	case errors.Is(err, far.ErrFull):
		r.Status = wire.Full
	default:
		r.Status = wire.Failed
	}
	return r
}

// span is the range of pages of a request.
func (m *mapping) span(r wire.Request) (first, end int64, err error) {
	size := uint64(m.size)
	if r.N == 0 || r.Off > size || r.N > size-r.Off {
		return 0, 0, fmt.Errorf("%w: there are no %d bytes at offset %d of %d", errRefused, r.N, r.Off, size)
	}
	return int64(r.Off) / pages.Size, int64(r.Off+r.N+pages.Size-1) / pages.Size, nil
}

// pin brings a range into the memory and keeps it there. If the request is for writing, the pages are not protected
// any more.
func (m *mapping) pin(r wire.Request) error {
	first, end, err := m.span(r)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, twice := m.pins[r.ID]
	if most := int64(len(m.frames) / 2); twice || m.pinned+end-first > most || len(m.pins) >= wire.MaxPins {
		return fmt.Errorf("%w: %d pages are pinned in %d ranges, and %d more would be too much: at most %d may be", errRefused, m.pinned, len(m.pins), end-first, most)
	}
	m.pins[r.ID] = wire.Request{} // under way: nobody can unpin it
	m.pinned += end - first
	done, err := m.pinPages(first, end, r.Flags&wire.Write != 0)
	if err != nil {
		m.letGo(first, done)
		m.pinned -= end - first
		delete(m.pins, r.ID)
		return err
	}
	m.pins[r.ID] = r
	return nil
}

// pinPages pins the pages from first to end, and returns the end of those that it has pinned.
//
// Preconditions: m.mu is held; pinPages releases it while it waits.
func (m *mapping) pinPages(first, end int64, write bool) (int64, error) {
	for page := first; page < end; {
		at := m.index[page]
		switch {
		case m.ctx.Err() != nil:
			return page, m.ctx.Err()
		case at == poisoned:
			return page, fmt.Errorf("cannot read page %d: %w", page, errPoisoned)
		case !resident(at):
			n, err := m.bring(page, end, write)
			if err != nil {
				return page, err
			}
			page += n
			continue
		}
		f := &m.frames[at-1]
		if f.state == parked {
			m.unpark(at-1, write)
			continue
		}
		if f.state == loading || f.state == evicting {
			f.want = true
			m.changed.Wait()
			continue
		}
		f.used = true
		f.pins++
		if write && f.state == clean {
			f.state = dirty
			m.must(m.fd.Protect(m.addr(page), pages.Size, false))
		}
		page++
	}
	return end, nil
}

var errPoisoned = &far.LostError{Segment: "accesses to it fail"}

// bring claims frames for absent pages at the beginning of a range, pins them, reads the pages, and returns how many
// they are. It returns 0 if somebody else has brought the first page.
//
// Preconditions: m.mu is held; bring releases it while it waits.
func (m *mapping) bring(first, end int64, write bool) (int64, error) {
	var numbers [pages.MaxRead]int64
	var frames [pages.MaxRead]uint32
	n := 0
	for page := first; page < end && n < pages.MaxRead; page++ {
		if m.isLost(page) {
			if n > 0 {
				break
			}
			return 0, fmt.Errorf("cannot read page %d: %w", page, errLost)
		}
		if n == 0 {
			at, err := m.claimWait(page)
			if at == 0 {
				return 0, err // without an error somebody else has brought the page, or it is poisoned
			}
			frames[0] = at - 1
		} else {
			if at := m.index[page]; resident(at) || at == poisoned || len(m.free) == 0 {
				break
			}
			frames[n], _ = m.claim(page)
		}
		m.frames[frames[n]].pins = 1
		numbers[n] = page
		n++
	}
	b := m.s.buffers.Get().(*[pages.MaxRead * pages.Size]byte)
	m.mu.Unlock()
	defer m.mu.Lock()
	defer m.s.buffers.Put(b)
	if err := m.retry(func() error { return m.volume.ReadPages(m.ctx, numbers[:n], b[:n*pages.Size]) }); err != nil {
		m.abandon(frames[:n])
		return 0, err
	}
	m.place(frames[:n], b[:n*pages.Size], write)
	return int64(n), nil
}

// unpin ends a pin.
func (m *mapping) unpin(id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.pins[id]
	if !ok || r.Op == 0 {
		return
	}
	delete(m.pins, id)
	first, end, _ := m.span(r)
	m.letGo(first, end)
	m.pinned -= end - first
	m.poke()
}

// letGo unpins pages.
//
// Preconditions: m.mu is held.
func (m *mapping) letGo(first, end int64) {
	for page := first; page < end; page++ {
		m.frames[m.index[page]-1].pins--
	}
}
