package pool_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/manager"
	"polder/pool/pooltest"
	"polder/verbs"
)

const (
	attackChunk  = 4096
	attackChunks = 16
	attackBudget = 8
)

const patience = pooltest.Patience

// scene is a memory node with two honest clients, one of them bare enough to
// know its own keys, and an attacker.
type scene struct {
	t        *testing.T
	manager  pool.Manager
	cluster  *pooltest.Cluster
	node     *nodeFabric
	honest   *pooltest.Client
	chunk    *pool.Chunk // honest's
	victim   *borrower
	theirs   manager.Grant // victim's
	attacker *borrower
	mine     manager.Grant // attacker's
	extras   []*borrower
}

var (
	honestData = bytes.Repeat([]byte("honest."), 9)
	secret     = []byte("a neighbour's secret data")
	newSecret  = []byte("the next borrower's data!")
)

func newScene(t *testing.T, over pooltest.Setup, m pool.Manager) *scene {
	t.Helper()
	s := &scene{t: t, manager: m}
	setup := over
	setup.Manager = m
	setup.Fabric = func(t testing.TB) pooltest.Fabric {
		s.node = &nodeFabric{Fabric: over.Fabric(t)}
		return s.node
	}
	s.cluster = pooltest.NewCluster(t, setup, memnode.Config{
		Lend: attackChunks * attackChunk, ChunkSize: attackChunk,
		ClientBudget: attackBudget * attackChunk, Grace: time.Minute,
		TrustClients:  true,   // that it does not is another test's
		MaxViolations: 10_000, // so that one scene is enough for every attack
	})
	s.honest = s.cluster.Open(pool.Config{})
	s.chunk = s.honest.MustAlloc(t)
	if _, err := s.chunk.WriteAt(honestData, 0); err != nil {
		t.Fatal(err)
	}
	s.victim = s.join()
	s.theirs = s.victim.alloc()
	s.victim.write(s.theirs, secret)
	s.again()
	s.mine = s.attacker.alloc()
	return s
}

// join makes a client.
func (s *scene) join() *borrower {
	s.t.Helper()
	b := s.dial(s.cluster.Nodes[0].Addr)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := b.attach(ctx, wire.Session{}); err != nil {
		s.t.Fatal(err)
	}
	return b
}

// attach opens a session over b's connection.
func (b *borrower) attach(ctx context.Context, resume wire.Session) (err error) {
	b.session, err = b.s.manager.Attach(ctx, manager.Link{
		Device: b.dev, PD: b.pd, Conn: b.conn, Resume: resume, Access: b.newAccess,
		Buffer: b.mr, Through: func(p manager.Poster) { b.poster = p },
		Complete: func(wcs []verbs.WC) {
			for _, wc := range wcs {
				b.posted <- wc
			}
		},
	})
	return err
}

// newAccess makes another access queue pair.
func (b *borrower) newAccess() (verbs.QP, error) {
	qp, err := b.pd.CreateQP(verbs.QPInit{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 64, RecvDepth: 8})
	if err == nil {
		b.access = append(b.access, qp)
	}
	return qp, err
}

// again gives the attacker a new connection, where the last attack has cost it
// the old one.
func (s *scene) again() {
	s.t.Helper()
	if s.attacker != nil {
		s.attacker.close()
	}
	s.attacker = s.join()
}

// check fails unless nobody but the attacker has noticed anything.
func (s *scene) check(secretIs []byte) {
	s.t.Helper()
	for _, b := range s.extras {
		if err := b.free(b.held...); err != nil {
			s.t.Error(err)
		}
		b.close()
	}
	got := make([]byte, len(honestData))
	if _, err := s.chunk.ReadAt(got, 0); err != nil || !bytes.Equal(got, honestData) {
		s.t.Errorf("the honest client reads %q, %v", got, err)
	}
	if _, err := s.chunk.FetchAdd(s.t.Context(), 1024, 1); err != nil {
		s.t.Errorf("the honest client's atomic: %v", err)
	}
	if n := s.honest.Stats().Nodes[0].Reconnects; n != 0 {
		s.t.Errorf("the honest client lost its connection %d times", n)
	}
	if data, status := s.victim.read(s.theirs, len(secret)); status != verbs.StatusSuccess || !bytes.Equal(data, secretIs) {
		s.t.Errorf("the neighbour reads %q (%v), want %q", data, status, secretIs)
	}
	if len(s.cluster.Nodes[0].Memnode().Clients()) < 2 {
		s.t.Error("the node does not know its clients any more")
	}
	other := s.honest.MustAlloc(s.t)
	zeros := make([]byte, attackChunk)
	if _, err := other.ReadAt(zeros, 0); err != nil || !bytes.Equal(zeros, make([]byte, attackChunk)) {
		s.t.Errorf("the honest client's new chunk does not read as zero (%v)", err)
	}
	if err := other.Free(s.t.Context()); err != nil {
		s.t.Error(err)
	}
}

// handOver has the chunk, which the attacker has freed, lent to somebody else.
func (s *scene) handOver(chunk uint32) (*borrower, manager.Grant) {
	s.t.Helper()
	for range attackChunks {
		b := s.join()
		s.extras = append(s.extras, b)
		for {
			g, err := b.tryAlloc()
			if errors.Is(err, manager.ErrNoMemory) {
				break
			}
			if err != nil {
				s.t.Fatal(err)
			}
			if g.Chunk == chunk {
				b.write(g, newSecret)
				return b, g
			}
		}
	}
	s.t.Fatalf("chunk %d was not lent again", chunk)
	return nil, manager.Grant{}
}

// borrower is a client that speaks verbs to the node.
type borrower struct {
	s       *scene
	dev     verbs.Device
	conn    *spiedConn
	pd      verbs.PD
	mr      verbs.MR
	cq      verbs.CQ
	access  []verbs.QP      // by path
	session manager.Session // nil before Attach
	held    []uint32        // chunks allocated so far
	poster  manager.Poster  // nil, or what accesses go through
	posted  chan verbs.WC
}

// dial connects a device without a queue pair.
func (s *scene) dial(addr string) *borrower {
	s.t.Helper()
	must := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	b := &borrower{s: s, posted: make(chan verbs.WC, 16)}
	var err error
	b.dev, err = s.node.Fabric.NewDevice()
	must(err)
	s.t.Cleanup(b.close)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	conn, err := s.node.Fabric.Dial(ctx, b.dev, addr)
	must(err)
	b.conn = &spiedConn{Conn: conn}
	b.pd, err = b.dev.AllocPD()
	must(err)
	b.mr, err = b.pd.RegMR(make([]byte, 1<<16), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	must(err)
	b.cq, err = b.dev.CreateCQ(verbs.CQInit{Depth: 1024})
	must(err)
	return b
}

// close gives everything back and disconnects.
func (b *borrower) close() {
	if b.session != nil {
		b.session.Close()
		b.session = nil
	}
	if b.poster != nil {
		b.poster.Close()
	}
	b.dev.Close()
}

func (b *borrower) tryAlloc() (manager.Grant, error) {
	ctx, cancel := context.WithTimeout(b.s.t.Context(), patience)
	defer cancel()
	var g [1]manager.Grant
	_, err := b.session.Alloc(ctx, g[:])
	if err == nil {
		b.held = append(b.held, g[0].Chunk)
	}
	return g[0], err
}

func (b *borrower) alloc() manager.Grant {
	b.s.t.Helper()
	g, err := b.tryAlloc()
	if err != nil {
		b.s.t.Fatal(err)
	}
	return g
}

// free gives chunks back, and says how the node takes it.
func (b *borrower) free(chunks ...uint32) error {
	ctx, cancel := context.WithTimeout(b.s.t.Context(), patience)
	defer cancel()
	return b.session.Free(ctx, chunks)
}

// one runs one operation of n bytes on the first access queue pair, from or to the
// borrower's memory at offset 4096.
func (b *borrower) one(wr verbs.SendWR, n int) verbs.Status {
	b.s.t.Helper()
	wr.Flags |= verbs.SendSignaled
	wr.SGL = []verbs.SGE{{Addr: b.mr.Addr() + 4096, Length: uint32(n), LKey: b.mr.LKey()}}
	if b.poster != nil {
		if err := b.poster.PostSend(wr); err != nil {
			b.s.t.Fatal(err)
		}
		select {
		case wc := <-b.posted:
			return wc.Status
		case <-time.After(patience):
			b.s.t.Fatal("an access takes too long")
		}
	}
	if err := b.access[0].PostSend(wr); err != nil {
		b.s.t.Fatal(err)
	}
	return b.completion().Status
}

func (b *borrower) completion() verbs.WC {
	b.s.t.Helper()
	ctx, cancel := context.WithTimeout(b.s.t.Context(), patience)
	defer cancel()
	var wc [1]verbs.WC
	for b.cq.Poll(wc[:]) == 0 {
		if err := b.cq.Wait(ctx); err != nil {
			b.s.t.Fatal(err)
		}
	}
	return wc[0]
}

func (b *borrower) read(g manager.Grant, n int) ([]byte, verbs.Status) {
	b.s.t.Helper()
	buf := b.mr.Bytes()[4096 : 4096+n]
	clear(buf)
	status := b.one(verbs.SendWR{Op: verbs.OpRead, RemoteAddr: g.Addr, RKey: g.Keys[0]}, n)
	return bytes.Clone(buf), status
}

func (b *borrower) write(g manager.Grant, p []byte) {
	b.s.t.Helper()
	copy(b.mr.Bytes()[4096:], p)
	if status := b.one(verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: g.Addr, RKey: g.Keys[0]}, len(p)); status != verbs.StatusSuccess {
		b.s.t.Fatalf("writing one's own chunk: %v", status)
	}
}

// poke has the node carry out wr, with 8 bytes, on a queue pair of the
// borrower's, and says how it took it. If it did not, the queue pair is broken.
func (b *borrower) poke(qp verbs.QP, wr verbs.SendWR) verbs.Status {
	b.s.t.Helper()
	wr.ID, wr.Flags = pokeID, verbs.SendSignaled
	wr.SGL = []verbs.SGE{{Addr: b.mr.Addr() + 8192, Length: 8, LKey: b.mr.LKey()}}
	if err := qp.PostSend(wr); err != nil {
		b.s.t.Fatal(err)
	}
	for {
		if wc := b.completion(); wc.ID == pokeID {
			return wc.Status
		}
	}
}

const pokeID = 4242

// raw connects queue pairs as a client's half of the manager does, but makes
// them itself. It returns the node's answers, too.
func (s *scene) raw() (*borrower, []verbs.QP, [][]byte) {
	s.t.Helper()
	return s.rawAt(s.cluster.Nodes[0].Addr)
}

func (s *scene) rawAt(addr string) (*borrower, []verbs.QP, [][]byte) {
	s.t.Helper()
	b := s.dial(addr)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	var qps []verbs.QP
	var answers [][]byte
	for _, hello := range s.attacker.conn.hellos {
		qp, err := b.pd.CreateQP(verbs.QPInit{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 64, RecvDepth: 8})
		if err != nil {
			s.t.Fatal(err)
		}
		answer, err := b.conn.Connect(ctx, qp, hello)
		if err != nil {
			s.t.Fatal(err)
		}
		qps, answers = append(qps, qp), append(answers, answer)
	}
	return b, qps, answers
}

// nodeFabric remembers every registration and window that the node makes, as
// an attacker would that knows everything about it.
type nodeFabric struct {
	pooltest.Fabric
	once sync.Once
	dev  *spiedDevice
}

func (f *nodeFabric) NewDevice() (verbs.Device, error) {
	dev, err := f.Fabric.NewDevice()
	if err != nil {
		return nil, err
	}
	first := false
	f.once.Do(func() { first = true })
	if !first { // only the first one is the node's
		return dev, nil
	}
	f.dev = &spiedDevice{Device: dev}
	if a, ok := dev.(verbs.AllocDevice); ok {
		return &spiedAllocDevice{f.dev, a}, nil
	}
	return f.dev, nil
}

func (f *nodeFabric) Listen(dev verbs.Device, addr string) (verbs.Listener, error) {
	return f.Fabric.Listen(f.dev.Device, addr)
}

type spiedDevice struct {
	verbs.Device
	mu      sync.Mutex
	regions []verbs.MR
	windows []verbs.MW
}

type spiedAllocDevice struct {
	*spiedDevice
	alloc verbs.AllocDevice
}

func (d *spiedAllocDevice) CreateAllocator(init verbs.AllocatorInit) (verbs.Allocator, error) {
	return d.alloc.CreateAllocator(init)
}

func (d *spiedDevice) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return &spiedPD{pd, d}, nil
}

type spiedPD struct {
	verbs.PD
	dev *spiedDevice
}

func (p *spiedPD) RegMR(buf []byte, access verbs.Access) (verbs.MR, error) {
	mr, err := p.PD.RegMR(buf, access)
	if err == nil {
		p.dev.mu.Lock()
		p.dev.regions = append(p.dev.regions, mr)
		p.dev.mu.Unlock()
	}
	return mr, err
}

func (p *spiedPD) AllocMW(t verbs.MWType) (verbs.MW, error) {
	mw, err := p.PD.AllocMW(t)
	if err == nil {
		p.dev.mu.Lock()
		p.dev.windows = append(p.dev.windows, mw)
		p.dev.mu.Unlock()
	}
	return mw, err
}

// spiedConn remembers how the client's half of a manager connects its queue
// pairs.
type spiedConn struct {
	verbs.Conn
	hellos [][]byte
}

func (c *spiedConn) Connect(ctx context.Context, qp verbs.QP, private []byte) ([]byte, error) {
	c.hellos = append(c.hellos, bytes.Clone(private))
	return c.Conn.Connect(ctx, qp, private)
}

// tap forwards one TCP connection to a node and keeps what the client says.
type tap struct {
	l    net.Listener
	done chan struct{}
	said bytes.Buffer // once done is closed
}

func newTap(t *testing.T, to string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{l: l, done: make(chan struct{})}
	t.Cleanup(func() { l.Close(); <-p.done })
	go func() {
		defer close(p.done)
		client, err := l.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		node, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		back := make(chan struct{})
		go func() {
			defer close(back)
			io.Copy(client, node)
		}()
		io.Copy(io.MultiWriter(node, &p.said), client)
		node.Close()
		<-back
	}()
	return p
}

// utter says b to the node over a connection of its own and waits until the node
// has hung up.
func utter(t *testing.T, addr string, b []byte) {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	if _, err := nc.Write(b); err == nil {
		nc.(*net.TCPConn).CloseWrite()
	}
	if _, err := io.Copy(io.Discard, nc); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the node does not hang up")
	}
}

// The framing of verbs/tcp: after a hello, a checksum that starts from the
// frame's number, a type and a length.
const (
	tcpHello       = 32
	tcpFrameHeader = 8
)

// frames cuts what a client said into frames, without the checksums.
func frames(said []byte) (hello []byte, list [][]byte) {
	hello, rest := said[:tcpHello], said[tcpHello:]
	for len(rest) >= tcpFrameHeader {
		n := tcpFrameHeader + int(binary.LittleEndian.Uint32(rest[4:])&(1<<24-1))
		if n > len(rest) {
			break
		}
		list = append(list, rest[4:n])
		rest = rest[n:]
	}
	return hello, list
}

// stream puts frames together again, with checksums that are right.
func stream(hello []byte, list [][]byte) []byte {
	b := bytes.Clone(hello)
	for i, f := range list {
		b = binary.LittleEndian.AppendUint32(b, crc32.Update(uint32(i), crc32.MakeTable(crc32.Castagnoli), f))
		b = append(b, f...)
	}
	return b
}

// manage connects a management queue pair by hand, sends messages, each when
// the one before has been answered, and returns the answers. They end early if
// the node hangs up.
func (s *scene) manage(messages ...[]byte) []wire.Reply {
	s.t.Helper()
	b := s.dial(s.cluster.Nodes[0].Addr)
	defer b.close()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	hello := wire.Hello{Kind: wire.KindManagement, Manager: s.manager.Name()}
	qp, err := b.newAccess()
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := b.conn.Connect(ctx, qp, hello.Append(nil)); err != nil {
		s.t.Fatal(err)
	}
	var replies []wire.Reply
	for _, m := range messages {
		recv := verbs.SGE{Addr: b.mr.Addr() + 1<<15, Length: 2048, LKey: b.mr.LKey()}
		n := copy(b.mr.Bytes(), m)
		err := qp.PostRecv(verbs.RecvWR{ID: 7, SGL: []verbs.SGE{recv}})
		if err == nil {
			err = qp.PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{Addr: b.mr.Addr(), Length: uint32(n), LKey: b.mr.LKey()}}})
		}
		if err != nil {
			return replies
		}
		wc := b.completion()
		if wc.Err() != nil {
			return replies
		}
		var r wire.Reply
		if err := r.Decode(bytes.Clone(b.mr.Bytes()[1<<15 : 1<<15+wc.ByteLen])); err != nil {
			s.t.Fatal(err)
		}
		replies = append(replies, r)
	}
	return replies
}
