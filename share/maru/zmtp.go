package maru

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Flags of a frame.
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2
)

const (
	// maxFrame bounds a frame: maxBatch keys of 250 bytes.
	maxFrame = 16 << 20
	// maxCommand bounds a command, READY included.
	maxCommand = 512
	// maxContext is how much of a PING's context the PONG repeats. ZMTP allows no more, and libzmq cuts the rest off, too.
	maxContext = 16
	// smallFrame is how many bytes a frame may take without taking them from the budget that all connections share.
	smallFrame = 64 << 10
	// frameTime is how long a frame may take to arrive once it has begun, and an
	// answer to be taken.
	frameTime = 10 * time.Second
	// pingTime is how long a PING may take to be taken: the other silent clients
	// wait for it.
	pingTime = 100 * time.Millisecond

	greetingSize = 64
)

var errProtocol = errors.New("it does not speak ZMTP 3 with mechanism NULL")

// peerInfo is what a peer says of itself in the handshake.
type peerInfo struct {
	minor      byte
	socketType string
	identity   string
}

// link is a connection that speaks ZMTP.
type link struct {
	conn    net.Conn
	arrival *arrivals
	in      *bufio.Reader
	budget  *budget // of large frames; nil for none
	body    []byte
	held    int // of budget

	mu   sync.Mutex // held while writing
	out  *bufio.Writer
	head [11]byte // of a message
}

func newLink(conn net.Conn, watch *stalls, b *budget) *link {
	a := newArrivals(conn, watch)
	l := &link{conn: conn, arrival: a, in: bufio.NewReaderSize(a, 4<<10), out: bufio.NewWriterSize(conn, 4<<10), budget: b}
	a.before = l.flush
	return l
}

// greet shakes hands. The greeting goes out at once: a peer may wait for it
// before it has sent all of its own.
func (l *link) greet(socketType, identity string) (peerInfo, error) {
	var g [greetingSize]byte
	g[0], g[9], g[10], g[11] = 0xff, 0x7f, 3, 1
	copy(g[12:], "NULL")
	ready := append([]byte{0, 0}, "\x05READY"...)
	ready = appendProperty(ready, "Socket-Type", socketType)
	if identity != "" || socketType != "ROUTER" {
		ready = appendProperty(ready, "Identity", identity)
	}
	ready[0], ready[1] = flagCommand, byte(len(ready)-2)
	if _, err := l.conn.Write(g[:]); err != nil {
		return peerInfo{}, err
	}
	if _, err := io.ReadFull(l.in, g[:]); err != nil {
		return peerInfo{}, err
	}
	switch {
	case g[0] != 0xff || g[9]&1 == 0:
		return peerInfo{}, errProtocol
	case g[10] < 3:
		return peerInfo{}, fmt.Errorf("%w, but version %d", errProtocol, g[10])
	case string(bytes.TrimRight(g[12:32], "\x00")) != "NULL":
		return peerInfo{}, fmt.Errorf("%w, but %q", errProtocol, bytes.TrimRight(g[12:32], "\x00"))
	}
	if _, err := l.conn.Write(ready); err != nil {
		return peerInfo{}, err
	}
	flags, body, err := l.frame(maxCommand)
	if err != nil {
		return peerInfo{}, err
	}
	if flags&flagCommand == 0 {
		return peerInfo{}, errProtocol
	}
	p, err := parseReady(body)
	p.minor = g[11]
	return p, err
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// parseReady reads the body of a READY command.
func parseReady(b []byte) (peerInfo, error) {
	var p peerInfo
	name, b, ok := cut8(b)
	if !ok || name != "READY" {
		return p, errProtocol
	}
	for len(b) > 0 {
		if name, b, ok = cut8(b); !ok || len(b) < 4 {
			return p, errProtocol
		}
		n := binary.BigEndian.Uint32(b)
		if b = b[4:]; uint64(n) > uint64(len(b)) {
			return p, errProtocol
		}
		switch value := string(b[:n]); name {
		case "Socket-Type":
			p.socketType = value
		case "Identity":
			p.identity = value
		}
		b = b[n:]
	}
	return p, nil
}

// cut8 cuts a text off, behind its length in one byte.
func cut8(b []byte) (text string, rest []byte, ok bool) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return "", b, false
	}
	return string(b[1 : 1+b[0]]), b[1+b[0]:], true
}

// frame reads a frame, whose body is valid until the next one is read.
func (l *link) frame(limit int) (flags byte, body []byte, err error) {
	head, err := l.in.Peek(2)
	if err != nil {
		return 0, nil, err
	}
	flags = head[0]
	size, skip := uint64(head[1]), 2
	if flags&flagLong != 0 {
		if head, err = l.in.Peek(9); err != nil {
			return 0, nil, err
		}
		size, skip = binary.BigEndian.Uint64(head[1:]), 9
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&flagCommand != 0 && flags&flagMore != 0 {
		return 0, nil, errProtocol
	}
	if flags&flagCommand != 0 {
		limit = maxCommand
	}
	if size > uint64(limit) {
		return 0, nil, fmt.Errorf("a frame of %d bytes, at most %d are taken", size, limit)
	}
	l.in.Discard(skip)
	n := int(size)
	if l.in.Buffered() >= n { // fast path
		body, err = l.in.Peek(n)
		l.in.Discard(n)
		return flags, body, err
	}
	err = l.fill(n)
	return flags, l.body, err
}

// fill reads the body of a frame that is not all there yet. Memory, and what is taken from the budget, follow what has
// come, not what is announced.
func (l *link) fill(n int) error {
	until := time.Now().Add(frameTime)
	if err := l.conn.SetReadDeadline(until); err != nil {
		return err
	}
	l.body = l.body[:0]
	for len(l.body) < n {
		at := len(l.body)
		more := min(n-at, max(at, 4<<10))
		if l.budget != nil && at+more > smallFrame {
			began := time.Now()
			if !l.budget.take(l, at+more-l.held, frameTime) {
				return errors.New("others send too much at a time")
			}
			l.held = at + more
			until = until.Add(time.Since(began)) // its sender is not to blame for the wait
			if err := l.conn.SetReadDeadline(until); err != nil {
				return err
			}
		}
		l.body = append(l.body, make([]byte, more)...)
		m, err := io.ReadFull(l.in, l.body[at:])
		if l.body = l.body[:at+m]; err != nil {
			return err
		}
	}
	return l.conn.SetReadDeadline(time.Time{})
}

// message reads the body of the next message: an empty frame, and one more.
// Commands on the way are answered, and reported to heard.
func (l *link) message(heard func(command string)) (body []byte, arrived time.Time, err error) {
	for delimited := false; ; {
		if l.in.Buffered() == 0 { // all that had come has been read
			if _, err := l.in.Peek(1); err != nil {
				return nil, time.Time{}, err
			}
		}
		if !delimited {
			arrived = l.arrival.latest
		}
		flags, body, err := l.frame(maxFrame)
		switch {
		case err != nil:
			return nil, time.Time{}, err
		case flags&flagCommand != 0:
			if err := l.command(body, heard); err != nil {
				return nil, time.Time{}, err
			}
		case !delimited && len(body) == 0 && flags&flagMore != 0:
			delimited = true
		case delimited && flags&flagMore == 0:
			return body, arrived, nil
		default:
			return nil, time.Time{}, errors.New("a message is not an empty frame and a body")
		}
	}
}

// command handles a command: it answers a PING, and reports every command to heard.
func (l *link) command(body []byte, heard func(string)) error {
	name, rest, ok := cut8(body)
	if !ok {
		return errProtocol
	}
	if name == "PING" && len(rest) >= 2 {
		context := rest[2:]
		if err := l.sendCommand("PONG", context[:min(len(context), maxContext)]); err != nil {
			return err
		}
	}
	if heard != nil {
		heard(name)
	}
	return nil
}

func (l *link) sendCommand(name string, rest []byte) error {
	body := append(append([]byte{byte(len(name))}, name...), rest...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(frameTime)); err != nil {
		return err
	}
	l.out.Write([]byte{flagCommand, byte(len(body))})
	l.out.Write(body)
	return l.out.Flush()
}

// ping asks the peer for a sign of life, unless the link is busy writing.
func (l *link) ping() {
	if !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock()
	// If the peer does not take even this at once, whoever writes next finds out.
	_ = l.conn.SetWriteDeadline(time.Now().Add(pingTime))
	l.out.WriteString("\x04\x07\x04PING\x00\x00") // a time to live of 0: none
	_ = l.out.Flush()
}

// flush sends what is in the buffer.
func (l *link) flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out.Buffered() == 0 { // fast path
		return nil
	}
	if err := l.conn.SetWriteDeadline(time.Now().Add(frameTime)); err != nil {
		return err
	}
	return l.out.Flush()
}

// send sends a message. The message stays in the buffer while there is input behind the request that it answers, so
// that a pipeline of requests is answered by few packets. That input may not be a whole request, so the link flushes
// before it reads on.
func (l *link) send(body []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(frameTime)); err != nil {
		return err
	}
	head := append(l.head[:0], flagMore, 0)
	if len(body) > 255 {
		head = binary.BigEndian.AppendUint64(append(head, flagLong), uint64(len(body)))
	} else {
		head = append(head, 0, byte(len(body)))
	}
	if l.out.Buffered() == 0 && len(head)+len(body) > l.out.Size() { // in one packet, not two
		b := net.Buffers{head, body}
		_, err := b.WriteTo(l.conn)
		return err
	}
	l.out.Write(head)
	if _, err := l.out.Write(body); err != nil || l.in.Buffered() > 0 {
		return err
	}
	return l.out.Flush()
}

// rest gives the memory of a large message back.
func (l *link) rest() {
	if l.held > 0 {
		l.budget.give(l, l.held)
		l.held = 0
	}
	if cap(l.body) > smallFrame {
		l.body = nil
	}
}

// budget is a number of bytes that all connections share. One connection at a time may take more than are left:
// otherwise large messages that are half there could wait for each other.
type budget struct {
	mu     sync.Mutex
	left   int           // below 0 if beyond has taken more than there were
	beyond *link         // the connection that need not wait, until it gives back what it has; nil for none
	freed  chan struct{} // closed when some come back
}

func newBudget(n int) *budget { return &budget{left: n, freed: make(chan struct{})} }

// take takes n bytes for l; false if not so many are free in time.
func (b *budget) take(l *link, n int, patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		b.mu.Lock()
		if b.left < n && b.beyond == nil {
			b.beyond = l
		}
		if b.left >= n || b.beyond == l {
			b.left -= n
			b.mu.Unlock()
			return true
		}
		freed := b.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-timer.C:
			return false
		}
	}
}

// give gives back all n bytes that l has taken.
func (b *budget) give(l *link, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
	if b.beyond == l {
		b.beyond = nil
	}
	close(b.freed)
	b.freed = make(chan struct{})
}
