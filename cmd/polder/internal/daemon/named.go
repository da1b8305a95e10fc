package daemon

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"polder/far"
	"polder/far/copies"
	"polder/far/disk"
	"polder/far/named"
	"polder/far/remote"
	"polder/holder"
	"polder/internal/directory"
	"polder/pool"
	"polder/resp/keyspace"
	"polder/resp/topology"
)

// kept is what a daemon keeps about a heap whose memory at nodes outlives the daemon.
type kept struct {
	registers Registers
	register  holder.Register // has the heap's manifest
	owner     *named.Owner
	sessions  sessions      // the sessions at nodes that the manifest should know
	ended     chan struct{} // closed when the daemon gives the heap up
	store     *named.Store
	log       atomic.Pointer[named.Log] // nil before it is open, or if there is none
}

// nodeLog is the journal of a Redis front end at nodes.
type nodeLog struct{ *named.Log }

// Commit implements keyspace.RecordLog. Records that nodes have survive this process; if a disk has a copy, they are
// on the disk, too.
func (l nodeLog) Commit(number uint64, sync bool) error {
	if !sync { // the caller limits for how long it may go on without sync
		return nil
	}
	return l.Log.Commit(number)
}

// Snapshot implements keyspace.RecordLog. It ignores the name: the manifest says which heap the log belongs to.
func (l nodeLog) Snapshot([]byte) (save func() error, discard func()) {
	last := l.Last()
	return func() error { l.Drop(last); return nil }, func() {}
}

// openLog is keyspace.Journal.Log.
func (k *kept) openLog(ctx context.Context, replay func(rec []byte) error) (keyspace.RecordLog, error) {
	log, err := k.store.OpenLog(ctx, replay)
	if err != nil {
		return nil, err
	}
	k.log.Store(log)
	return nodeLog{log}, nil
}

// keeper opens the register that has the manifest of the heap.
func (k *kept) keeper(p *process, cfg *BorrowConfig) (err error) {
	if k.registers, err = p.registers(cfg); err != nil {
		return err
	}
	k.register, err = k.registers.Register(cfg.Heap)
	return err
}

// hangUp closes the register and the registers.
func (k *kept) hangUp() (err error) {
	if k.register != nil {
		err = k.register.Close()
	}
	if k.registers != nil {
		err = errors.Join(err, k.registers.Close())
	}
	return err
}

// close gives the heap up. What was opened over the heap must be closed already.
func (k *kept) close(ends *ending) (err error) {
	close(k.ended)
	if k.owner != nil {
		ctx, cancel := ends.phase(shutdownTimeout, false)
		defer cancel()
		if err = k.owner.Close(ctx); errors.Is(err, named.ErrSuperseded) {
			err = nil // the daemon has failed with that already, see openNamed
		}
	}
	return errors.Join(err, k.hangUp())
}

// sessions are the sessions at nodes, by the names of the nodes, as a manifest has them.
type sessions struct {
	mu  sync.Mutex
	all map[string][]byte // nil before they are known; guarded by mu
}

func (s *sessions) set(all map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = map[string][]byte{}
	maps.Copy(s.all, all)
}

func (s *sessions) put(node string, n pool.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[node] = append(binary.LittleEndian.AppendUint64(nil, n.ID), n.Secret[:]...)
}

func (s *sessions) remove(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, node)
}

// get implements named.Config.Sessions.
func (s *sessions) get() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.all)
}

// pool returns the sessions as a pool takes them.
func (s *sessions) pool() (map[string]pool.Session, error) {
	all := map[string]pool.Session{}
	for node, b := range s.get() {
		var n pool.Session
		if len(b) != 8+len(n.Secret) {
			return nil, fmt.Errorf("the manifest has a session at %s of %d bytes, want %d", node, len(b), 8+len(n.Secret))
		}
		n.ID = binary.LittleEndian.Uint64(b)
		copy(n.Secret[:], b[8:])
		all[node] = n
	}
	return all, nil
}

// began puts a session into the manifest before anything is borrowed in the session.
func (k *kept) began(log *slog.Logger, within time.Duration, node string, s pool.Session) {
	k.sessions.put(node, s)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := k.owner.Note(ctx); err != nil && !errors.Is(err, named.ErrSuperseded) {
		log.Warn("the manifest does not know yet of a session at a node", "node", node, "error", err)
	}
}

// openNamed waits until this process owns the heap that cfg names, and opens it in the memory of nodes. The lease of
// the owner before may still run when it returns: see ready.
func (m *memory) openNamed(ctx context.Context, p *process, cfg BorrowConfig, from lenders, poolCfg pool.Config, maxValue int) (err error) {
	k := &kept{ended: make(chan struct{})}
	m.kept = k
	if err := k.keeper(p, &cfg); err != nil {
		return err
	}
	switch cfg.TwoNodes {
	case Stop:
		p.Logger.Warn("two nodes keep the manifest, and both are needed to change it: while one does not answer nothing is written that needs memory of theirs, "+
			"and there is no checkpoint; another server takes over when both answer", "heap", cfg.Heap, "nodes", strings.Join(cfg.Far, ", "))
	case GoOn:
		p.Logger.Warn("two nodes keep the manifest, and this server goes on with one of them while the other does not answer: no other server takes over then, "+
			"until both answer or an operator says that this one is dead (polder heap open --force); if it is not, there are two histories, and one of them is lost", "heap", cfg.Heap, "nodes", strings.Join(cfg.Far, ", "))
	}
	if p.mine != nil {
		ready, end := dialAhead(ctx, poolCfg.Nodes)
		defer end()
		poolCfg.Nodes = ready
		select {
		case <-p.mine:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	ended := p.Waiting(fmt.Sprintf("waiting until heap %s is free", cfg.Heap))
	p.setHealth(fmt.Errorf("heap %s is not this process's yet", cfg.Heap))
	gone := p.gone
	if gone == nil {
		gone = ownerGone(p.me())
	}
	k.owner, err = named.Own(ctx, k.register, named.Config{Me: cmp.Or(p.owner, p.me()), Standby: cfg.Standby, Fenced: cfg.fenced(), Gone: gone, Sessions: k.sessions.get, Seen: m.seen, Logger: p.Logger})
	ended()
	if err != nil {
		return fmt.Errorf("heap %s: %w", cfg.Heap, err)
	}
	p.Logger.Info("the heap is this process's", "heap", cfg.Heap, "epoch", k.owner.Epoch())
	m.tell(topology.Master{Addr: p.me(), Epoch: k.owner.Epoch(), Self: true})
	p.spawn("the heap is another process's", func() error {
		select {
		case <-k.owner.Superseded():
			return named.ErrSuperseded
		case <-k.ended:
			return nil
		}
	})
	k.sessions.set(k.owner.Sessions())
	poolCfg.Keep = &pool.Keep{Name: cfg.Heap, Epoch: k.owner.Epoch(), Changed: func(node string, s pool.Session) {
		k.began(p.Logger, poolCfg.Timeout, node, s)
	}}
	for _, node := range slices.Sorted(maps.Keys(k.sessions.get())) { // also nodes that --far does not name any more
		if !slices.ContainsFunc(poolCfg.Nodes, func(n pool.NodeConfig) bool { return n.Name == node }) {
			poolCfg.Nodes = append(poolCfg.Nodes, from.node(node))
		}
	}
	defer p.Waiting("opening heap " + cfg.Heap)()
	deadline := time.Now().Add(cfg.FarWait)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := m.tryNamed(ctx, p, cfg, poolCfg, from.directory != nil, maxValue)
		if err == nil {
			break
		}
		again := errors.Is(err, pool.ErrNodeGone) || errors.Is(err, pool.ErrTimeout) || errors.Is(err, disk.ErrInUse)
		if err = errors.Join(err, m.closeHeap()); !again || ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("cannot open heap %s: %w", cfg.Heap, err)
		}
		p.setHealth(fmt.Errorf("opening heap %s: %w", cfg.Heap, err))
		p.Logger.Warn("the heap cannot be opened yet", "heap", cfg.Heap, "trying again for", time.Until(deadline).Round(time.Second), "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

// ready returns when no other process can answer from the heap any more. From then on, clients may see and change the
// heap's data.
func (m *memory) ready(ctx context.Context) error {
	if m.kept == nil {
		return nil
	}
	return m.kept.owner.Ready(ctx)
}

// seen implements named.Config.Seen. It tells clients which server has the heap, as the manifest says.
func (m *memory) seen(of *named.Manifest, still time.Duration) {
	if directory.CheckAddress(of.Owner) != nil { // the heap was given up, or a tool has it, which serves nobody
		m.tell(topology.Master{Epoch: of.Epoch, Down: true})
		return
	}
	m.tell(topology.Master{Addr: of.Owner, Epoch: of.Epoch, Down: still > 2*named.DefaultBeat})
}

// tell tells the front end, if there is one, who has the heap.
func (m *memory) tell(who topology.Master) {
	if m.master != nil {
		m.master(who)
	}
}

// tryNamed tries once to open the heap. If it fails, closeHeap closes what it has opened.
func (m *memory) tryNamed(ctx context.Context, p *process, cfg BorrowConfig, poolCfg pool.Config, joins bool, maxValue int) (err error) {
	if poolCfg.Keep.Sessions, err = m.kept.sessions.pool(); err != nil {
		return err
	}
	if m.lent, err = p.awaitNodes(ctx, cfg.FarWait, poolCfg); err != nil {
		return err
	}
	n, err := cfg.copiesOf(len(m.lent.Nodes()), joins)
	if err != nil {
		return err
	}
	places := remote.Places(m.lent)
	if cfg.Disk != "" {
		// If possible, the disk bypasses the page cache: data is read from nodes, not from this copy.
		if m.beside, err = disk.OpenCopies(disk.Config{Dir: cfg.copyDir(), Size: cfg.DiskSize, SegmentSize: places[0].Store.SegmentSize()}); err != nil {
			return err
		}
		places = append(places, copies.Place{Name: m.beside.Name(), Store: m.beside, Every: true})
		p.Logger.Info("the disk has a copy of what nodes have", "disk", cfg.copyDir())
	}
	store, err := m.kept.owner.Store(copies.Config{
		Places: places, Copies: n, Joins: joins, Min: min(cfg.MinCopies, n), Late: cfg.CopyLate, RepairAfter: cfg.RepairAfter, Logger: p.Logger,
	})
	if err != nil {
		return err
	}
	m.copies, m.kept.store = store.Store, store
	p.Logger.Info("what is evacuated, and each checkpoint, is kept at nodes", "copies", n, "nodes", len(m.lent.Nodes()), "manifest", m.kept.registers.String())
	if m.restore != nil {
		return m.restore(ctx, store)
	}
	m.heap, err = far.Open(ctx, store, far.Config{Local: cfg.Local, MaxLocal: cfg.MaxLocal, MaxValue: maxValue, CheckpointEvery: cfg.Checkpoint})
	return err
}

// closeHeap closes the heap and what is below it, down to the pool.
func (m *memory) closeHeap() (err error) {
	ctx, cancel := m.ends.phase(cmp.Or(m.closeWithin, m.ends.longest()), true)
	defer cancel()
	switch {
	case m.heap != nil && m.moves:
		err = m.heap.HandOver(ctx)
	case m.heap != nil:
		err = m.heap.CloseBy(ctx)
	}
	if m.copies != nil {
		err = errors.Join(err, m.copies.Close())
	}
	if m.beside != nil {
		err = errors.Join(err, m.beside.Close())
	}
	if m.lent != nil {
		err = errors.Join(err, m.lent.Close())
	}
	m.heap, m.copies, m.beside, m.lent = nil, nil, nil, nil
	return err
}

// me is the address by which others are told that this process has a heap.
func (p *process) me() string {
	return cmp.Or(p.reached, p.addrs[ServiceRedis], p.addrs[ServiceNBD], p.addrs[ServiceAdmin], "a process without an address")
}

// setHealth makes why the daemon's health.
func (p *process) setHealth(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.health = func() error { return why }
}

// goneWithin is how long ownerGone waits for an answer from an owner's address.
const goneWithin = 250 * time.Millisecond

// ownerGone returns a named.Config.Gone for a process that calls itself me. An owner has died if its machine refuses
// connections to its address, or if its address is now this process's.
func ownerGone(me string) func(ctx context.Context, owner string) bool {
	return func(ctx context.Context, owner string) bool {
		if directory.CheckAddress(owner) != nil {
			return false // a tool, which has no address
		}
		if a, err := netip.ParseAddrPort(owner); err == nil && a.Addr().IsLoopback() {
			return false // the owner may be on another machine
		}
		if owner == me {
			return true
		}
		d := net.Dialer{Timeout: goneWithin}
		c, err := d.DialContext(ctx, "tcp", owner)
		if err == nil {
			_ = c.Close() // nothing was written to it
		}
		return errors.Is(err, unix.ECONNREFUSED)
	}
}
