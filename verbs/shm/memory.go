package shm

import (
	"context"
	"fmt"

	"polder/internal/arena"
	"polder/verbs"
)

// maxMemories is how often a connection carries memory.
const maxMemories = 2

var errMemories = fmt.Errorf("a connection carries memory %d times at most", maxMemories)

// PassMemory passes m to the peer that has dialled. Its size must be sealed
// (arena.Memfd.SealForGood), and it stays the caller's. A connection carries
// memory twice at most. Whoever passes or wants memory finds this method, and the
// next, in its verbs.Conn.
func (c *conn) PassMemory(m *arena.Memfd) error {
	switch {
	case !c.accepted:
		return fmt.Errorf("cannot pass memory to %s: it has not dialled: %w", c.remote, verbs.ErrInvalid)
	case c.passed.Add(1) > maxMemories:
		return fmt.Errorf("cannot pass memory: %w: %w", errMemories, verbs.ErrBusy)
	}
	// The socket has room for so few messages: this does not block.
	if err := c.sock.SendFDs(encodeMessage(kindMemory, m.Size()), m.File()); err != nil {
		return fmt.Errorf("cannot pass memory: %w", err)
	}
	return nil
}

// ReceiveMemory waits for the memory that the peer passes, whose size has been
// found to be sealed. The caller owns it. It comes in the order in which it was
// passed.
func (c *conn) ReceiveMemory(ctx context.Context) (*arena.Memfd, error) {
	if c.accepted {
		return nil, fmt.Errorf("cannot receive memory from %s: it has not listened: %w", c.remote, verbs.ErrInvalid)
	}
	select {
	case m := <-c.memory:
		return m, nil
	default:
	}
	select {
	case m := <-c.memory:
		return m, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot receive memory: %w", context.Cause(ctx))
	case <-c.Down():
		return nil, fmt.Errorf("cannot receive memory: %w", c.ClosedErr())
	}
}

// watch looks after the socket: it takes the memory that comes, and notices that
// the peer is gone. It ends when the socket is closed, at either end.
func (c *conn) watch() {
	defer close(c.watched)
	for {
		m, err := receive(c.sock, kindMemory, true)
		if err == nil && (c.accepted || c.passed.Add(1) > maxMemories) {
			m.Close()
			err = fmt.Errorf("%w: %w", errMessage, errMemories)
		}
		if err != nil {
			c.lost.Store(&err)
			c.out.wakeReader() // which ends the connection when it has read the rest
			return
		}
		c.memory <- m
	}
}

// closeAll closes what waits in memory, and does not wait for what somebody else
// has received meanwhile.
func closeAll(memory <-chan *arena.Memfd) {
	for {
		select {
		case m := <-memory:
			m.Close()
		default:
			return
		}
	}
}
