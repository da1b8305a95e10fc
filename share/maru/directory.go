package maru

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"polder/internal/accept"
	"polder/internal/fdpass"
	"polder/share/server"
)

// client is a connection to the directory server.
type client struct {
	d       *Door
	link    *link
	peer    peerInfo
	guest   *server.Guest
	ready   time.Time     // when it had shaken hands
	first   bool          // no request has come yet
	resumed bool          // the client had an earlier connection, which has ended
	answers atomic.Bool   // it has answered a PING
	asked   time.Duration // when the last PING was sent

	enc *encoder
}

// serveDirectory shakes hands with a client at the gate, and then has it served.
func (d *Door) serveDirectory(nc net.Conn, v *accept.Visitor) error {
	c := &client{d: d, link: newLink(nc, d.stalls, d.budget), first: true, enc: newEncoder()}
	var err error
	if c.peer, err = c.link.greet("ROUTER", ""); err != nil {
		return err
	}
	switch c.peer.socketType {
	case "REQ", "DEALER":
	default:
		return fmt.Errorf("a socket of type %q: want REQ or DEALER", c.peer.socketType)
	}
	var unix *fdpass.Conn
	if u, ok := nc.(*net.UnixConn); ok {
		if unix, err = fdpass.New(u); err != nil {
			return err
		}
	}
	if c.guest, err = d.s.Admit(c.peer.identity, nc, unix); err != nil {
		return err
	}
	if err := v.Enter(); err != nil {
		c.guest.Leave()
		return err
	}
	c.ready = time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.clients) >= d.opt.MaxConns {
		c.guest.Leave()
		return errCrowded
	}
	d.clients[c] = struct{}{}
	d.wg.Go(c.serve)
	return nil
}

func (c *client) serve() {
	defer func() {
		c.link.conn.Close()
		c.link.rest()
		c.d.mu.Lock()
		delete(c.d.clients, c)
		c.d.mu.Unlock()
		c.guest.Leave()
	}()
	for {
		body, arrived, err := c.link.message(func(name string) {
			if name == "PONG" {
				c.answers.Store(true)
			}
		})
		if err != nil {
			if !gone(err) {
				c.d.opt.Log.Warn("a client of Maru's is disconnected", "peer", c.link.conn.RemoteAddr(), "err", err)
			}
			return
		}
		if err := c.link.send(c.answer(body, arrived)); err != nil {
			return
		}
		c.link.rest()
	}
}

// answer does what a message asks for.
func (c *client) answer(msg []byte, arrived time.Time) []byte {
	h, err := parseHeader(msg)
	reply := h
	reply.kind |= replyBit
	var q *request
	if err == nil {
		q, err = parseRequest(h.kind, msg[headerSize:headerSize+int(h.length)])
	}
	if c.first && err == nil {
		c.first = false
		c.guest.Speaks()
		c.resumed = c.peer.identity != "" && h.kind != typeHandshake && (c.guest.Known() || h.sequence > 1)
	}
	if c.resumed && arrived.Sub(c.ready) < c.d.opt.Late {
		// An asynchronous client sends again, on a new connection, what it had queued
		// for the old one. Its caller may have given up long ago.
		arrived = time.Time{}
	}
	if err != nil {
		c.d.counts.refused.Add(1)
		c.enc.fail(reply, err)
		return c.enc.end()
	}
	c.enc.begin(reply)
	if err := c.handle(h, q, arrived); err != nil {
		c.d.counts.refused.Add(1)
		c.enc.fail(reply, err)
	}
	c.d.counts.requests[h.kind].Add(1)
	return c.enc.end()
}

// handle writes the answer to a request. If it returns an error, the answer is that
// error instead. For batches it must not return one: the client then sees an empty
// list of results, and either raises an exception or takes what is missing for done.
func (c *client) handle(h header, q *request, arrived time.Time) error {
	e, g := c.enc, c.guest
	switch h.kind {
	case typeHandshake:
		return c.handshake(q)
	case typeHeartbeat:
		e.object(0)
		return nil
	case typeAlloc:
		return c.alloc(q, arrived)
	case typeReturn:
		ok, err := g.Return(uint64(q.key.Region), q.instance)
		if err != nil {
			return err
		}
		if !ok {
			e.object(2)
			e.boolField("success", false)
			e.textField("error", fmt.Sprintf("%q has no region %d", q.instance, q.key.Region))
			return nil
		}
		c.d.claim(q.key.Region)
		e.object(1)
		e.boolField("success", true)
		return nil
	case typeList:
		regions := g.Regions(q.exclude)
		e.object(2)
		e.boolField("success", true)
		e.text("allocations")
		e.array(len(regions))
		for _, r := range regions {
			e.handle(r)
		}
		return nil
	case typeRegister, typeBatchRegister:
		return c.register(h, q, arrived)
	case typeLookup:
		return g.Lookup([]string{q.key.Key}, func(_ int, ok bool, f server.Found) { e.found(ok, f) })
	case typeBatchLookup:
		return c.batchLookup(q)
	case typeExists:
		found, err := g.Exists([]string{q.key.Key})
		if err != nil {
			return err
		}
		e.object(1)
		e.boolField("exists", found[0])
		return nil
	case typeBatchExists:
		found, err := g.Exists(q.keys)
		return c.results(found, err)
	case typeDelete:
		ok, err := g.Delete(q.key.Key)
		return c.success(ok, err)
	case typePin:
		n, err := g.Pin(arrived, []string{q.key.Key})
		if err != nil {
			return err
		}
		e.object(1)
		e.boolField("exists", n == 1)
		return nil
	case typeBatchPin:
		n, err := g.Pin(arrived, q.keys)
		pinned := make([]bool, len(q.keys))
		for i := range n {
			pinned[i] = true
		}
		return c.results(pinned, err)
	case typeUnpin:
		unpinned, err := g.Unpin([]string{q.key.Key})
		return c.success(unpinned[0], err)
	case typeBatchUnpin:
		unpinned, err := g.Unpin(q.keys)
		return c.results(unpinned, err)
	case typeStats:
		c.stats()
		return nil
	case typeReport:
		c.d.reports.add(q.reports)
		e.object(1)
		e.boolField("success", true)
		return nil
	case typeUsage:
		c.usage()
		return nil
	}
	return errUnknown(h.kind)
}

// errUnknown says it as Maru's own server does.
type errUnknown byte

func (kind errUnknown) Error() string { return fmt.Sprintf("Unknown message type: %d", byte(kind)) }

func (c *client) success(ok bool, err error) error {
	if err != nil {
		return err
	}
	c.enc.object(1)
	c.enc.boolField("success", ok)
	return nil
}

// results answers a batch with one result for each element. After an error, the results of elements that were not
// carried out are false.
func (c *client) results(results []bool, err error) error {
	if err != nil {
		c.d.opt.Log.Warn("a batch of Maru's has failed", "err", err)
	}
	c.enc.object(1)
	c.enc.bools("results", results)
	return nil
}

func (c *client) handshake(q *request) error {
	e := c.enc
	if q.version > protocolVersion {
		c.enc.object(3)
		e.boolField("success", false)
		e.intField("server_version", protocolVersion)
		e.textField("error", fmt.Sprintf("the client speaks version %d of Maru's protocol, this server %d", q.version, protocolVersion))
		return nil
	}
	e.object(3)
	e.boolField("success", true)
	e.intField("server_version", protocolVersion)
	e.textField("rm_address", c.resources())
	return nil
}

// resources returns the address by which this client reaches the resource manager. If
// that listens on all addresses, it is the one by which the client has reached the
// directory.
func (c *client) resources() string {
	at := c.d.resources.Addr().(*net.TCPAddr)
	host := at.IP
	if host.IsUnspecified() {
		host = net.IPv4(127, 0, 0, 1)
		if local, ok := c.link.conn.LocalAddr().(*net.TCPAddr); ok {
			host = local.IP
		}
	}
	return net.JoinHostPort(host.String(), fmt.Sprint(at.Port))
}

func (c *client) alloc(q *request, arrived time.Time) error {
	r, err := c.guest.Alloc(arrived, q.instance, int64(min(q.size, 1<<62)))
	if err != nil {
		c.enc.object(2)
		c.enc.boolField("success", false)
		c.enc.textField("error", err.Error())
		return nil
	}
	c.d.mu.Lock()
	c.d.unclaimed[r.ID] = time.Now()
	c.d.mu.Unlock()
	c.enc.object(2)
	c.enc.boolField("success", true)
	c.enc.text("handle")
	c.enc.handle(r)
	return nil
}

// claim notes that somebody knows of a region, so that it is not taken back.
func (d *Door) claim(region uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.unclaimed, region)
}

func (c *client) register(h header, q *request, arrived time.Time) error {
	e := c.enc
	keys := q.entries
	if h.kind == typeRegister {
		keys = []server.MaruKey{q.key}
	}
	isNew, refused := c.guest.Register(arrived, keys)
	if h.kind == typeRegister {
		if refused[0] != nil { // without the field error, "not new" counts as stored
			e.object(2)
			e.boolField("success", false)
			e.textField("error", refused[0].Error())
			return nil
		}
		e.object(2)
		e.boolField("success", true)
		e.boolField("is_new", isNew[0])
		return nil
	}
	// If none of the keys was registered, success must be false: only then does the
	// client free the pages of all of them.
	failed := len(keys) > 0
	for i := range keys {
		failed = failed && refused[i] != nil
	}
	if failed {
		e.object(3)
		e.boolField("success", false)
		e.textField("error", refused[0].Error())
	} else {
		e.object(2)
		e.boolField("success", true)
	}
	e.bools("results", isNew)
	return nil
}

func (c *client) batchLookup(q *request) error {
	e := c.enc
	e.object(1)
	e.text("entries")
	e.array(len(q.keys))
	err := c.guest.Lookup(q.keys, func(_ int, ok bool, f server.Found) { e.found(ok, f) })
	if err != nil { // nothing has been written: all are misses
		for range q.keys {
			e.found(false, server.Found{})
		}
	}
	return nil
}

// gone reports whether a connection has ended in a way that is nobody's fault.
func gone(err error) bool {
	var op *net.OpError
	return errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op) && !op.Timeout()
}
