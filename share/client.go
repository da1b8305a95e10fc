package share

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/fdpass"
	"polder/share/internal/shm"
	"polder/share/internal/wire"
)

// DefaultSocket is where the daemon listens if it is not told otherwise.
const DefaultSocket = "/run/polder/share.sock"

// Config tells Open what to connect to. Zero values stand for the defaults.
type Config struct {
	// Socket is the daemon's. The default is DefaultSocket.
	Socket string
	// Name is what "polder share ls" shows. The default is the command's name.
	Name string
	// PageSize is the size of the pages that Alloc returns, and so the largest
	// blob. The default is 1 MiB.
	PageSize int
	// RegionSize is how much the client asks the daemon for at a time. The
	// default is 64 pages, and at least 64 MiB.
	RegionSize int
	// Pool names the pool to take regions from. The default is the first that
	// has room.
	Pool string
	// CacheKeys is how many keys' places are remembered. The default is 65536;
	// a negative number means none.
	CacheKeys int
	// Patience is how long Open and calls wait for a daemon that restarts, or
	// that is there and does not answer. The default is 10 s. A call's context
	// may end the wait sooner.
	Patience time.Duration
}

func (cfg *Config) setDefaults() error {
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	if cfg.Name == "" && len(os.Args) > 0 {
		cfg.Name = os.Args[0][max(0, len(os.Args[0])-wire.MaxName):]
	}
	if cfg.PageSize == 0 {
		cfg.PageSize = 1 << 20
	}
	if cfg.RegionSize == 0 {
		cfg.RegionSize = max(64<<20, 64*cfg.PageSize)
	}
	if cfg.CacheKeys == 0 {
		cfg.CacheKeys = 1 << 16
	}
	if cfg.Patience == 0 {
		cfg.Patience = 10 * time.Second
	}
	switch {
	case cfg.PageSize < 0 || cfg.RegionSize < cfg.PageSize:
		return fmt.Errorf("cannot open: a region of %d bytes cannot hold pages of %d", cfg.RegionSize, cfg.PageSize)
	case len(cfg.Name) > wire.MaxName:
		return fmt.Errorf("cannot open: the name has %d bytes, at most %d are allowed", len(cfg.Name), wire.MaxName)
	}
	return nil
}

// Client is a connection to the daemon, with the regions that it owns and
// those of others that it has mapped.
type Client struct {
	cfg   Config
	seed  maphash.Seed
	lease *shm.Lease
	kept  *kept
	table atomic.Pointer[shm.Table] // of the present attachment
	box   atomic.Pointer[mailbox]   // likewise; nil if there is none
	epoch atomic.Uint64             // counts attachments
	lru   atomic.Bool               // the daemon wants to know what is looked at
	cache cache

	seqs     [shm.Slots]atomic.Uint32 // how often each slot of the lease was used
	leaving  atomic.Bool              // Close was called
	refViews atomic.Int64             // open views that hold no slot
	laneFree chan struct{}
	done     chan struct{} // closed when the session ends
	gone     chan struct{} // closed when the watching goroutine has ended

	expanding sync.Mutex // held while a region is asked for

	mu       sync.Mutex // guards everything below
	token    [16]byte
	id       uint64
	watching *fdpass.Conn
	attached bool
	changed  chan struct{} // closed at the next change of attached, or of err
	err      error         // why the client cannot go on, for good
	idle     []*lane
	lanes    int // open lanes
	waiting  int // calls that wait for a lane
	maps     map[uint64]*mapping
	handles  map[uint64][]byte // of regions that are not mapped yet
	refs     map[uint32]int    // pages of views that hold no slot
	owned    []*region         // the active one first
	filled   bool              // no region but the active one has a free page
	freed    uint64            // Table.Freed when the regions were looked through
	closed   bool
	torn     bool // the session has been ended
}

// kept is the memory shared with the daemon. A goroutine that is late may still
// look at it after Close, or at a former table after a new attachment: it is
// unmapped when nobody can reach the client any more.
type kept struct {
	lease  *shm.Lease
	tables []*shm.Table
	boxes  []*shm.Mailbox
}

func (k *kept) close() {
	k.lease.Close()
	for _, t := range k.tables {
		t.Close()
	}
	for _, b := range k.boxes {
		b.Close()
	}
}

// Open attaches to the daemon.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	lease, err := shm.NewLease()
	if err != nil {
		return nil, fmt.Errorf("cannot open: %w", err)
	}
	c := &Client{
		cfg:      cfg,
		seed:     maphash.MakeSeed(),
		lease:    lease,
		kept:     &kept{lease: lease},
		laneFree: make(chan struct{}, maxLanes),
		done:     make(chan struct{}),
		gone:     make(chan struct{}),
		changed:  make(chan struct{}),
		maps:     map[uint64]*mapping{},
		handles:  map[uint64][]byte{},
		refs:     map[uint32]int{},
	}
	c.cache.init(cfg.CacheKeys)
	if err := c.attach(ctx); err != nil {
		c.kept.close()
		return nil, &OpError{Op: "open " + cfg.Socket, Err: err}
	}
	runtime.AddCleanup(c, func(k *kept) { k.close() }, c.kept)
	go c.watch()
	return c, nil
}

// ID returns the number by which the daemon knows the client.
func (c *Client) ID() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// PageSize returns the size of the pages that Alloc returns.
func (c *Client) PageSize() int { return c.cfg.PageSize }

// attach connects, says who the client is and what it looks at, and asks for
// notices. It waits as long as the client's patience lasts.
func (c *Client) attach(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Patience, c.impatient())
	defer cancel()
	conn, err := fdpass.DialContext(ctx, c.cfg.Socket)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err = c.greet(conn)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		conn.Close()
	}
	return err
}

func (c *Client) greet(conn *fdpass.Conn) error {
	c.mu.Lock()
	tok := c.token
	var a attachment
	for page, n := range c.refs {
		for range n {
			a.refs = append(a.refs, page)
		}
	}
	for id, m := range c.maps {
		if !m.mine {
			a.maps = append(a.maps, id)
		}
	}
	for _, r := range c.owned {
		a.owned = append(a.owned, r.id)
	}
	c.mu.Unlock()
	if err := conn.SendFDs(helloMessage(wire.HelloLease|wire.HelloMailbox, tok, c.cfg.Name, a), c.lease.File()); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	msg, files, err := conn.RecvFDs()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer fdpass.CloseAll(files)
	r := wire.Read(msg)
	if s := wire.Status(r.U8()); s != wire.OK {
		return replyError(s, r.Rest())
	}
	id := r.U64()
	copy(tok[:], r.Take(len(tok)))
	flags := r.U8()
	owned := map[uint64]bool{}
	for range r.U32() {
		owned[r.U64()] = true
		if r.Err() != nil && !r.More() {
			break
		}
	}
	if err := r.Err(); err != nil || len(files) != 2 {
		return fmt.Errorf("%w: the daemon's welcome cannot be read", ErrInvalid)
	}
	table, err := shm.OpenTable(files[0])
	if err != nil {
		return err
	}
	c.kept.tables = append(c.kept.tables, table)
	box, err := shm.OpenMailbox(files[1])
	if err != nil {
		return err
	}
	c.kept.boxes = append(c.kept.boxes, box)
	if err := conn.Send(wire.Writer(nil).U8(uint8(wire.Watch))); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if _, err := conn.Recv(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	conn.Done()

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.torn {
		return ErrClosed
	}
	c.token, c.id, c.watching, c.attached, c.freed = tok, id, conn, true, 0
	c.lru.Store(flags&wire.HelloLRU != 0)
	// Remembered places rest on words of the former table, which nobody changes any more. So the new table is stored
	// first, and the cache is cleared then.
	c.table.Store(table)
	c.box.Store(&mailbox{box: box})
	c.epoch.Add(1)
	c.cache.clear()
	c.keepOwned(owned)
	c.announce()
	return nil
}

// announce wakes whoever waits for a change of the attachment.
//
// Preconditions: c.mu is held.
func (c *Client) announce() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// watch reads notices, and attaches anew when the connection breaks, until
// Close.
func (c *Client) watch() {
	defer close(c.gone)
	for {
		c.mu.Lock()
		conn := c.watching
		c.mu.Unlock()
		for {
			msg, err := conn.Recv()
			if err != nil {
				break
			}
			r := wire.Read(msg)
			region, what := r.U64(), wire.Notice(r.U8())
			bad := r.Err() != nil
			conn.Done()
			switch {
			case bad:
			case what == wire.Freed:
				c.regionFreed(region)
			case what == wire.Recalled:
				c.regionRecalled(region)
			}
		}
		conn.Close()
		if !c.reattach() {
			return
		}
	}
}

// reattach attaches anew, with pauses that grow, until it succeeds. It returns false if there is no use in going on.
func (c *Client) reattach() bool {
	// Once a new daemon has heard of this client, it takes back the pages that are not in the lease. So before it
	// hears, views must no longer be opened by the former table. A goroutine that has loaded the former table has
	// written its page into the lease before that.
	c.table.Store(nil)
	c.mu.Lock()
	c.attached = false
	c.announce()
	c.mu.Unlock()
	if m := c.box.Swap(nil); m != nil {
		m.box.Break()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.done:
			cancel()
		case <-stop:
		}
	}()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		select {
		case <-c.done:
			return false
		default:
		}
		err := c.attach(ctx)
		switch {
		case err == nil:
			return true
		case errors.Is(err, ErrNotFound) && c.holdsNothing():
			// The daemon died before it had to remember this client.
			c.mu.Lock()
			c.token = [16]byte{}
			c.mu.Unlock()
			continue
		case errors.Is(err, ErrNotFound):
			// The daemon has lost its state: this session will never be back.
			c.fail(fmt.Errorf("%w: it does not know this client any more", ErrUnavailable))
			<-c.done
			return false
		case errors.Is(err, ErrDenied):
			c.fail(err)
			<-c.done
			return false
		}
		select {
		case <-c.done:
			return false
		case <-time.After(pause):
		}
	}
}

// holdsNothing reports whether the client holds nothing, so that its session could as well be a new one.
func (c *Client) holdsNothing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.owned) == 0 && len(c.maps) == 0 && len(c.refs) == 0
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	c.announce()
}

// Close ends the client. Its regions are returned; keys in them stay. Pages
// that have not been put must not be touched any more. Views that are open
// stay valid, and the client's session with the daemon, and its goroutine,
// last until the last of them is closed. Closing twice is a no-op.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.leaving.Store(true)
	idle := c.idle
	c.idle = nil
	c.announce()
	c.mu.Unlock()
	for _, l := range idle {
		l.conn.Close()
		c.dropLane()
	}
	return c.tearDown()
}

// tearDown ends the session if the client is closed and no view is open.
func (c *Client) tearDown() error {
	c.mu.Lock()
	views := c.refViews.Load() > 0
	c.lease.Held(func(uint32) { views = true })
	if c.torn || views || !c.closed {
		c.mu.Unlock()
		return nil
	}
	c.torn = true
	tok, epoch := c.token, c.epoch.Load()
	watching := c.watching
	maps, owned := c.maps, c.owned
	c.maps, c.owned = nil, nil
	c.mu.Unlock()

	close(c.done)
	err := c.sayGoodbye(tok, epoch)
	watching.Close()
	<-c.gone
	for _, m := range maps {
		m.drop()
	}
	for _, r := range owned {
		err = errors.Join(err, r.mem.Close())
	}
	return err
}

// goodbyeTime bounds how long Close waits for a daemon that restarts.
const goodbyeTime = 3 * time.Second

// sayGoodbye ends the session. If the daemon stays away, it finds out by itself when this process is gone.
func (c *Client) sayGoodbye(tok [16]byte, epoch uint64) error {
	for until := time.Now().Add(min(c.cfg.Patience, goodbyeTime)); ; {
		err := c.tryGoodbye(tok, epoch, until)
		switch {
		case err == nil, errors.Is(err, ErrNotFound): // the first try has done it
			return nil
		case errors.Is(err, ErrNoLog):
			return &OpError{Op: "close", Err: err}
		case time.Now().After(until):
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (c *Client) tryGoodbye(tok [16]byte, epoch uint64, until time.Time) error {
	l, err := c.dialLane(tok, epoch, until)
	if err != nil {
		return err
	}
	defer l.conn.Close()
	if err := l.conn.Send(wire.Writer(nil).U8(uint8(wire.Bye))); err != nil {
		return err
	}
	msg, err := l.conn.Recv()
	if err != nil {
		return err
	}
	defer l.conn.Done()
	r := wire.Read(msg)
	return replyError(wire.Status(r.U8()), r.Rest())
}
