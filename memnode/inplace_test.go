package memnode_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/fdpass"
	"polder/memnode"
	"polder/memnode/inplace"
	"polder/memnode/ledger"
	"polder/memnode/wire"
	"polder/pool/pooltest"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

// viewed starts a node whose memory is read in place.
func viewed(t *testing.T, chunks int) *pooltest.Cluster {
	t.Helper()
	cfg := node(chunks)
	cfg.Grace = time.Nanosecond
	return pooltest.NewCluster(t, messages(pooltest.InPlace), cfg)
}

// ask is what r's client does to read in place.
func (r *raw) ask() (*inplace.View, error) {
	return inplace.Ask(r.t.Context(), r.conn.LocalAddr(), r.conn.RemoteAddr(), r.w.Session, int(r.w.ChunkSize)*int(r.w.Chunks))
}

func (r *raw) mustAsk() *inplace.View {
	r.t.Helper()
	v, err := r.ask()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { v.Close() })
	return v
}

// filled is how much of a chunk fill writes to, in bytes.
const filled = 8 << 10

// fill writes b to the beginning of what was granted.
func (r *raw) fill(g wire.Grant, b byte) {
	r.t.Helper()
	copy(r.mem[4096:], bytes.Repeat([]byte{b}, filled))
	if got := r.access1(verbs.OpWrite, g.Addr, g.Key, filled); got != verbs.StatusSuccess {
		r.t.Fatal(got)
	}
}

// has reports whether there is only b where fill writes, in v.
func has(v *inplace.View, g wire.Grant, size uint64, b byte) bool {
	at := uint64(g.Chunk) * size
	return bytes.Count(v.Bytes()[at:at+filled], []byte{b}) == filled
}

func TestClientsOnThisMachineSeeTheMemory(t *testing.T) {
	c := viewed(t, 8)
	r := openRaw(t, c, c.Nodes[0], wire.Session{})
	grants := r.alloc(3)
	v := r.mustAsk()
	for i, g := range grants {
		r.fill(g, byte(7+i))
	}
	for i, g := range grants {
		if !has(v, g, r.w.ChunkSize, byte(7+i)) || !v.Valid() {
			t.Fatalf("chunk %d has not what was written to it, or the lease is not valid: %v", g.Chunk, v.Valid())
		}
	}
	if st := r.free(grants[1].Chunk); st != wire.StatusOK {
		t.Fatal(st)
	}
	pooltest.Eventually(t, "what was freed is zeroed", func() bool { return has(v, grants[1], r.w.ChunkSize, 0) })
	if !has(v, grants[0], r.w.ChunkSize, 7) || !has(v, grants[2], r.w.ChunkSize, 9) {
		t.Error("a chunk that was not freed has changed")
	}
}

// TestReadingInPlaceEndsBeforeTheSessionIsAnothers: when a client with a higher epoch has its answer, the one before it believes nothing.
func TestReadingInPlaceEndsBeforeTheSessionIsAnothers(t *testing.T) {
	c := viewed(t, 8)
	old := mustKeep(t, c, orders, wire.Session{})
	g := old.alloc(1)[0]
	v := old.mustAsk()
	old.fill(g, 1)
	later := orders
	later.Epoch++
	h := wire.Hello{Kind: wire.KindManagement, Manager: memnode.RPCMW, Session: old.w.Session, Keep: later}
	next := dialRaw(t, c, c.Nodes[0])
	private, err := next.hello(next.mgmt, h)
	if v.Valid() {
		t.Error("the lease of the client before is valid when the next one is answered")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := next.w.Decode(private); err != nil || !next.w.Resumed {
		t.Fatalf("the session was not resumed: %v", err)
	}
	if !has(v, g, old.w.ChunkSize, 1) {
		t.Error("what the session has was reclaimed")
	}
	// The session is the same, its secret, too; the connection is another.
	if again, err := old.ask(); !errors.Is(err, inplace.ErrRefused) {
		t.Errorf("the client before asks again: got %v, %v, want %v", again, err, inplace.ErrRefused)
	}
	if v := next.mustAsk(); !has(v, g, old.w.ChunkSize, 1) || !v.Valid() {
		t.Error("the next client does not see what the session has")
	}
}

// TestReadingInPlaceEndsBeforeMemoryIsReclaimed: who finds other bytes than its own finds its lease ended.
func TestReadingInPlaceEndsBeforeMemoryIsReclaimed(t *testing.T) {
	c := viewed(t, 8)
	for range 20 {
		r := openRaw(t, c, c.Nodes[0], wire.Session{})
		var views []*inplace.View
		g := r.alloc(1)[0]
		views = append(views, r.mustAsk())
		r.fill(g, 3)
		ended := make(chan bool)
		go func() { // it is stopped while its connection is lost, so to say: its end does not matter
			own := make([]byte, filled)
			want := bytes.Repeat([]byte{3}, len(own))
			believed := true
			for {
				copy(own, views[0].Bytes()[uint64(g.Chunk)*r.w.ChunkSize:])
				if !views[0].Valid() {
					break
				}
				believed = believed && bytes.Equal(own, want)
			}
			ended <- believed
		}()
		r.conn.Close()
		if !<-ended {
			t.Fatal("bytes that were not the client's were read under a valid lease")
		}
		pooltest.Eventually(t, "the chunk is reclaimed", func() bool { return has(views[0], g, r.w.ChunkSize, 0) })
	}
}

// TestReadingInPlaceEndsWithTheNode, and so does what waits at its door.
func TestReadingInPlaceEndsWithTheNode(t *testing.T) {
	c := pooltest.NewCluster(t, messages(pooltest.InPlace), node(8)) // nothing is reclaimed
	r := openRaw(t, c, c.Nodes[0], wire.Session{})
	g := r.alloc(1)[0]
	v := r.mustAsk()
	r.fill(g, 5)
	silent := knock(t, r)
	c.Nodes[0].Crash()
	if v.Valid() {
		t.Error("the lease is valid although the node has ended")
	}
	if !has(v, g, r.w.ChunkSize, 5) { // no fault, either
		t.Error("memory has changed that nobody has any more")
	}
	if _, err := silent.Recv(); err == nil {
		t.Error("who has said nothing was answered")
	}
	if v, err := r.ask(); !errors.Is(err, inplace.ErrElsewhere) {
		t.Errorf("a node that has ended is asked: got %v, %v, want %v", v, err, inplace.ErrElsewhere)
	}
}

// knock connects to where r's node passes memory.
func knock(t *testing.T, r *raw) *fdpass.Conn {
	t.Helper()
	conn, err := fdpass.Dial(inplace.Name(netip.MustParseAddrPort(r.conn.RemoteAddr())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// honest is what r's client says when it asks for memory.
func (r *raw) honest() inplace.Request {
	return inplace.Request{Session: r.w.Session, From: netip.MustParseAddrPort(r.conn.LocalAddr())}
}

// TestWhoIsPassedMemory: only who knows the session that is used now, over which connection, and its secret; and once.
func TestWhoIsPassedMemory(t *testing.T) {
	c := viewed(t, 8)
	r := openRaw(t, c, c.Nodes[0], wire.Session{})
	r.alloc(1)
	gone := openRaw(t, c, c.Nodes[0], wire.Session{})
	gone.conn.Close()
	pooltest.Eventually(t, "the client is missed", func() bool { return c.Nodes[0].Stats().Clients == 1 })
	other := openRaw(t, c, c.Nodes[0], wire.Session{})
	other.alloc(1)

	good := r.honest()
	session, secret, end, port := good, good, good, good
	session.Session.ID++
	secret.Session.Secret[31] ^= 1
	end.From = other.honest().From
	port.From = netip.AddrPortFrom(good.From.Addr(), good.From.Port()^1)
	theirs := other.honest()
	theirs.Session.Secret = good.Session.Secret
	for what, try := range map[string]inplace.Request{
		"a session that there is not":  session,
		"a wrong secret":               secret,
		"another's connection":         end,
		"a connection that is none":    port,
		"another's session":            theirs,
		"nothing":                      {From: good.From},
		"a session that has ended":     gone.honest(),
		"a session from nowhere":       {Session: good.Session, From: netip.AddrPortFrom(netip.IPv6Unspecified(), 0)},
		"another's with its own place": {Session: other.w.Session, From: good.From},
	} {
		conn := knock(t, r)
		if err := conn.Send(try.Append(nil)); err != nil {
			t.Fatal(err)
		}
		b, files, err := conn.RecvFDs()
		if err != nil || len(files) != 0 {
			fdpass.CloseAll(files)
			t.Errorf("%s: got %d descriptors and %q, %v, want a refusal", what, len(files), b, err)
		}
	}
	for what, msg := range map[string][]byte{
		"one byte": {1}, "too short": good.Append(nil)[:63], "too long": append(good.Append(nil), 0), "another magic": append([]byte{9}, good.Append(nil)[1:]...),
	} {
		conn := knock(t, r)
		if err := conn.Send(msg); err != nil {
			t.Fatal(err)
		}
		if b, files, err := conn.RecvFDs(); err != nil || len(files) != 0 {
			fdpass.CloseAll(files)
			t.Errorf("%s: got %d descriptors and %q, %v, want a refusal", what, len(files), b, err)
		}
	}
	// A crowd that says nothing, or sends descriptors, keeps neither the node nor who knows the session from anything.
	for i := range 200 {
		if conn := knock(t, r); i%2 == 0 {
			if err := conn.SendFDs([]byte("mine"), os.Stdin); err != nil {
				t.Fatal(err)
			}
		}
	}
	v := r.mustAsk()
	if !v.Valid() {
		t.Error("the lease is not valid")
	}
	if again, err := r.ask(); !errors.Is(err, inplace.ErrRefused) || !strings.Contains(err.Error(), "has been passed") {
		t.Errorf("a second time over the same connection: got %v, %v, want %v", again, err, inplace.ErrRefused)
	}
	if !v.Valid() {
		t.Error("the lease has ended because somebody asked again")
	}
	r.alloc(1)
}

// TestWhatIsPassedIsForReading: the descriptor that a client gets maps nothing that could be written to.
func TestWhatIsPassedIsForReading(t *testing.T) {
	c := viewed(t, 8)
	r := openRaw(t, c, c.Nodes[0], wire.Session{})
	conn := knock(t, r)
	q := r.honest()
	if err := conn.Send(q.Append(nil)); err != nil {
		t.Fatal(err)
	}
	_, files, err := conn.RecvFDs()
	if err != nil || len(files) != 2 {
		t.Fatalf("got %d descriptors, %v, want 2", len(files), err)
	}
	defer fdpass.CloseAll(files)
	fd, size := int(files[0].Fd()), int(r.w.ChunkSize)
	if m, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != unix.EACCES {
		t.Errorf("mapping it writable: got %d bytes, %v, want %v", len(m), err, unix.EACCES)
	}
	m, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	if err := unix.Mprotect(m, unix.PROT_READ|unix.PROT_WRITE); err != unix.EACCES {
		t.Errorf("making it writable: got %v, want %v", err, unix.EACCES)
	}
	for what, err := range map[string]error{
		"write":          func() error { _, err := unix.Pwrite(fd, []byte("x"), 0); return err }(),
		"punch":          unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(size)),
		"truncate":       unix.Ftruncate(fd, 0),
		"seal":           func() error { _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); return err }(),
		"shrink a lease": unix.Ftruncate(int(files[1].Fd()), 0),
		"seal a lease": func() error {
			_, err := unix.FcntlInt(files[1].Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
			return err
		}(),
	} {
		if err == nil {
			t.Errorf("%s: it was done", what)
		}
	}
}

// TestWhatCannotBeReadInPlaceIsRefused, with what to do.
func TestWhatCannotBeReadInPlaceIsRefused(t *testing.T) {
	dev, err := inproc.NewFabric().NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	out, err := ledger.NewOutliving(noStore{}, "memory", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for want, cfg := range map[string]memnode.Config{
		"want native, onesided or rpcmw":      {Manager: memnode.FineMem},
		"lent by memfd cannot":                {Manager: memnode.MemFD},
		"secrets of clients":                  {Outliving: out},
		"over a device that pins cannot":      {},
		"lent by staticmr cannot":             {Manager: memnode.StaticMR},
		"lent by odrp cannot be read in plac": {Manager: memnode.ODRP},
	} {
		d := verbs.Device(dev)
		if strings.Contains(want, "pins") {
			d = pins{d}
		}
		cfg.Lend, cfg.ChunkSize, cfg.InPlace = 1<<20, 64<<10, true
		if n, err := memnode.New(d, cfg); err == nil || !strings.Contains(err.Error(), want) {
			if err == nil {
				n.Close()
			}
			t.Errorf("%s: got %v, want it to say %q", cfg.Manager, err, want)
		}
	}
}

// pins is a device that pins memory.
type pins struct{ verbs.Device }

func (d pins) Attr() verbs.DeviceAttr {
	a := d.Device.Attr()
	a.Pinned, a.Name = true, "a device that pins"
	return a
}

// noStore keeps nothing.
type noStore struct{}

func (noStore) Keep(string, *os.File) error { return nil }
func (noStore) Forget(string) error         { return nil }
func (noStore) Kept(string) *os.File        { return nil }

// TestOthersReadOverTheFabric: a node that passes nothing, and one on another fabric, is asked in vain.
func TestOthersReadOverTheFabric(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.TCP, pooltest.Inproc} {
		c := pooltest.NewCluster(t, messages(s), node(8))
		r := openRaw(t, c, c.Nodes[0], wire.Session{})
		if v, err := r.ask(); !errors.Is(err, inplace.ErrElsewhere) {
			t.Errorf("over %s: got %v, %v, want %v", s.Name, v, err, inplace.ErrElsewhere)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := viewed(t, 8)
	r := openRaw(t, c, c.Nodes[0], wire.Session{})
	if v, err := inplace.Ask(ctx, r.conn.LocalAddr(), r.conn.RemoteAddr(), r.w.Session, 1); err == nil {
		v.Close()
		t.Error("memory was passed to who had no time for it")
	}
}
