package forward

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Herald sends other servers commands whose replies nobody needs; each server gets them in the order of the calls of
// Tell. Tell does not wait for any server. A server that is slow, or does not answer, gets what fits into its queue,
// and misses the rest.
type Herald struct {
	links   *Links
	timeout time.Duration
	untold  func(n int)
	ctx     context.Context // done when the herald is closed
	close   context.CancelFunc
	sending sync.WaitGroup // Add only with mu held, and before the herald is closed

	mu     sync.Mutex
	queues map[string]*tidings // by server address, only of servers that have something to be told; guarded by mu
}

// tidings is the queue of commands for one server. As long as it has some, a goroutine sends them.
type tidings struct {
	commands [][][]byte
	bytes    int
}

const (
	// mostTidings is how many bytes of commands may wait for a server. A single command may be larger.
	mostTidings = 4 << 20
	// tidingsAtOnce is how many commands are sent before their replies are waited for.
	tidingsAtOnce = 256
	commandCost   = 100 // about how many bytes a command takes beside its arguments
)

// NewHerald makes a herald. A server has the time timeout to answer the commands that are sent at once. untold is
// called with the number of commands that a server has perhaps not got. The herald must be closed before the links.
func (l *Links) NewHerald(timeout time.Duration, untold func(n int)) *Herald {
	h := &Herald{links: l, timeout: timeout, untold: untold, queues: map[string]*tidings{}}
	h.ctx, h.close = context.WithCancel(context.Background())
	return h
}

// Close ends the calls under way, and forgets the commands that were not sent.
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

// Tell has a copy of a command sent to the servers at some addresses.
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

// begin makes a server's queue and starts the goroutine that sends its commands. It returns nil if the herald is
// closed.
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
				h.untold(len(cmds)) // some may have arrived
			}
			cancel()
		}
	})
	return q
}

// next removes the first n commands of a queue, which have been sent, and returns the commands to be sent next. If
// there are none, it removes the queue and returns nil.
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
