package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"polder/internal/fdpass"
	"polder/memnode"
	"polder/pool/manager"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

// patience decides when a broken test fails, not whether a sound one passes.
const patience = time.Minute

// den is a memory node and a broker, for tests that see the ring.
type den struct {
	t    *testing.T
	b    *Broker
	node *memnode.Node
	path string
}

func newDen(t *testing.T, cfg Config) *den {
	t.Helper()
	fabric := inproc.NewFabric()
	device := func() verbs.Device {
		dev, err := fabric.NewDevice(softnic.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		return dev
	}
	lender := device()
	node, err := memnode.New(lender, memnode.Config{Lend: 1 << 20, ChunkSize: 4096, Manager: memnode.FineMem})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := fabric.Listen(lender, "node")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 2)
	go func() { served <- node.Serve(lis) }()
	cfg.Device = device()
	cfg.Nodes = []Node{{Addr: "node", Dial: func(ctx context.Context) (verbs.Conn, error) { return fabric.Dial(ctx, cfg.Device, "node") }}}
	d := &den{t: t, node: node, path: filepath.Join(t.TempDir(), "sock")}
	if d.b, err = New(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	l, err := d.b.Listen(d.path)
	if err != nil {
		t.Fatal(err)
	}
	go func() { served <- d.b.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(d.b.Close(), node.Close(), <-served, <-served); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *den) dial() *Client {
	d.t.Helper()
	c, err := Dial(d.t.Context(), d.path)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { c.Close() })
	return c
}

// victim is an application that has a block, and must keep it.
func (d *den) victim() (c *Client, session uint64, b Block) {
	d.t.Helper()
	c = d.dial()
	info, err := c.Attach(d.t.Context(), 0)
	if err != nil {
		d.t.Fatal(err)
	}
	if b, err = c.Alloc(d.t.Context(), 0, info.Session, 0); err != nil {
		d.t.Fatal(err)
	}
	return c, info.Session, b
}

func (d *den) eventually(what string, cond func() bool) {
	d.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			d.t.Fatalf("%s: did not happen within %v", what, patience)
		}
	}
}

// unharmed checks that the victim has its block and can get others.
func (d *den) unharmed(c *Client, session uint64, b Block) {
	d.t.Helper()
	other, err := c.Alloc(d.t.Context(), 0, session, 0)
	if err != nil {
		d.t.Errorf("an innocent application cannot allocate any more: %v", err)
	} else if other.First == b.First {
		d.t.Error("an innocent application was given what it had")
	}
	d.eventually("only the innocent application has anything", func() bool { return d.b.Stats().Nodes[0].Blocks == 2 })
	if err := c.Free(d.t.Context(), 0, session, b); err != nil {
		d.t.Errorf("an innocent application cannot free what it had: %v", err)
	}
}

// disconnected waits until the broker has had enough of c.
func (d *den) disconnected(c *Client) {
	d.t.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		d.t.Error("the broker keeps an application that misbehaves")
	}
}

func TestGarbageInTheRing(t *testing.T) {
	d := newDen(t, Config{})
	victim, session, block := d.victim()
	good := request{op: opAlloc, session: session}
	for name, garbage := range map[string]func(b []byte){
		"zeros": func(b []byte) { clear(b) },
		"ones": func(b []byte) {
			copy(b, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
		},
		"unknown op":     func(b []byte) { b[0] = 9 },
		"huge class":     func(b []byte) { b[1] = 200 },
		"no such node":   func(b []byte) { binary.LittleEndian.PutUint16(b[2:], 1) },
		"a first chunk":  func(b []byte) { binary.LittleEndian.PutUint32(b[4:], 1) },
		"reserved bytes": func(b []byte) { b[20] = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			c := d.dial()
			good.encode(c.ring.request(3))
			garbage(c.ring.request(3))
			if c.ring.post(3) {
				c.wake()
			}
			d.disconnected(c)
		})
	}
	if got := d.b.Stats().Violations; got != 7 {
		t.Errorf("%d violations were counted, want 7", got)
	}
	d.unharmed(victim, session, block)
}

// TestTheWholeRingIsNoise: every word of the ring is changed all the time.
func TestTheWholeRingIsNoise(t *testing.T) {
	d := newDen(t, Config{})
	victim, session, block := d.victim()
	for seed := range byte(8) {
		c := d.dial()
		b := c.ring.mem.Bytes()
		for i := range b {
			b[i] = byte(i)*31 + seed
		}
		c.ring.posted.Store(^uint32(0))
		c.wake()
		d.disconnected(c)
	}
	d.unharmed(victim, session, block)
}

func TestWhatIsAnothersIsNotFreed(t *testing.T) {
	d := newDen(t, Config{})
	victim, session, block := d.victim()
	thief := d.dial()
	info, err := thief.Attach(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if info.Session == session {
		t.Error("two applications have the same session")
	}
	if err := thief.Free(t.Context(), 0, session, block); !errors.Is(err, ErrStale) {
		t.Errorf("in the victim's session: got %v, want %v", err, ErrStale)
	}
	for range maxStrikes {
		if err := thief.Free(t.Context(), 0, info.Session, block); !errors.Is(err, ErrNotOwner) {
			t.Fatalf("got %v, want %v", err, ErrNotOwner)
		}
	}
	_ = thief.Free(t.Context(), 0, info.Session, block)
	d.disconnected(thief)
	d.unharmed(victim, session, block)
}

func TestNothingIsFreedTwice(t *testing.T) {
	d := newDen(t, Config{})
	c, session, block := d.victim()
	larger := block
	larger.Class++
	if err := c.Free(t.Context(), 0, session, larger); !errors.Is(err, ErrNotOwner) {
		t.Errorf("more than was allocated: got %v, want %v", err, ErrNotOwner)
	}
	if err := c.Free(t.Context(), 0, session, block); err != nil {
		t.Error(err)
	}
	if err := c.Free(t.Context(), 0, session, block); !errors.Is(err, ErrNotOwner) {
		t.Errorf("the second time: got %v, want %v", err, ErrNotOwner)
	}
}

// TestWhoNeverReadsAnswers keeps every slot posted and reads nothing; who does keeps
// being served, and what the other was given comes back when it is gone.
func TestWhoNeverReadsAnswers(t *testing.T) {
	d := newDen(t, Config{Quota: 64 * 4096})
	victim, session, block := d.victim()
	flood := d.dial()
	info, err := flood.Attach(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	r := request{op: opAlloc, session: info.Session}
	for i := range slots {
		r.encode(flood.ring.request(i))
	}
	for range 100 {
		flood.ring.posted.Store(1<<slots - 1)
		flood.wake()
		if err := victim.Free(t.Context(), 0, session, block); err != nil {
			t.Fatal(err)
		}
		if block, err = victim.Alloc(t.Context(), 0, session, 0); err != nil && !errors.Is(err, manager.ErrNoMemory) {
			t.Fatal(err)
		}
		if err != nil {
			break // they are of one user, and the quota is used up
		}
	}
	d.eventually("the quota bounds the flood", func() bool { return d.b.Stats().Nodes[0].Bytes <= 64*4096 })
	flood.Close()
	d.eventually("the flood's memory has come back", func() bool { return d.b.Stats().Nodes[0].Blocks <= 1 })
}

func TestTheQuotaIsOfTheUser(t *testing.T) {
	d := newDen(t, Config{Quota: 4 * 4096})
	a, session, block := d.victim()
	b, others, _ := d.victim()
	if _, err := a.Alloc(t.Context(), 0, session, 2); !errors.Is(err, manager.ErrBudget) {
		t.Errorf("4 chunks where 2 are left: got %v, want %v", err, manager.ErrBudget)
	}
	if _, err := b.Alloc(t.Context(), 0, others, 1); err != nil {
		t.Error(err)
	}
	if _, err := a.Alloc(t.Context(), 0, session, 0); !errors.Is(err, manager.ErrBudget) {
		t.Errorf("got %v, want %v", err, manager.ErrBudget)
	}
	if err := a.Free(t.Context(), 0, session, block); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Alloc(t.Context(), 0, others, 0); err != nil {
		t.Errorf("after another of the user's applications has freed: %v", err)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	d := newDen(t, Config{PerUser: 4})
	victim, session, block := d.victim()
	for range 3 {
		d.dial()
	}
	for range 1000 {
		if c, err := Dial(t.Context(), d.path); !errors.Is(err, ErrDenied) {
			if err == nil {
				c.Close()
			}
			t.Fatalf("one too many: got %v, want %v", err, ErrDenied)
		}
	}
	if got := d.b.Stats(); got.Apps != 4 || got.Refused != 1000 {
		t.Errorf("got %+v", got)
	}
	d.unharmed(victim, session, block)
}

func TestUsersWhoAreNotListedAreTurnedAway(t *testing.T) {
	d := newDen(t, Config{Users: []int{os.Geteuid() + 1}})
	if c, err := Dial(t.Context(), d.path); !errors.Is(err, ErrDenied) {
		if err == nil {
			c.Close()
		}
		t.Errorf("got %v, want %v", err, ErrDenied)
	}
	if st, err := os.Stat(d.path); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("others cannot connect: %v, %v", st.Mode(), err)
	}
}

func TestTheRingCannotBeMadeSmaller(t *testing.T) {
	d := newDen(t, Config{})
	sock, err := fdpass.Dial(d.path)
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	if err := sock.Send(appendHello(nil)); err != nil {
		t.Fatal(err)
	}
	_, files, err := sock.RecvFDs()
	if err != nil || len(files) != 1 {
		t.Fatalf("got %d files, %v", len(files), err)
	}
	defer fdpass.CloseAll(files)
	if err := files[0].Truncate(0); err == nil {
		t.Error("the ring was truncated")
	}
}

func TestWhoDoesNotSpeakTheProtocolIsTurnedAway(t *testing.T) {
	d := newDen(t, Config{})
	victim, session, block := d.victim()
	for _, hello := range []string{"", "x", "polderBK", "polderBK\xff\xff\xff\xff", "polderSM\x01\x00\x00\x00"} {
		nc, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: d.path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Write([]byte(hello)); err != nil {
			t.Fatal(err)
		}
		if err := nc.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			var n int
			if n, err = nc.Read(make([]byte, 1024)); n == 0 && err == nil {
				err = io.EOF
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: the broker waits for more", hello)
		}
		nc.Close()
	}
	// And who sends more than a bell.
	c := d.dial()
	if err := c.sock.Send(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	d.disconnected(c)
	d.unharmed(victim, session, block)
}

// TestWhatNobodyWaitsForIsFreed: a caller gives up, and a later call cleans up.
func TestWhatNobodyWaitsForIsFreed(t *testing.T) {
	d := newDen(t, Config{})
	c, session, block := d.victim()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		b, err := c.Alloc(ctx, 0, session, 0)
		if err == nil { // it was that fast
			err = c.Free(t.Context(), 0, session, b)
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	d.eventually("what was abandoned is freed", func() bool {
		if _, err := c.Attach(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		return d.b.Stats().Nodes[0].Blocks == 1
	})
	if err := c.Free(t.Context(), 0, session, block); err != nil {
		t.Error(err)
	}
}

func TestABrokerBeats(t *testing.T) {
	d := newDen(t, Config{Heartbeat: time.Millisecond})
	d.eventually("three beats", func() bool { return d.b.Stats().Nodes[0].Beats >= 3 })
}

func TestManyCallers(t *testing.T) {
	d := newDen(t, Config{})
	c, session, _ := d.victim()
	done := make(chan error)
	const callers = 3 * slots
	for range callers {
		go func() {
			for range 20 {
				b, err := c.Alloc(context.Background(), 0, session, 0)
				if err == nil {
					err = c.Free(context.Background(), 0, session, b)
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := d.b.Stats().Nodes[0].Blocks; got != 1 {
		t.Errorf("%d blocks are left, want 1", got)
	}
}
