package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"polder/internal/brief"
	"polder/verbs"
	"polder/verbs/internal/cm"
	"polder/verbs/internal/endpoint"
	"polder/verbs/softnic"
)

const (
	// readBuffer is how much is read at once.
	readBuffer = 256 << 10
	// maxBody is the largest frame body that this version sends: a packet.
	maxBody = softnic.MaxHeader + softnic.MaxPayload
	// batchSize is the most packets that are handed to the engine at once.
	batchSize = 256
	// linger is how long a closed connection waits for what it sent last to
	// be taken.
	linger          = time.Second
	silentIntervals = endpoint.SilentIntervals
)

var (
	errPeerClosed = errors.New("connection closed by the peer")
	errSilent     = errors.New("the peer is silent")
)

// A Conn is a connection over one stream socket. A driver's connection embeds it,
// and is a cm.Link by its methods.
type Conn struct {
	cm.Conn
	dev    *Device
	nc     net.Conn // *brief.Conn, *tls.Conn over one, or *Files
	cfg    endpoint.Config
	out    outbox
	resume func() // resumes the link; made once

	// TakeFile, if set, is called by the reader for each file that the peer
	// sends, and owns it. An error ends the connection. Without it a peer that
	// sends a file is cut off. It is set before Establish.
	TakeFile func(f *os.File, body []byte) error

	// The reader's.
	frames  *frameReader
	packets []softnic.Packet // a batch, verified
	given   int              // how many of packets the engine has taken
	next    func() (*softnic.Packet, bool)
	chunks  atomic.Uint64 // how often something came, for keepalive

	readerDone chan struct{}
}

// Establish exchanges hellos over nc for as long as ctx allows. If the peer is admitted it makes nc a connection,
// registers that with the device, and starts its goroutines. self embeds c. Of cfg only StallTimeout and KeepAlive
// count; without KeepAlive the peer is not pinged. If Establish fails the caller closes nc.
func (c *Conn) Establish(ctx context.Context, self cm.Link, dev *Device, nc net.Conn, cfg endpoint.Config, requests *endpoint.Requests, admit endpoint.Admit) error {
	ours := ourHello
	if cfg.Guest != nil {
		ours.features |= featureGuest
	}
	both, err := shake(ctx, nc, ours)
	if err != nil {
		return err
	}
	leave, err := admit()
	if err != nil {
		return err
	}
	if both.features&featureGuest != 0 {
		if err := cfg.Guest(nc, leave); err != nil {
			leave()
			return err
		}
		return nil
	}
	if err := c.open(self, dev, nc, cfg, requests); err != nil {
		leave()
		return err
	}
	remove, err := dev.Ends.Add(self)
	if err != nil {
		dev.RemoveLink(c.ID())
		leave()
		return err
	}
	go c.read()
	go func() {
		c.write()
		<-c.readerDone
		c.out.dropFiles()
		if f, ok := c.nc.(*Files); ok {
			f.drop()
		}
		leave()
		remove()
	}()
	return nil
}

// shake exchanges hellos.
func shake(ctx context.Context, nc net.Conn, ours hello) (both hello, err error) {
	err = endpoint.Shake(ctx, nc, func() (err error) { both, err = exchangeHello(nc, ours); return err })
	return both, err
}

// ErrNoGuests says that a listener only accepts peers that connect queue pairs.
var ErrNoGuests = errors.New("it takes nobody who does not want to connect queue pairs: it may be of an earlier version")

// BeGuest makes this end of nc, which was dialled, a guest of the listener, for as long as ctx allows.
func BeGuest(ctx context.Context, nc net.Conn) error {
	ours := ourHello
	ours.features |= featureGuest
	both, err := shake(ctx, nc, ours)
	if err == nil && both.features&featureGuest == 0 {
		err = ErrNoGuests
	}
	return err
}

// open makes the connection over nc, which has been through its handshake, and
// adds it to the device.
func (c *Conn) open(self cm.Link, dev *Device, nc net.Conn, cfg endpoint.Config, requests *endpoint.Requests) error {
	c.dev, c.nc, c.cfg = dev, nc, cfg
	c.frames = newFrameReader(maxBody, readBuffer)
	c.packets = make([]softnic.Packet, 0, batchSize)
	c.readerDone = make(chan struct{})
	c.out = outbox{conn: nc, stall: cfg.StallTimeout, wake: make(chan struct{}, 1)}
	switch s := nc.(type) {
	case *brief.Conn:
		c.out.raw = s
	case *Files:
		c.out.raw = s.Conn
	}
	c.resume = func() { c.dev.Resume(c.ID()) }
	c.next = c.nextPacket
	return c.Conn.Open(dev.Device, self, requests)
}

// Send implements softdev.LinkDriver. The device's lock is held.
func (c *Conn) Send(p *softnic.Packet) { c.out.addPacket(p) }

// Ready implements softdev.LinkDriver. The device's lock is held.
func (c *Conn) Ready() bool { return c.out.ready() }

// Flush implements softdev.Flusher. No lock is held.
func (c *Conn) Flush() {
	if err := c.out.flush(c.resume); err != nil {
		c.Fail(err)
	}
}

// read is the reader. It ends when the connection does.
func (c *Conn) read() {
	defer close(c.readerDone)
	for {
		select {
		case <-c.Down():
			// See the peer off: hangUp has set a deadline, or closed.
			_, _ = io.Copy(io.Discard, c.nc)
			return
		default:
		}
		if err := c.frames.fill(c.nc); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF // there was no BYE
			}
			c.Fail(fmt.Errorf("connection lost: %w", err))
			return
		}
		c.chunks.Add(1)
		if err := c.handleFrames(); err != nil {
			c.Fail(err)
			return
		}
	}
}

// handleFrames handles all whole frames that have been read.
//
// Hot path: it takes the device's lock once and flushes once per batch.
func (c *Conn) handleFrames() error {
	answered := false
	for {
		// Checksums are verified before the device is locked.
		t, body, err := c.gather()
		if len(c.packets) > 0 {
			c.given = 0
			c.dev.Deliver(c.ID(), c.next)
		}
		switch {
		case err != nil:
			return err
		case t == framePacket:
			continue // the batch was full
		case t == 0:
			if answered {
				c.Flush()
			}
			return nil
		}
		answered = true
		if err := c.handleControl(t, body); err != nil {
			return err
		}
	}
}

// gather collects packets until the batch is full (it then returns
// framePacket), until there is no whole frame left (0), or until another
// frame comes, which it returns. On an error the packets before it stand.
func (c *Conn) gather() (t frameType, body []byte, err error) {
	c.packets = c.packets[:0]
	for len(c.packets) < batchSize {
		t, body, ok, err := c.frames.next()
		if err != nil || !ok {
			return 0, nil, err
		}
		if t != framePacket {
			return t, body, nil
		}
		c.packets = c.packets[:len(c.packets)+1]
		if err := c.packets[len(c.packets)-1].Decode(body); err != nil {
			c.packets = c.packets[:len(c.packets)-1]
			return 0, nil, err
		}
	}
	return framePacket, nil, nil
}

// nextPacket gives the engine the packets of the batch.
func (c *Conn) nextPacket() (*softnic.Packet, bool) {
	if c.given == len(c.packets) {
		return nil, false
	}
	c.given++
	return &c.packets[c.given-1], true
}

// write is the writer: it writes what flushes leave to it, and looks after
// the peer's silence. It ends when the connection does.
func (c *Conn) write() {
	var tick <-chan time.Time
	if c.cfg.KeepAlive > 0 {
		alive := time.NewTicker(c.cfg.KeepAlive)
		defer alive.Stop()
		tick = alive.C
	}
	var chunks uint64 // as of the last tick
	silent := 0       // ticks without a sign of life
	for {
		select {
		case <-c.out.wake:
			if _, err := c.out.drain(c.resume); err != nil {
				c.Fail(err)
			}
		case <-tick:
			if now := c.chunks.Load(); now != chunks {
				chunks, silent = now, 0
				continue
			}
			if silent++; silent > silentIntervals {
				c.Fail(fmt.Errorf("nothing has come for %v, not even the answer to a ping: %w",
					silentIntervals*c.cfg.KeepAlive, errSilent))
				continue
			}
			if err := c.out.add(framePing, nil); err != nil {
				c.Fail(err)
				continue
			}
			c.Flush()
		case <-c.Down():
			c.hangUp()
			return
		}
	}
}

// hangUp closes the socket; after Close it first sends what there is to send.
func (c *Conn) hangUp() {
	defer c.nc.Close()
	if !c.Graceful() {
		return
	}
	c.out.stall = min(c.out.stall, linger)
	for {
		end, err := c.out.drain(c.resume)
		if err != nil {
			return
		}
		if end {
			break
		}
		<-c.out.wake
	}
	// The peer answers the BYE by closing. Closing here before that could
	// make the kernel throw away what the peer has not read yet.
	if err := c.nc.SetReadDeadline(time.Now().Add(linger)); err != nil {
		return
	}
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() != nil {
		return
	}
	<-c.readerDone
}

// Fail implements cm.Link.
func (c *Conn) Fail(err error) { c.end(err, false) }

func (c *Conn) end(err error, graceful bool) {
	c.End(err, graceful, func() {
		c.out.close(graceful)
		if !graceful {
			c.nc.Close()
		}
	})
}

// LocalAddr implements verbs.Conn.
func (c *Conn) LocalAddr() string { return c.nc.LocalAddr().String() }

// RemoteAddr implements verbs.Conn.
func (c *Conn) RemoteAddr() string { return c.nc.RemoteAddr().String() }

// Close implements verbs.Conn. It may be called from a completion handler.
func (c *Conn) Close() error {
	c.end(verbs.ErrClosed, true)
	return nil
}
