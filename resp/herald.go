package resp

import (
	"context"
	"slices"
	"sync"

	"polder/partition"
)

// herald tells the other servers of a heap what is published here, for those who have subscribed there. Whoever publishes waits for none of them: a server
// that is slow, or does not answer, gets no more than fits into its queue, and misses the rest, as a subscriber does whose server has just died.
type herald struct {
	mu     sync.Mutex
	queues map[string]*tidings // by the address of a server; one that has nothing to be told has none; guarded by mu
}

// tidings are what a server is to be told, in order. A goroutine sends them as long as there are some.
type tidings struct {
	messages [][][]byte
	bytes    int
}

const (
	// mostTidings is how many bytes of messages may wait for a server, beside a single one that is larger.
	mostTidings = 4 << 20
	// tidingsAtOnce is how many messages are sent before a reply is waited for.
	tidingsAtOnce = 256
	messageCost   = 100 // is about what a message takes beside its bytes
)

var tellCommand = [][]byte{[]byte("POLDER"), []byte("PUBLISH")}

// tell has the others of the map told of a message, which is copied.
func (srv *Server) tell(m *partition.Map, channel, message []byte) {
	me, _ := m.Server(srv.cfg.Cluster.ID)
	var cmd [][]byte
	size := len(channel) + len(message) + messageCost
	h := &srv.herald
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, to := range m.Servers {
		// One that was started again is in the map twice until the others miss the one that it was.
		if to.Addr == me.Addr || slices.ContainsFunc(m.Servers[:i], func(s partition.Server) bool { return s.Addr == to.Addr }) {
			continue
		}
		q := h.queues[to.Addr]
		if q != nil && q.bytes+size > mostTidings {
			srv.stats.untold.Add(1)
			continue
		}
		if cmd == nil {
			cmd = append(slices.Clone(tellCommand), slices.Clone(channel), slices.Clone(message))
		}
		if q == nil {
			if q = srv.startTelling(to.Addr); q == nil {
				continue
			}
		}
		q.messages, q.bytes = append(q.messages, cmd), q.bytes+size
	}
}

// startTelling makes the queue of a server, and has it sent; it returns nil if this server ends.
//
// Preconditions: herald.mu is held.
func (srv *Server) startTelling(addr string) *tidings {
	if srv.data.Context().Err() != nil {
		return nil
	}
	h, q := &srv.herald, &tidings{}
	if h.queues == nil {
		h.queues = map[string]*tidings{}
	}
	h.queues[addr] = q
	srv.wg.Go(func() {
		for cmds := h.next(addr, q, 0); cmds != nil; cmds = h.next(addr, q, len(cmds)) {
			ctx, cancel := context.WithTimeout(srv.data.Context(), srv.cfg.OpTimeout)
			if _, err := srv.cfg.Cluster.Links.Do(ctx, addr, 2, nil, cmds...); err != nil {
				srv.stats.untold.Add(int64(len(cmds))) // some may have been told
			}
			cancel()
		}
	})
	return q
}

// next returns what a server is to be told next, when it was told the first n messages of its queue, which ends when there are no more.
func (h *herald) next(addr string, q *tidings, n int) [][][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, cmd := range q.messages[:n] {
		q.bytes -= len(cmd[2]) + len(cmd[3]) + messageCost
	}
	if q.messages = slices.Delete(q.messages, 0, n); len(q.messages) == 0 {
		delete(h.queues, addr)
		return nil
	}
	return slices.Clone(q.messages[:min(len(q.messages), tidingsAtOnce)])
}
