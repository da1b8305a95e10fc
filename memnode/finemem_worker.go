package memnode

import (
	"fmt"
	"math/rand/v2"
	"time"

	"polder/internal/failpoint"
	"polder/memnode/twolayer"
	"polder/memnode/wire"
	"polder/verbs"
)

// This is FineMem's background worker. A capability that is swapped says that its
// grain was freed: the worker takes the old window away from the memory, zeroes it,
// binds the window that was the backup, and publishes the pair of its key and the
// next backup's. Until then the old key works, and nobody is given the memory.

func (m *finemem) ticks() <-chan time.Time { return m.timer.C }

// tick finds sections that something was freed in.
func (m *finemem) tick() {
	now := time.Now()
	m.sweep(now)
	m.poll(now)
	if now.Sub(m.felt) >= m.node.cfg.Heartbeat {
		m.felt = now
		m.feel(now)
		if m.broken() != nil {
			for c := range m.clients {
				m.node.ready.add(c) // to be dropped
			}
		}
	}
	if !m.empty() {
		m.timer.Reset(rebindBusy)
	} else {
		m.timer.Reset(min(rebindIdle, m.node.cfg.Heartbeat))
	}
}

// sweep enqueues a few sections, of which one round ends before the next begins.
func (m *finemem) sweep(now time.Time) {
	if m.swept == m.table.Sections() {
		if now.Sub(m.checked) < rebindFull {
			return
		}
		m.checked, m.swept = now, 0
	}
	for range min(batchSections, m.table.Sections()-m.swept) {
		m.enqueue(m.swept)
		m.swept++
	}
}

// poll enqueues the sections that clients say they freed something in.
func (m *finemem) poll(now time.Time) {
	found := false
	for i := range m.seen {
		if v := m.table.Frees(uint32(i)); v != m.seen[i] {
			m.seen[i] = v
			m.enqueue(uint32(i))
			found = true
		}
	}
	if found {
		// The oldest of them came just after the last look.
		m.lag.Store(int64(now.Sub(m.polled)))
	}
	m.polled = now
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

// work deals with a batch of what was freed.
func (m *finemem) work() bool {
	if m.empty() {
		return false
	}
	start := time.Now()
	m.rebindBatch()
	m.lag.Store(int64(start.Sub(m.polled) + time.Since(start)))
	return !m.empty()
}

// A keyring has the windows of the memory that is lent. It belongs to the control
// goroutine.
type keyring struct {
	*memory
	table  *twolayer.Table
	grains [twolayer.Layers][]grain
	spare  []verbs.MW // unbound, in no order
	batch  []place
	zeroer zeroer
}

// A grain is memory that one key opens.
type grain struct {
	main, backup verbs.MW
	key, next    verbs.RKey // of main, and the one that backup will be bound with
}

// place is a grain to be rebound.
type place struct {
	layer int
	chunk uint32 // first
}

// keyringWindows is how many windows open what a layout describes: two for every grain
// and one spare for sixteen.
func keyringWindows(l twolayer.Layout) int {
	total := 0
	for layer := range twolayer.Layers {
		if g := l.Grain(layer); g != 0 {
			total += int(l.Chunks / g)
		}
	}
	return 2*total + max(64, total/16)
}

// newKeyring makes and binds all windows.
func newKeyring(mem *memory, t *twolayer.Table) (*keyring, error) {
	k := &keyring{memory: mem, table: t, zeroer: newZeroer(mem.mem, mem.pinned)}
	for layer := range twolayer.Layers {
		if g := t.Grain(layer); g != 0 {
			k.grains[layer] = make([]grain, t.Chunks/g)
		}
	}
	for range keyringWindows(t.Layout) {
		mw, err := mem.pd.AllocMW(verbs.MWType1)
		if err != nil {
			k.close()
			return nil, fmt.Errorf("cannot allocate a window: %w", err)
		}
		k.spare = append(k.spare, mw)
	}
	for layer := range twolayer.Layers {
		for i := range k.grains[layer] {
			g := &k.grains[layer][i]
			g.backup, g.next = k.draw()
			k.batch = append(k.batch, place{layer, uint32(i) * t.Grain(layer)})
			if err := k.flush(len(k.batch) == wire.MaxBatch); err != nil {
				k.close()
				return nil, err
			}
		}
	}
	if err := k.flush(true); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// flush binds the batch, if that is to be now.
func (k *keyring) flush(now bool) error {
	if !now {
		return nil
	}
	_, err := k.bind()
	return err
}

// draw takes a spare window at random, and a key for it.
func (k *keyring) draw() (verbs.MW, verbs.RKey) {
	i, last := rand.IntN(len(k.spare)), len(k.spare)-1
	mw := k.spare[i]
	k.spare[i] = k.spare[last]
	k.spare = k.spare[:last]
	old := mw.RKey()
	return mw, verbs.MakeRKey(old.Index(), old.Key()+1+uint8(rand.IntN(255)))
}

func (k *keyring) grain(p place) *grain { return &k.grains[p.layer][p.chunk/k.table.Grain(p.layer)] }

// bytes is a place's memory.
func (k *keyring) bytes(p place) (off, n int) {
	return int(uint64(p.chunk) * k.table.Unit), int(uint64(k.table.Grain(p.layer)) * k.table.Unit)
}

// collect adds the swapped capabilities of a section to the batch, as many as there is
// room for, and reports whether the batch is full.
func (k *keyring) collect(section uint32) (full bool) {
	t := k.table
	first := section * twolayer.SectionChunks
	for layer := range twolayer.Layers {
		g := t.Grain(layer)
		if g == 0 {
			continue
		}
		for c := (first + g - 1) &^ (g - 1); c < min(first+twolayer.SectionChunks, t.Chunks) && c/g < uint32(len(k.grains[layer])); c += g {
			if !t.Cap(layer, c).IsSwapped() {
				continue
			}
			if len(k.batch) == wire.MaxBatch {
				return true
			}
			k.batch = append(k.batch, place{layer, c})
		}
	}
	return false
}

// renew closes, zeroes and opens the batch.
func (k *keyring) renew() (int, error) {
	if len(k.batch) == 0 {
		return 0, nil
	}
	failpoint.Hit("rebind.unbind")
	b := k.binder
	b.wrs = b.wrs[:0]
	for _, p := range k.batch {
		if g := k.grain(p); g.main != nil {
			b.wrs = append(b.wrs, verbs.SendWR{ // of no bytes: it opens nothing
				Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: verbs.MakeRKey(g.key.Index(), g.key.Key()+1),
				BindLKey: k.mr.LKey(), RemoteAddr: k.mr.Addr(),
			})
		}
	}
	if _, err := b.run(); err != nil {
		k.batch = k.batch[:0]
		return 0, fmt.Errorf("cannot unbind: %w", err)
	}
	failpoint.Hit("rebind.zero")
	k.zeroer.reset()
	for _, p := range k.batch {
		g := k.grain(p)
		if g.main != nil {
			k.spare = append(k.spare, g.main)
			g.main = nil
		}
		k.zeroer.zero(k.bytes(p))
	}
	return k.bind()
}

// bind opens the batch, whose places nobody can reach, with their backups, and
// publishes the keys.
func (k *keyring) bind() (int, error) {
	defer func() { k.batch = k.batch[:0] }()
	if len(k.batch) == 0 {
		return 0, nil
	}
	failpoint.Hit("rebind.bind")
	b := k.binder
	b.wrs = b.wrs[:0]
	for _, p := range k.batch {
		off, n := k.bytes(p)
		b.wrs = append(b.wrs, verbs.SendWR{
			Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: k.grain(p).next, BindLKey: k.mr.LKey(),
			RemoteAddr: k.mr.Addr() + uint64(off), BindLength: uint64(n), BindAccess: windowAccess,
		})
	}
	done, err := b.run()
	failpoint.Hit("rebind.publish")
	for _, p := range k.batch[:done] {
		g := k.grain(p)
		g.main, g.key = g.backup, g.backup.RKey() // which is next, unless the device chooses
		g.backup, g.next = k.draw()
		k.table.SetCap(p.layer, p.chunk, twolayer.MakeCap(g.key, g.next))
	}
	if err != nil {
		return done, fmt.Errorf("cannot bind: %w", err)
	}
	return done, nil
}

// close deallocates all windows.
func (k *keyring) close() error {
	drop := func(mw verbs.MW) {
		if mw != nil {
			mw.Dealloc()
		}
	}
	for _, layer := range k.grains {
		for _, g := range layer {
			drop(g.main)
			drop(g.backup)
		}
	}
	for _, mw := range k.spare {
		drop(mw)
	}
	return k.zeroer.close()
}
