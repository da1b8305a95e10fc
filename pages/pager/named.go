package pager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"polder/internal/arena"
	"polder/pages"
	"polder/pages/internal/wire"
)

const (
	maxNamed = 1024 // regions with names

	// What the names of volumes begin with.
	namedStart   = "region "
	mappingStart = "mapping "
)

// patience is how long a client waits for the one that had its region before to end. Tests change it.
var patience = 5 * time.Second

// named is a region that outlives its client. One client at a time has it.
type named struct {
	name string
	size int64

	// Guarded by the server's mu.
	saved  bool          // the heap has kept it, and nobody has opened it yet
	volume *pages.Volume // nil if nobody has had it yet
	ended  chan struct{} // closed when its client has gone; nil if it has none
	broken error         // why its contents are not complete
}

// loadNamed finds the regions that the heap has kept, and frees the volumes of clients without a region, which have
// ended with another pager.
func (s *Server) loadNamed() error {
	for name, size := range s.cfg.Volumes.Saved() {
		if region, ok := strings.CutPrefix(name, namedStart); ok {
			s.named[region] = &named{name: region, size: size, saved: true}
			s.size += size
			continue
		}
		if !strings.HasPrefix(name, mappingStart) {
			return fmt.Errorf("cannot serve mappings from a heap that has volume %q, which is none of a pager's: it may be that of polder block", name)
		}
		v, err := s.cfg.Volumes.Volume(name, size)
		if err != nil {
			return fmt.Errorf("cannot give a mapping's memory back: %w", err)
		}
		v.Free()
	}
	return nil
}

// find returns the region that a client names, and makes it if there is none; it returns nil if the client gives no
// name. If another client has the region, find waits for a while for it to end.
//
// Preconditions: s.mu is held; find releases it while it waits.
func (s *Server) find(a wire.Attach) (*named, error) {
	if a.Name == "" {
		return nil, nil
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		r := s.named[a.Name]
		switch {
		case r == nil && len(s.named) >= maxNamed:
			return nil, fmt.Errorf("there are %d regions with names: it would be one too many", len(s.named))
		case r == nil:
			return &named{name: a.Name}, nil
		case r.ended != nil:
			ended := r.ended
			s.mu.Unlock()
			over := false
			select {
			case <-ended:
			case <-late.C:
				over = true
			case <-s.ctx.Done():
				over = true
			}
			s.mu.Lock()
			if over {
				return nil, fmt.Errorf("another process has region %q", a.Name)
			}
		case r.broken != nil:
			return nil, fmt.Errorf("region %q is not complete, remove it: %w", a.Name, r.broken)
		case r.size != int64(a.Size):
			return nil, fmt.Errorf("region %q has %d bytes, and not %d", a.Name, r.size, a.Size)
		default:
			return r, nil
		}
	}
}

// remove removes a region.
func (s *Server) remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.named[name]
	switch {
	case r == nil:
		return fmt.Errorf("there is no region %q", name)
	case r.ended != nil:
		return fmt.Errorf("another process has region %q", name)
	}
	if r.volume == nil {
		v, err := s.cfg.Volumes.Volume(namedStart+name, r.size)
		if err != nil {
			return err
		}
		r.volume = v
	}
	r.volume.Free()
	s.size -= r.size
	delete(s.named, name)
	return nil
}

// volume returns the volume that is behind a mapping's memory.
func (s *Server) volume(a wire.Attach, region *named, number int) (*pages.Volume, error) {
	if region == nil {
		return s.cfg.Volumes.Volume(fmt.Sprintf("%s%d", mappingStart, number), int64(a.Size))
	}
	s.mu.Lock()
	v := region.volume
	s.mu.Unlock()
	if v != nil {
		return v, nil
	}
	v, err := s.cfg.Volumes.Volume(namedStart+region.name, region.size)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	region.volume, region.saved = v, false
	return v, nil
}

// begin gives the mapping its first contents. Without resume they are what the region's volume has. With resume they
// are what is in the memory and, if no other client has had the region since, what the volume's last checkpoint has
// of the other pages.
func (m *mapping) begin(resume bool) error {
	m.written = make([]uint64, (len(m.index)+63)/64)
	mark := m.markWord()
	if !resume {
		if m.region == nil {
			return nil
		}
		m.volume.SetMark(rand.Uint64() | 1)
		mark.Store(m.volume.Mark())
		for off := int64(0); off < m.size; {
			n, there := m.volume.Extent(off, m.size)
			for page := off / pages.Size; there && page < (off+n)/pages.Size; page++ {
				m.mark(page, true)
			}
			off += n
		}
		return m.checkpoint(m.ctx) // otherwise the next pager would take this client for the one before it
	}
	same := m.region != nil && m.volume.Mark() == mark.Load()
	if m.region != nil && m.volume.Mark() != 0 && !same {
		return fmt.Errorf("another process has had region %q since", m.region.name)
	}
	if !same { // the volume has nothing that this client has written there
		for page := int64(0); page < int64(len(m.index)); page += 64 {
			m.keptWord(page).Store(0)
		}
		m.volume.SetMark(mark.Load())
	}
	if err := m.resume(); err != nil {
		return err
	}
	if same {
		if err := m.forget(); err != nil {
			return err
		}
	}
	if m.region == nil {
		return nil
	}
	return m.checkpoint(m.ctx) // otherwise a client after this one would find the old contents of lost pages
}

// forget brings the volume up to date with what is known of the pages of a client whose pager has died: lost pages
// become lost in the volume, too, for whoever has the region later; pages that had become zeros are discarded.
func (m *mapping) forget() error {
	ctx, cancel := context.WithTimeout(m.ctx, m.s.cfg.Timeout)
	defer cancel()
	for page := range int64(len(m.index)) {
		var err error
		word, bit := m.word(page)
		switch {
		case resident(m.index[page]):
		case m.isLost(page):
			err = m.volume.Lose(ctx, page)
		case word.Load()&bit == 0:
			err = m.volume.Discard(ctx, page*pages.Size, pages.Size)
		}
		if err != nil {
			return fmt.Errorf("cannot take the memory over: %w", err)
		}
	}
	return nil
}

// sync writes what is in the memory to the volume and, if the heap is kept, has the volume outlive the pager.
func (m *mapping) sync(ctx context.Context) error {
	if m.region == nil {
		return fmt.Errorf("%w: the region has no name, and nothing of it outlives its process", errRefused)
	}
	m.syncing.Lock()
	defer m.syncing.Unlock()
	b := make([]byte, pages.Size)
	for at := range uint32(len(m.frames)) {
		if err := m.syncFrame(ctx, at, b); err != nil {
			return fmt.Errorf("cannot write what is in the memory: %w", err)
		}
	}
	return m.checkpoint(ctx)
}

// syncFrame writes the page of a frame to the volume if it may have been written to. The page stays in the memory. A
// pinned page is written as it is at the moment.
func (m *mapping) syncFrame(ctx context.Context, at uint32, b []byte) error {
	m.mu.Lock()
	f := &m.frames[at]
	for f.state == evicting && ctx.Err() == nil {
		m.changed.Wait()
	}
	if f.state != dirty || ctx.Err() != nil {
		m.mu.Unlock()
		return ctx.Err()
	}
	page, pinned := f.page, f.pins > 0
	if !pinned {
		m.must(m.fd.Protect(m.addr(page), pages.Size, true))
		f.state, f.want = evicting, false
	}
	m.mu.Unlock()
	err := m.keep(ctx, page, b)
	if pinned {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.state = clean; err != nil || f.want || f.pins > 0 {
		f.state, f.want = dirty, false
		m.must(m.fd.Protect(m.addr(page), pages.Size, false))
	}
	m.changed.Broadcast()
	return err
}

// keep writes a page that is in the memory to the volume.
func (m *mapping) keep(ctx context.Context, page int64, b []byte) error {
	if _, err := m.memory.File().ReadAt(b, page*pages.Size); err != nil {
		return err
	}
	m.changes(page)
	return m.volume.Write(ctx, b, page*pages.Size)
}

// changes notes that a page of the volume is about to differ from that of the last checkpoint.
func (m *mapping) changes(page int64) {
	if m.region == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written[page/64] |= 1 << (page % 64)
	if word := m.keptWord(page); word.Load()&(1<<(page%64)) != 0 {
		word.And(^(uint64(1) << (page % 64)))
	}
}

// checkpoint has what is in the volume outlive the pager, and marks in the client's table which pages the checkpoint
// has as the volume has them.
func (m *mapping) checkpoint(ctx context.Context) error {
	if !m.volume.Kept() {
		return nil
	}
	m.mu.Lock()
	clear(m.written)
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, m.s.cfg.Timeout)
	defer cancel()
	if err := m.volume.Sync(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for page := int64(0); page < int64(len(m.index)); page += 64 {
		m.keptWord(page).Store(^m.written[page/64])
	}
	return nil
}

// keepAll has what is in the memory of an ended mapping outlive it.
func (m *mapping) keepAll() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), m.s.cfg.Timeout)
	defer cancel()
	b := make([]byte, pages.Size)
	for i := range m.frames {
		if f := &m.frames[i]; f.state == dirty || f.state == evicting {
			if err := m.keep(ctx, f.page, b); err != nil {
				return err
			}
		}
	}
	if err := m.checkpoint(ctx); err != nil && !errors.Is(err, context.Canceled) {
		m.s.cfg.Logger.Warn("what a region has is not kept yet", "region", m.region.name, "why", err)
	}
	return nil
}

// greet answers the Attach.
func (m *mapping) greet(err error) {
	r := replyTo(0, err)
	if err == nil && m.again {
		r.Text = wire.Again
	}
	m.send(r)
}

// keptWord is the word of the table that says of page and the pages beside it whether a checkpoint has them as the
// volume has.
func (m *mapping) keptWord(page int64) *atomic.Uint64 {
	return arena.Word64(m.table.Bytes()[wire.TableKept(uint64(m.size))+int(page/64*8):])
}

// markWord is the word of the table with the Mark of the volume that the table belongs to.
func (m *mapping) markWord() *atomic.Uint64 {
	return arena.Word64(m.table.Bytes()[2*wire.TableKept(uint64(m.size)):])
}
