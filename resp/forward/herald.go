package forward

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Herald tells other servers commands whose replies nobody needs, each server in the order in which they were told. Whoever tells waits
// for none of them: a server that is slow, or does not answer, gets no more than fits into its queue, and misses the rest.
type Herald struct {
	links   *Links
	timeout time.Duration
	untold  func(n int)
	ctx     context.Context // done when it is closed
	close   context.CancelFunc
	sending sync.WaitGroup // Add only with mu held, and before it is closed

	mu     sync.Mutex
	queues map[string]*tidings // by the address of a server; one that has nothing to be told has none; guarded by mu
}

// tidings are what a server is to be told, in order. A goroutine sends them as long as there are some.
type tidings struct {
	commands [][][]byte
	bytes    int
}

const (
	// mostTidings is how many bytes of commands may wait for a server, beside a single one that is larger.
	mostTidings = 4 << 20
	// tidingsAtOnce is how many commands are sent before a reply is waited for.
	tidingsAtOnce = 256
	commandCost   = 100 // is about what a command takes beside its bytes
)

// NewHerald makes a herald that gives a server so much time for a reply. Untold is told of commands that a server was perhaps not
// told. It is closed before the links.
func (l *Links) NewHerald(timeout time.Duration, untold func(n int)) *Herald {
	h := &Herald{links: l, timeout: timeout, untold: untold, queues: map[string]*tidings{}}
	h.ctx, h.close = context.WithCancel(context.Background())
	return h
}

// Close ends what is being sent, and forgets the rest.
func (h *Herald) Close() {
	h.mu.Lock()
	h.close()
	h.mu.Unlock()
	h.sending.Wait()
}

func sizeOf(cmd [][]byte) int {
	size := commandCost
	for _, a := range cmd {
		size += len(a)
	}
	return size
}

// Tell has the servers at some addresses told of a command, which is copied.
func (h *Herald) Tell(addrs []string, cmd [][]byte) {
	var copied [][]byte
	size := sizeOf(cmd)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, addr := range addrs {
		q := h.queues[addr]
		if q != nil && q.bytes+size > mostTidings {
			h.untold(1)
			continue
		}
		if copied == nil {
			for _, a := range cmd {
				copied = append(copied, slices.Clone(a))
			}
		}
		if q == nil {
			if q = h.begin(addr); q == nil {
				continue
			}
		}
		q.commands, q.bytes = append(q.commands, copied), q.bytes+size
	}
}

// begin makes the queue of a server, and has it sent; it returns nil if the herald is closed.
//
// Preconditions: h.mu is held.
func (h *Herald) begin(addr string) *tidings {
	if h.ctx.Err() != nil {
		return nil
	}
	q := &tidings{}
	h.queues[addr] = q
	h.sending.Go(func() {
		for cmds := h.next(addr, q, 0); cmds != nil; cmds = h.next(addr, q, len(cmds)) {
			ctx, cancel := context.WithTimeout(h.ctx, h.timeout)
			if _, err := h.links.Do(ctx, addr, 2, nil, cmds...); err != nil {
				h.untold(len(cmds)) // some may have been told
			}
			cancel()
		}
	})
	return q
}

// next returns what a server is to be told next, when it was told the first n commands of its queue, which ends when there are no more.
func (h *Herald) next(addr string, q *tidings, n int) [][][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, cmd := range q.commands[:n] {
		q.bytes -= sizeOf(cmd)
	}
	if q.commands = slices.Delete(q.commands, 0, n); len(q.commands) == 0 {
		delete(h.queues, addr)
		return nil
	}
	return slices.Clone(q.commands[:min(len(q.commands), tidingsAtOnce)])
}
