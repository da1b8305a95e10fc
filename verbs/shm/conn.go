package shm

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"

	"polder/internal/arena"
	"polder/verbs"
	"polder/verbs/internal/stream"
)

// maxMemories is how often a connection carries memory.
const maxMemories = 2

var (
	errMemories = fmt.Errorf("a connection carries memory %d times at most", maxMemories)
	errSize     = fmt.Errorf("the size of memory takes 8 bytes: %w", verbs.ErrInvalid)
)

// conn implements cm.Link.
type conn struct {
	stream.Conn
	accepted      bool // not dialled
	local, remote string
	memory        chan *arena.Memfd // holds what the peer has passed
	passed        atomic.Int32      // how often memory has been passed
}

func newConn(accepted bool, remote string) *conn {
	c := &conn{accepted: accepted, local: "this process", remote: remote, memory: make(chan *arena.Memfd, maxMemories)}
	if !accepted {
		c.TakeFile = c.takeMemory
	}
	return c
}

// PassMemory passes m to the peer that has dialled. The size of m must be sealed (arena.Memfd.SealForGood), and m
// stays the caller's. A connection carries memory twice at most. Callers find this method and ReceiveMemory by a type
// assertion of their verbs.Conn.
func (c *conn) PassMemory(m *arena.Memfd) error {
	switch {
	case !c.accepted:
		return fmt.Errorf("cannot pass memory to %s: it has not dialled: %w", c.remote, verbs.ErrInvalid)
	case c.passed.Add(1) > maxMemories:
		return fmt.Errorf("cannot pass memory: %w: %w", errMemories, verbs.ErrBusy)
	}
	if err := c.SendFile(m.File(), binary.LittleEndian.AppendUint64(nil, uint64(m.Size()))); err != nil {
		return fmt.Errorf("cannot pass memory: %w", err)
	}
	return nil
}

// ReceiveMemory waits for memory that the peer passes, and checks that its size is sealed. The caller owns it. Memory
// comes in the order in which it was passed.
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

// takeMemory takes a file that the peer has sent, in the reader.
func (c *conn) takeMemory(f *os.File, body []byte) error {
	if c.passed.Add(1) > maxMemories {
		f.Close()
		return errMemories
	}
	m, err := openMemory(f, body)
	if err != nil {
		return fmt.Errorf("cannot use the peer's memory: %w", err)
	}
	c.memory <- m
	return nil
}

// openMemory makes memory of a file that is announced by body. It refuses memory
// that the peer could truncate, so that an access would fault.
func openMemory(f *os.File, body []byte) (*arena.Memfd, error) {
	if len(body) != 8 {
		f.Close()
		return nil, errSize
	}
	m, err := arena.OpenMemfd(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	if err := m.CheckShrinkSealed(); err != nil {
		m.Close()
		return nil, err
	}
	if size := binary.LittleEndian.Uint64(body); size == 0 || uint64(m.Size()) != size {
		defer m.Close()
		return nil, fmt.Errorf("%d bytes where %d were announced: %w", m.Size(), size, verbs.ErrInvalid)
	}
	return m, nil
}

// dropMemory closes memory that nobody has received, when the connection has ended. It does not wait for memory that
// another goroutine receives meanwhile.
func dropMemory(memory <-chan *arena.Memfd) {
	for {
		select {
		case m := <-memory:
			m.Close()
		default:
			return
		}
	}
}

// LocalAddr implements verbs.Conn.
func (c *conn) LocalAddr() string { return c.local }

// RemoteAddr implements verbs.Conn: the socket's address, or which process has
// dialled.
func (c *conn) RemoteAddr() string { return c.remote }
