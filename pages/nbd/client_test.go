package nbd

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// client is a client of the protocol, which asks one question at a time.
type client struct {
	net.Conn
	structured bool
	size       int64
	flags      uint16
	cookie     uint64
}

// dial connects, uses TLS if it is given any, and chooses the export of that name.
func dial(t *testing.T, addr string, structured bool, secure *tls.Config, name string) (*client, error) {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		return nil, err
	}
	c := &client{Conn: nc, structured: structured}
	if b, err := c.take(18); err != nil || binary.BigEndian.Uint64(b) != helloMagic {
		return nil, fmt.Errorf("the server said %x: %w", b, err)
	}
	c.give(binary.BigEndian.AppendUint32(nil, fixedNewstyle|noZeroes))
	if secure != nil {
		if kind, _, err := c.option(optStartTLS, nil); err != nil || kind != ackOption {
			return nil, fmt.Errorf("asked for TLS, it answered %#x: %w", kind, err)
		}
		c.Conn = tls.Client(nc, secure)
	}
	if structured {
		if kind, _, err := c.option(optStructuredReply, nil); err != nil || kind != ackOption {
			return nil, fmt.Errorf("asked for structured replies, it answered %#x: %w", kind, err)
		}
		query := append(binary.BigEndian.AppendUint32(nil, 0), 0, 0, 0, 1, 0, 0, 0, byte(len(metaContext)))
		if kind, _, err := c.option(optSetMeta, append(query, metaContext...)); err != nil || kind != ackMeta {
			return nil, fmt.Errorf("asked for block status, it answered %#x: %w", kind, err)
		}
		if _, _, err := c.answer(); err != nil {
			return nil, err
		}
	}
	data := append(binary.BigEndian.AppendUint32(nil, uint32(len(name))), name...)
	kind, b, err := c.option(optGo, append(data, 0, 0))
	for ; err == nil && kind == ackInfo; kind, b, err = c.answer() {
		if binary.BigEndian.Uint16(b) == infoExport {
			c.size, c.flags = int64(binary.BigEndian.Uint64(b[2:])), binary.BigEndian.Uint16(b[10:])
		}
	}
	if err == nil && kind != ackOption {
		err = fmt.Errorf("refused with %#x: %s", kind, b)
	}
	return c, err
}

// give sends b. That it did not come shows where an answer is waited for.
func (c *client) give(b []byte) { _, _ = c.Write(b) }

func (c *client) take(n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := io.ReadFull(c, b)
	return b, err
}

func (c *client) option(option uint32, data []byte) (kind uint32, b []byte, err error) {
	m := binary.BigEndian.AppendUint64(nil, optionMagic)
	m = binary.BigEndian.AppendUint32(m, option)
	c.give(append(binary.BigEndian.AppendUint32(m, uint32(len(data))), data...))
	return c.answer()
}

func (c *client) answer() (kind uint32, b []byte, err error) {
	if b, err = c.take(20); err != nil {
		return 0, nil, err
	}
	kind = binary.BigEndian.Uint32(b[12:])
	b, err = c.take(int(binary.BigEndian.Uint32(b[16:])))
	return kind, b, err
}

// ask sends a request.
func (c *client) ask(kind, flags uint16, off int64, n int, data []byte) {
	c.cookie++
	b := binary.BigEndian.AppendUint32(nil, requestMagic)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint64(b, c.cookie)
	b = binary.BigEndian.AppendUint64(b, uint64(off))
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	c.give(append(b, data...))
}

// reply takes a reply to cookie, and what it says of n bytes at off.
func (c *client) reply(cookie uint64, kind uint16, off int64, n int) (data []byte, extents []uint32, e errno, err error) {
	be := binary.BigEndian
	if !c.structured {
		b, err := c.take(16)
		if err != nil {
			return nil, nil, 0, err
		}
		if be.Uint32(b) != simpleMagic || be.Uint64(b[8:]) != cookie {
			return nil, nil, 0, fmt.Errorf("the reply to request %d is %x", cookie, b)
		}
		if e = errno(be.Uint32(b[4:])); e == ok && kind == cmdRead {
			data, err = c.take(n)
		}
		return data, nil, e, err
	}
	for done := false; !done; {
		b, err := c.take(20)
		if err != nil {
			return nil, nil, 0, err
		}
		if be.Uint32(b) != chunkMagic || be.Uint64(b[8:]) != cookie {
			return nil, nil, 0, fmt.Errorf("a chunk of the reply to request %d is %x", cookie, b)
		}
		done = be.Uint16(b[4:])&chunkDone != 0
		p, err := c.take(int(be.Uint32(b[16:])))
		if err != nil {
			return nil, nil, 0, err
		}
		switch what := be.Uint16(b[6:]); what {
		case chunkNone:
		case chunkData, chunkHole:
			if int64(be.Uint64(p)) != off+int64(len(data)) {
				return nil, nil, 0, errors.New("chunks are not in order")
			}
			if what == chunkData {
				data = append(data, p[8:]...)
			} else {
				data = append(data, make([]byte, be.Uint32(p[8:]))...)
			}
		case chunkStatus:
			for p = p[4:]; len(p) > 0; p = p[8:] {
				extents = append(extents, be.Uint32(p), be.Uint32(p[4:]))
			}
		case chunkError:
			e = errno(be.Uint32(p))
		default:
			return nil, nil, 0, fmt.Errorf("a chunk is of type %d", what)
		}
	}
	if e == ok && kind == cmdRead && len(data) != n {
		err = fmt.Errorf("%d bytes were read, want %d", len(data), n)
	}
	return data, extents, e, err
}

// do asks, and returns the answer.
func (c *client) do(t *testing.T, kind, flags uint16, off int64, n int, data []byte) ([]byte, []uint32, errno) {
	t.Helper()
	c.ask(kind, flags, off, n, data)
	b, extents, e, err := c.reply(c.cookie, kind, off, n)
	if err != nil {
		t.Fatal(err)
	}
	return b, extents, e
}
