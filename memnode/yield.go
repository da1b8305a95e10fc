package memnode

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"polder/memnode/wire"
	"polder/verbs"
)

// A yielder is a manager that can lend less than all of the node's memory, and drop chunks that are lent.
type yielder interface {
	// bound limits how many chunks may be lent from now on. Chunks that are lent beyond that stay lent.
	bound(chunks int)
	// has reports whether s has chunk i. It is called by the control goroutine. While that goroutine looks, the
	// answer can change from true to false only because s frees the chunk; and no one else gets the chunk meanwhile,
	// since the control goroutine must zero it first.
	has(s *session, i uint32) bool
	// drop gives the pages of chunks back to the host. The chunks then read as zero.
	drop(chunks []uint32) error
}

var _, _, _ yielder = (*onesided)(nil), (*rpc)(nil), (*memfds)(nil)

// checkIdle returns why a node with this configuration cannot lend what is idle, or nil.
func (c *Config) checkIdle(attr verbs.DeviceAttr) error {
	switch {
	case !c.Idle:
		return nil
	case c.Manager != Native && c.Manager != RPCMW && c.Manager != MemFD:
		return fmt.Errorf("%s cannot lend what is idle, since chunks change hands without the node: want %s, %s or %s", c.Manager, Native, RPCMW, MemFD)
	case attr.Pinned && c.Manager != MemFD:
		return fmt.Errorf("%s pins what is registered, which cannot be given back to the host: lend a fixed size, or over another fabric", attr.Name)
	case c.ChunkSize <= nicZeroes:
		return fmt.Errorf("the chunk size is %d, want more than %d to lend what is idle: smaller chunks are not given back to the host", c.ChunkSize, nicZeroes)
	}
	return nil
}

// concession is which chunks a client has permitted the node to drop, and which of these have been dropped. It ends
// with the connection.
type concession struct {
	vanishing map[uint32]struct{}  // chunks that may be dropped
	hollow    map[uint32]time.Time // chunks dropped but still the session's; since when the client knows, or zero
	news      []uint32             // chunks of hollow that the client has not been told of
	told      bool                 // the client knows that there is news, and will ask for it
}

// forgetHollow is how long a session may still have a dropped chunk after its client has learned of the drop. After
// that the node supposes that the client has freed the chunk and borrowed it again.
const forgetHollow = time.Second

// concede executes a request about chunks that may be dropped, and returns the reply's list.
func (n *Node) concede(c *client, req *wire.Request, reply *wire.Reply) []uint32 {
	k := &c.concession
	if req.Op == wire.OpVanished {
		list := k.news[:min(len(k.news), req.N)]
		k.news = k.news[len(list):]
		k.told = len(k.news) > 0 // if there is more news, the client asks again by itself
		if len(list) == 0 {
			k.told = false
		}
		return list
	}
	m, ok := n.manager.(yielder)
	if !ok || !n.cfg.Idle {
		reply.Status = wire.StatusBad
		return nil
	}
	for j := range req.N {
		if !m.has(c.session, req.Chunk(j)) {
			n.counters.notOwner.Add(1)
			n.log.Warn("client speaks of what is not its own", "peer", c.conn.RemoteAddr(), "chunk", req.Chunk(j), "request", req.Op)
			reply.Status = wire.StatusNotOwner
			return nil
		}
	}
	if k.vanishing == nil {
		k.vanishing, k.hollow = make(map[uint32]struct{}), make(map[uint32]time.Time)
	}
	for j := range req.N {
		i := req.Chunk(j)
		if req.Op == wire.OpMayVanish {
			delete(k.hollow, i) // the client has freed the dropped chunk and borrowed it again
			k.vanishing[i] = struct{}{}
			continue
		}
		if _, may := k.vanishing[i]; !may {
			reply.Status = wire.StatusVanished
		}
		delete(k.vanishing, i)
		if _, dropped := k.hollow[i]; dropped {
			k.hollow[i] = time.Now()
			k.news = slices.DeleteFunc(k.news, func(o uint32) bool { return o == i })
		}
	}
	return nil
}

// reap forgets the chunks in c's concession that c has given back.
func (c *client) reap(m yielder, now time.Time) {
	k := &c.concession
	for i := range k.vanishing {
		if !m.has(c.session, i) { // freed without OpMustStay, which the client should have sent first
			delete(k.vanishing, i)
		}
	}
	for i, since := range k.hollow {
		if !m.has(c.session, i) || !since.IsZero() && now.Sub(since) > forgetHollow {
			delete(k.hollow, i)
		}
	}
}

// Yielded is the result of a Node.Yield.
type Yielded struct {
	Used    int64 // bytes that are lent, not counting dropped chunks
	Dropped int64 // bytes that this call has dropped
	Over    int64 // bytes that are still lent beyond what the node may lend; clients are told to move them
}

// ErrNotIdle is the error of Yield for a node whose Config.Idle is not set.
var ErrNotIdle = errors.New("the node does not lend what is idle, but a fixed size")

// Yield limits a node that lends what is idle to most bytes from now on. What is lent beyond that is dropped where
// clients have permitted it; if that is not enough, clients are told that the node is leaving until they have moved
// enough. Yield is called again and again, and returns when it has dropped what it can.
func (n *Node) Yield(most int64) (y Yielded, err error) {
	m, ok := n.manager.(yielder)
	if !ok || !n.cfg.Idle {
		return y, ErrNotIdle
	}
	if !n.run(func() { y, err = n.yield(m, int(max(0, most)/int64(n.cfg.ChunkSize))) }) {
		return y, verbs.ErrClosed
	}
	return y, err
}

func (n *Node) yield(m yielder, most int) (y Yielded, err error) {
	size := int64(n.cfg.ChunkSize)
	m.bound(min(most, n.cfg.chunks()))
	n.counters.most.Store(int64(min(most, n.cfg.chunks())))
	used, now := 0, time.Now()
	for _, s := range n.sessions {
		used += n.manager.held(s)
	}
	for _, c := range n.clients {
		c.reap(m, now)
		used -= len(c.concession.hollow)
	}
	if over := used - most; over > 0 {
		var dropped int
		dropped, err = n.drop(m, over)
		used -= dropped
		y.Dropped = int64(dropped) * size
		n.counters.dropped.Add(int64(dropped))
	}
	over := max(0, used-most)
	y.Used, y.Over = int64(used)*size, int64(over)*size
	n.counters.over.Store(int64(over))
	if pressed := over > 0; pressed != n.pressed {
		n.pressed = pressed
		n.tellAll()
	}
	return y, err
}

// drop drops up to most chunks that clients have permitted to be dropped, and returns how many it dropped.
func (n *Node) drop(m yielder, most int) (dropped int, err error) {
	for _, c := range n.clients {
		k := &c.concession
		var list []uint32
		for i := range k.vanishing {
			if dropped+len(list) == most {
				break
			}
			list = append(list, i)
		}
		if len(list) == 0 {
			continue
		}
		slices.Sort(list)
		if err = m.drop(list); err != nil {
			return dropped, fmt.Errorf("cannot give memory back to the host: %w", err)
		}
		for _, i := range list {
			delete(k.vanishing, i)
			k.hollow[i] = time.Time{}
		}
		k.news = append(k.news, list...)
		dropped += len(list)
		n.ready.add(c)
	}
	return dropped, nil
}

// tellVanished tells c that chunks have been dropped, unless c knows already. If no reply buffer is free it does
// nothing: look is called again when a buffer has come back.
func (n *Node) tellVanished(c *client) error {
	k := &c.concession
	if len(k.news) == 0 || k.told || len(c.replies) == 0 {
		return nil
	}
	k.told = true
	return n.send(c, &wire.Reply{Op: wire.OpVanished}, nil)
}

// punchers is the most goroutines that give pages back at a time, and punchAtOnce how many bytes each of them does at
// least. Most of the time is spent on small pages, one by one.
const (
	punchers    = 4
	punchAtOnce = 16 << 20
)

// punch calls f for each run of consecutive numbers in list, which is sorted: chunk number i is the size bytes from
// i*size on. If there is much to do, several goroutines call f at a time, and a run may be split between them.
func punch(list []uint32, size int, f func(off, n int) error) error {
	part := max(len(list)/punchers+1, punchAtOnce/size)
	var errs [punchers]error
	var wg sync.WaitGroup
	each := 0
	for some := range slices.Chunk(list, part) {
		err := &errs[each]
		each++
		wg.Go(func() {
			for len(some) > 0 && *err == nil {
				n := 1
				for n < len(some) && some[n] == some[0]+uint32(n) {
					n++
				}
				*err = f(int(some[0])*size, n*size)
				some = some[n:]
			}
		})
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

// drop gives the pages of chunks back to the host. The chunks then read as zero.
func (m *memory) drop(list []uint32) error {
	return punch(list, m.size, m.punch)
}

// yielder of onesided, if the device has the verb.

func (m *onesided) bound(chunks int) { m.w.hold(m.node.cfg.chunks() - chunks) }

// has needs no lock: a chunk that the device frees waits until the control goroutine has zeroed it, since chunks are
// large (checkIdle).
func (m *onesided) has(s *session, i uint32) bool {
	return int(i) < m.node.cfg.chunks() && m.w.table.Owner(i) == s.owner
}

func (m *onesided) drop(list []uint32) error { return m.w.memory.drop(list) }

// yielder of rpc.

func (m *rpc) bound(chunks int) { m.chunks.kept = len(m.chunks.all) - chunks }

func (m *rpc) has(s *session, i uint32) bool { return m.chunks.ownedBy(i, s) }

func (m *rpc) drop(list []uint32) error { return m.chunks.drop(list) }

// yielder of memfds.

func (m *memfds) bound(chunks int) { m.most = chunks }

func (m *memfds) has(s *session, i uint32) bool {
	t := m.tenants[s]
	return t != nil && int(i) < len(m.all) && m.all[i].t == t
}

func (m *memfds) drop(list []uint32) error {
	size := m.node.cfg.ChunkSize
	slots := make(map[*tenant][]uint32)
	for _, i := range list {
		p := &m.all[i]
		slots[p.t] = append(slots[p.t], p.slot)
	}
	for t, list := range slots {
		slices.Sort(list)
		if err := punch(list, size, t.fd.Punch); err != nil {
			return err
		}
	}
	return nil
}
