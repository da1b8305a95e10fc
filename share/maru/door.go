package maru

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"polder/internal/accept"
	"polder/internal/fdpass"
	"polder/internal/ratelog"
	"polder/share/server"
)

// Options tune a Door. Zero values stand for the defaults.
type Options struct {
	// Directory is where clients reach the directory server: tcp://HOST:PORT or
	// ipc:///PATH, several if need be. It is required.
	Directory []string
	// SocketMode is the permission of the sockets of ipc:// addresses. The default
	// is 0600.
	SocketMode os.FileMode
	// Resources is where clients reach the resource manager: HOST:PORT. It is
	// required.
	Resources string
	// Late is the daemon's Options.Late. The default is 1 s.
	Late time.Duration
	// Heartbeat is how long a client may be silent before the door sends it a PING.
	// A client that has answered one before, and is silent for three times as long,
	// counts as gone. The default is 10 s.
	Heartbeat time.Duration
	// Unclaimed is how long the door waits until somebody asks the resource manager
	// for the path of a new region. If nobody does, the owner gave up before it was
	// told that it has the region, and the door takes it back. The default is 30 s.
	Unclaimed time.Duration
	// MaxConns bounds the connections to each server. The default is 4096.
	MaxConns int
	// Log is where the door reports. The default is slog.Default().
	Log *slog.Logger
}

func (o *Options) setDefaults() error {
	if len(o.Directory) == 0 || o.Resources == "" {
		return errors.New("cannot serve Maru's clients: both the directory's and the resource manager's address are needed")
	}
	o.SocketMode = cmp.Or(o.SocketMode, 0o600)
	o.Late = cmp.Or(o.Late, time.Second)
	o.Heartbeat = cmp.Or(o.Heartbeat, 10*time.Second)
	o.Unclaimed = cmp.Or(o.Unclaimed, 30*time.Second)
	o.MaxConns = cmp.Or(o.MaxConns, 4096)
	o.Log = cmp.Or(o.Log, slog.Default())
	o.Log = ratelog.Bound(o.Log)
	return nil
}

// handshakeTime is how long a peer may take to say what it is.
const handshakeTime = 5 * time.Second

// Door serves Maru's clients.
type Door struct {
	opt       Options
	s         *server.Server
	stalls    *stalls
	budget    *budget
	gate      *accept.Gate
	directory []net.Listener
	resources net.Listener
	done      chan struct{}
	close     sync.Once
	wg        sync.WaitGroup
	reports   reports
	counts    counts
	answers   answers

	mu        sync.Mutex            // guards everything below
	clients   map[*client]struct{}  // of the directory
	mappers   map[*mapper]struct{}  // of the resource manager
	presenter map[uint64]*presenter // by client of the directory: who presents its tokens at the resource manager
	unclaimed map[uint64]time.Time  // regions whose path nobody has asked for, and since when
	closed    bool
}

// presenter is the client of the resource manager that presents the tokens which the
// directory has told one of its clients: the same client under another name.
type presenter struct {
	name  string // what it calls itself at the resource manager
	conns int
}

// Start serves Maru's clients with what s holds, until Close, which must come
// before that of s.
func Start(s *server.Server, opt Options) (*Door, error) {
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	d := &Door{
		opt: opt, s: s, stalls: newStalls(), budget: newBudget(maxFrame), gate: accept.NewGate(opt.Log, handshakeTime),
		done: make(chan struct{}), clients: map[*client]struct{}{}, mappers: map[*mapper]struct{}{},
		presenter: map[uint64]*presenter{}, unclaimed: map[uint64]time.Time{},
	}
	if err := d.listen(); err != nil {
		d.Close()
		return nil, err
	}
	d.wg.Go(func() { d.stalls.run(d.done) })
	d.wg.Go(d.lookAfter)
	for _, lis := range d.directory {
		d.wg.Go(func() { d.accept(lis, d.serveDirectory) })
	}
	d.wg.Go(func() { d.accept(d.resources, d.serveResources) })
	return d, nil
}

func (d *Door) listen() error {
	for _, addr := range d.opt.Directory {
		network, at, err := ParseAddr(addr)
		if err != nil {
			return err
		}
		var lis net.Listener
		if network == "unix" {
			lis, err = fdpass.ListenStream(at, d.opt.SocketMode)
		} else {
			lis, err = net.Listen(network, at)
		}
		if err != nil {
			return fmt.Errorf("cannot serve Maru's clients at %s: %w", addr, err)
		}
		d.directory = append(d.directory, lis)
	}
	var err error
	if d.resources, err = net.Listen("tcp", d.opt.Resources); err != nil {
		return fmt.Errorf("cannot serve Maru's resource manager at %s: %w", d.opt.Resources, err)
	}
	return nil
}

// ParseAddr takes an address of ZeroMQ's apart: tcp://HOST:PORT or ipc:///PATH.
func ParseAddr(addr string) (network, at string, err error) {
	scheme, at, ok := strings.Cut(addr, "://")
	switch {
	case ok && scheme == "ipc" && strings.HasPrefix(at, "/"):
		return "unix", at, nil
	case ok && scheme == "tcp":
		if _, _, err := net.SplitHostPort(at); err == nil {
			return "tcp", at, nil
		}
	}
	return "", "", fmt.Errorf("cannot use the address %q: want tcp://HOST:PORT or ipc:///PATH", addr)
}

// Addrs returns where the directory listens, as ZeroMQ has it, and the resource
// manager.
func (d *Door) Addrs() (directory []string, resources string) {
	for _, lis := range d.directory {
		scheme := "tcp://"
		if lis.Addr().Network() == "unix" {
			scheme = "ipc://"
		}
		directory = append(directory, scheme+lis.Addr().String())
	}
	return directory, d.resources.Addr().String()
}

// accept serves connections until the listener is closed. The handshake takes place at
// the gate, where a peer that is slow or silent holds nobody up.
func (d *Door) accept(lis net.Listener, serve func(net.Conn, *accept.Visitor) error) {
	err := accept.Each(d.opt.Log, d.gate.Accept(lis.Accept), func(nc net.Conn) {
		d.gate.Go(nc, func(v *accept.Visitor) error { return serve(nc, v) })
	})
	if !errors.Is(err, net.ErrClosed) {
		d.opt.Log.Error("no client of Maru's can connect any more", "addr", lis.Addr(), "err", err)
	}
}

var errCrowded = errors.New("as many clients are connected as are admitted")

// lookAfter looks after what no request tells of.
func (d *Door) lookAfter() {
	tick := time.NewTicker(min(time.Second, d.opt.Heartbeat, d.opt.Unclaimed))
	defer tick.Stop()
	for {
		select {
		case <-d.done:
			return
		case <-tick.C:
		}
		d.heartbeats()
		d.abandon()
	}
}

// heartbeats sends a PING to clients that are silent, and disconnects those that used
// to answer and no longer do.
func (d *Door) heartbeats() {
	var silent []*link
	d.mu.Lock()
	now := time.Since(d.stalls.began)
	for c := range d.clients {
		switch away := now - time.Duration(c.link.arrival.heard.Load()); {
		case c.peer.minor == 0 || away < d.opt.Heartbeat:
		case c.answers.Load() && away > 3*d.opt.Heartbeat:
			d.opt.Log.Info("a client of Maru's is silent and counts as gone", "silent", away)
			c.link.conn.Close()
		case now-c.asked >= d.opt.Heartbeat:
			c.asked = now
			silent = append(silent, c.link)
		}
	}
	d.mu.Unlock()
	for _, l := range silent {
		l.ping()
	}
}

// abandon takes back the regions whose path nobody has asked for in time: see
// Options.Unclaimed.
func (d *Door) abandon() {
	var gone []uint64
	d.mu.Lock()
	for id, since := range d.unclaimed {
		if time.Since(since) > d.opt.Unclaimed {
			delete(d.unclaimed, id)
			gone = append(gone, id)
		}
	}
	d.mu.Unlock()
	for _, id := range gone {
		if err := d.s.Abandon(id); err != nil {
			d.opt.Log.Error("cannot take back a region that nobody has claimed", "region", id, "err", err)
		}
	}
}

// Close ends all connections. Closing twice is a no-op.
func (d *Door) Close() error {
	d.close.Do(func() {
		close(d.done)
		for _, lis := range d.directory {
			lis.Close()
		}
		if d.resources != nil {
			d.resources.Close()
		}
		d.mu.Lock()
		d.closed = true
		for c := range d.clients {
			c.link.conn.Close()
		}
		for m := range d.mappers {
			m.conn.Close()
		}
		d.mu.Unlock()
		d.gate.Close()
		d.wg.Wait()
	})
	return nil
}
