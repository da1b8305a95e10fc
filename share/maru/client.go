package maru

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"polder/internal/arena"
	"polder/share/server"

	"golang.org/x/sys/unix"
)

// Client is a client of Maru's protocol for measurements and tests: it asks one
// thing at a time, and remembers nothing but its mappings. It answers the server's
// heartbeats only while it asks. It is for one goroutine.
type Client struct {
	link     *link
	enc      *encoder
	dec      *decoder
	number   uint32
	instance string
	name     string // at the resource manager
	rm       net.Conn
	maps     map[uint64]*arena.Mapping
}

// clientTime is how long a Client waits for an answer.
const clientTime = 10 * time.Second

// Dial connects to a directory server, and asks it for its resource manager. The
// identity may be empty.
func Dial(addr, identity, instance string) (*Client, error) {
	c, err := dialDirectory(addr, identity, instance)
	if err != nil {
		return nil, err
	}
	if err := c.findResources(); err != nil {
		c.link.conn.Close()
		return nil, fmt.Errorf("cannot reach Maru's resource manager: %w", err)
	}
	return c, nil
}

func dialDirectory(addr, identity, instance string) (*Client, error) {
	network, at, err := ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	nc, err := net.Dial(network, at)
	if err != nil {
		return nil, fmt.Errorf("cannot reach Maru's directory: %w", err)
	}
	c := &Client{
		link: newLink(nc, newStalls(), nil), enc: newEncoder(), dec: newDecoder(), instance: instance,
		name: fmt.Sprintf("%s:%d", instance, os.Getpid()), maps: map[uint64]*arena.Mapping{},
	}
	c.link.arrival.stalls.pulse(0)
	if _, err = c.link.greet("DEALER", identity); err != nil {
		nc.Close()
		return nil, fmt.Errorf("cannot reach Maru's directory: %w", err)
	}
	return c, nil
}

func (c *Client) findResources() error {
	addr := ""
	err := c.ask(typeHandshake, func(e *encoder) { e.object(0) }, func(name string) (err error) {
		if name == "rm_address" {
			addr, err = c.dec.text(maxText)
			return err
		}
		return c.dec.skip(0)
	})
	if err != nil {
		return err
	}
	c.rm, err = net.Dial("tcp", addr)
	return err
}

// ask sends a request and reads the answer, field by field.
func (c *Client) ask(kind byte, write func(e *encoder), read func(name string) error) error {
	c.number++
	c.enc.begin(header{kind: kind, sequence: c.number})
	write(c.enc)
	if err := c.link.send(c.enc.end()); err != nil {
		return err
	}
	body, _, err := c.link.message(nil)
	if err != nil {
		return err
	}
	defer c.link.rest()
	h, err := parseHeader(body)
	if err != nil {
		return err
	}
	if h.sequence != c.number {
		return fmt.Errorf("the answer is to request %d, want %d", h.sequence, c.number)
	}
	c.dec.in.Reset(body[headerSize:])
	c.dec.mp.Reset(&c.dec.in)
	return c.dec.fields(func(name string) error {
		if name == "error" {
			text, err := c.dec.text(maxFrame)
			return errors.Join(err, errors.New(text))
		}
		return read(name)
	})
}

// handle reads a region.
func (c *Client) handle() (server.MaruRegion, error) {
	var r server.MaruRegion
	err := c.dec.fields(func(name string) (err error) {
		switch name {
		case "region_id":
			r.ID, err = c.dec.mp.DecodeUint64()
		case "auth_token":
			r.Token, err = c.dec.mp.DecodeUint64()
		case "length":
			r.Length, err = c.dec.number()
		default:
			err = c.dec.skip(0)
		}
		return err
	})
	return r, err
}

// Alloc asks for a region.
func (c *Client) Alloc(size int64) (server.MaruRegion, error) {
	var r server.MaruRegion
	err := c.ask(typeAlloc, func(e *encoder) {
		e.object(2)
		e.textField("instance_id", c.instance)
		e.intField("size", size)
	}, func(name string) (err error) {
		if name == "handle" {
			r, err = c.handle()
			return err
		}
		return c.dec.skip(0)
	})
	return r, err
}

// Return returns a region.
func (c *Client) Return(region uint64) error {
	return c.ask(typeReturn, func(e *encoder) {
		e.object(2)
		e.textField("instance_id", c.instance)
		e.intField("region_id", int64(region))
	}, func(string) error { return c.dec.skip(0) })
}

// Map maps a region, as Maru's clients do: for reading and writing.
func (c *Client) Map(r server.MaruRegion) ([]byte, error) {
	if m := c.maps[r.ID]; m != nil {
		return m.Bytes(), nil
	}
	path, err := c.path(r)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := arena.MapFile(f, 0, int(r.Length), true)
	if err != nil {
		return nil, err
	}
	c.maps[r.ID] = m
	return m.Bytes(), nil
}

func (c *Client) path(r server.MaruRegion) (string, error) {
	b := token{r.ID, 0, uint64(r.Length), r.Token}.append(nil)
	b = append(binary.LittleEndian.AppendUint16(b, uint16(len(c.name))), c.name...)
	kind, b, err := c.askResources(accessRequest, b)
	t := &taker{b: b}
	status, text := int32(t.u32()), ""
	text = string(t.take(t.u32()))
	switch {
	case err != nil:
		return "", err
	case t.bad:
		return "", errors.New("the resource manager's answer is cut off")
	case kind == errorResponse || status != 0:
		return "", fmt.Errorf("the resource manager refuses: %s (%w)", text, unix.Errno(-status))
	}
	return text, nil
}

func (c *Client) askResources(kind uint16, payload []byte) (uint16, []byte, error) {
	if err := c.rm.SetDeadline(time.Now().Add(clientTime)); err != nil {
		return 0, nil, err
	}
	if _, err := c.rm.Write(response(kind, payload)); err != nil {
		return 0, nil, err
	}
	head := make([]byte, resourceHeader)
	if _, err := io.ReadFull(c.rm, head); err != nil {
		return 0, nil, err
	}
	kind, n, err := parseResourceHeader(head)
	if err != nil {
		return 0, nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(c.rm, b)
	return kind, b, err
}

// Register registers a key; false if it was there already.
func (c *Client) Register(k server.MaruKey) (isNew bool, err error) {
	err = c.ask(typeRegister, func(e *encoder) {
		e.object(4)
		e.textField("key", k.Key)
		e.intField("region_id", int64(k.Region))
		e.intField("kv_offset", k.Offset)
		e.intField("kv_length", k.Length)
	}, func(name string) (err error) {
		if name == "is_new" {
			isNew, err = c.dec.mp.DecodeBool()
			return err
		}
		return c.dec.skip(0)
	})
	return isNew, err
}

// Exists reports whether a key is there.
func (c *Client) Exists(key string) (bool, error) { return c.flag(typeExists, key, "exists") }

// Pin pins a key; false if it is not there.
func (c *Client) Pin(key string) (bool, error) { return c.flag(typePin, key, "exists") }

// Unpin takes a pin back; false if there is none.
func (c *Client) Unpin(key string) (bool, error) { return c.flag(typeUnpin, key, "success") }

// Delete deletes a key; false if it is not there, or pinned.
func (c *Client) Delete(key string) (bool, error) { return c.flag(typeDelete, key, "success") }

func (c *Client) flag(kind byte, key, field string) (ok bool, err error) {
	err = c.ask(kind, func(e *encoder) { e.object(1); e.textField("key", key) }, func(name string) (err error) {
		if name == field {
			ok, err = c.dec.mp.DecodeBool()
			return err
		}
		return c.dec.skip(0)
	})
	return ok, err
}

// Lookup asks where a key lies. There is none if the region's number is 0.
func (c *Client) Lookup(key string) (f server.Found, err error) {
	err = c.ask(typeLookup, func(e *encoder) { e.object(1); e.textField("key", key) }, func(name string) error {
		return c.foundField(&f, name)
	})
	return f, err
}

// LookupAll asks where keys lie.
func (c *Client) LookupAll(keys []string) (found []server.Found, err error) {
	err = c.ask(typeBatchLookup, func(e *encoder) {
		e.object(1)
		e.text("keys")
		e.array(len(keys))
		for _, key := range keys {
			e.text(key)
		}
	}, func(string) error {
		return c.dec.list(len(keys), func() error {
			var f server.Found
			err := c.dec.fields(func(name string) error { return c.foundField(&f, name) })
			found = append(found, f)
			return err
		})
	})
	return found, err
}

func (c *Client) foundField(f *server.Found, name string) (err error) {
	switch name {
	case "handle":
		f.MaruRegion, err = c.handle()
	case "kv_offset":
		f.At, err = c.dec.number()
	case "kv_length":
		f.Size, err = c.dec.number()
	default:
		err = c.dec.skip(0)
	}
	return err
}

// Get looks a key up and returns its bytes where they are, or nil.
func (c *Client) Get(key string) ([]byte, error) {
	f, err := c.Lookup(key)
	if err != nil || f.ID == 0 {
		return nil, err
	}
	b, err := c.Map(f.MaruRegion)
	if err != nil {
		return nil, err
	}
	return b[f.At:][:f.Size:f.Size], nil
}

// Close ends the connections, and unmaps everything. Regions that have not been
// returned are as those of a client that has died.
func (c *Client) Close() error {
	err := errors.Join(c.link.conn.Close(), c.rm.Close())
	for _, m := range c.maps {
		m.Close()
	}
	return err
}
