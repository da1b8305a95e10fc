package nbd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"polder/far"
	"polder/far/disk"
	"polder/internal/listen"
	"polder/internal/testcert"
	"polder/pages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves a volume over far memory of 64 MiB, of which 4 MiB are local, and returns
// the address.
func serve(t *testing.T, store far.Store, size int64, cfg Config) (addr string, s *Server) {
	t.Helper()
	h, err := far.NewHeap(store, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	return serveHeap(t, h, size, cfg)
}

// serveHeap is serve with a heap, which it closes in the end.
func serveHeap(t *testing.T, h *far.Heap, size int64, cfg Config) (addr string, s *Server) {
	t.Helper()
	t.Cleanup(func() { _ = h.Close() }) // a store that fails says so
	var err error
	if cfg.Volume, err = pages.New(h, "disk", size); err != nil {
		t.Fatal(err)
	}
	cfg.Name, cfg.Logger = "disk", slog.New(slog.DiscardHandler)
	if s, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return lis.Addr().String(), s
}

func store() far.Store { return far.NewMemStore(256<<10, 256) }

// connect is dial that cannot fail.
func connect(t *testing.T, addr string, structured bool) *client {
	t.Helper()
	c, err := dial(t, addr, structured, nil, "disk")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestServingAfterCloseIsAnEnd, and no error: who serves in a goroutine cannot know whether
// Close comes before. The listener is closed.
func TestServingAfterCloseIsAnEnd(t *testing.T) {
	_, s := serve(t, store(), 1<<20, Config{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Serve(lis)); err != nil {
		t.Error(err)
	}
	if err := lis.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is open: closing it gives %v", err)
	}
}

// TestADeviceIsMemory: reads, writes, trims and zeroes of any length at any offset over two
// connections, with and without structured replies, do what they do to a slice of bytes.
func TestADeviceIsMemory(t *testing.T) {
	const size, rounds = 12 << 20, 200
	addr, _ := serve(t, store(), size, Config{})
	clients := []*client{connect(t, addr, true), connect(t, addr, false)}
	want := make([]byte, size)
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for range rounds {
		c := clients[random.IntN(2)]
		off := random.IntN(size)
		if random.IntN(2) == 0 {
			off = off / pages.Size * pages.Size
		}
		n := min(1+random.IntN([]int{8 << 10, 64 << 10, 1 << 20}[random.IntN(3)]), size-off)
		part := want[off : off+n]
		var e errno
		switch random.IntN(6) {
		case 0:
			clear(part)
			_, _, e = c.do(t, cmdTrim, 0, int64(off), n, nil)
		case 1:
			clear(part)
			_, _, e = c.do(t, cmdWriteZeroes, flagNoHole|flagFastZero|flagFUA, int64(off), n, nil)
		case 2, 3:
			for i := range part {
				part[i] = byte(random.Uint32())
			}
			_, _, e = c.do(t, cmdWrite, flagFUA, int64(off), n, part)
		case 4:
			_, _, e = c.do(t, cmdCache, 0, int64(off), n, nil)
		default:
			var got []byte
			if got, _, e = c.do(t, cmdRead, 0, int64(off), n, nil); !bytes.Equal(got, part) {
				t.Fatalf("%d bytes at %d are not what was written", n, off)
			}
		}
		if e != ok {
			t.Fatalf("error %d", e)
		}
	}
	for _, c := range clients {
		if got, _, e := c.do(t, cmdRead, 0, 0, size, nil); e != ok || !bytes.Equal(got, want) {
			t.Errorf("all of it is not what was written: error %d", e)
		}
		if _, _, e := c.do(t, cmdFlush, 0, 0, 0, nil); e != ok {
			t.Errorf("flushing: error %d", e)
		}
	}
	at := 0
	for at < size {
		_, extents, e := clients[0].do(t, cmdBlockStatus, 0, int64(at), size-at, nil)
		if e != ok || len(extents) == 0 {
			t.Fatalf("the status at %d: error %d", at, e)
		}
		for ; len(extents) > 0; extents = extents[2:] {
			if part := want[at : at+int(extents[0])]; extents[1] == stateHole|stateZero && !bytes.Equal(part, make([]byte, len(part))) {
				t.Fatalf("%d bytes at %d are a hole, and not zeros", len(part), at)
			}
			at += int(extents[0])
		}
	}
}

// TestManyRequestsAtATime sends more requests than are executed at a time before it takes a
// reply, most of them of what is far, and two clients at it together.
func TestManyRequestsAtATime(t *testing.T) {
	const size, requests, length = 16 << 20, 100, 64 << 10
	addr, _ := serve(t, store(), size, Config{})
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i>>12) | 1
	}
	first := connect(t, addr, true)
	if _, _, e := first.do(t, cmdWrite, 0, 0, size, data); e != ok {
		t.Fatalf("error %d", e)
	}
	var wg sync.WaitGroup
	for i := range 2 {
		c := connect(t, addr, false)
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			at := make(map[uint64]int64)
			begin := c.cookie
			var mu sync.Mutex
			go func() {
				for range requests {
					mu.Lock()
					off := int64(random.IntN(size - length))
					at[c.cookie+1] = off
					mu.Unlock()
					c.ask(cmdRead, 0, off, length, nil)
				}
			}()
			for range requests {
				b, err := c.take(16 + length)
				if err != nil {
					t.Error(err)
					return
				}
				cookie := uint64(b[15]) | uint64(b[14])<<8
				mu.Lock()
				off, known := at[cookie]
				delete(at, cookie)
				mu.Unlock()
				if !known || cookie <= begin || !bytes.Equal(b[16:], data[off:off+length]) {
					t.Errorf("the reply to request %d of %d bytes at %d is wrong", cookie, length, off)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestWrongRequestsAreRefused(t *testing.T) {
	const size = 1 << 20
	addr, _ := serve(t, store(), size, Config{})
	protected, _ := serve(t, store(), size, Config{ReadOnly: true})
	for _, structured := range []bool{true, false} {
		c, r := connect(t, addr, structured), connect(t, protected, structured)
		if r.flags&readOnly == 0 || c.flags&readOnly != 0 {
			t.Errorf("the flags of a device are %#x, and of one that is read only %#x", c.flags, r.flags)
		}
		for _, q := range []struct {
			c           *client
			kind, flags uint16
			off         int64
			n           int
			want        errno
		}{
			{c, cmdRead, 0, size, 1, einval},
			{c, cmdRead, 0, -1, 1, einval},
			{c, cmdRead, 0, 0, size + 1, einval},
			{c, cmdRead, 0, 0, maxRequest + 1, einval},
			{c, cmdRead, 0, 0, 0, einval},
			{c, cmdRead, 1 << 9, 0, 1, einval},
			{c, cmdRead, flagDF, 0, 2 * piece, eoverflow},
			{c, cmdWrite, 0, size, 1, enospc},
			{c, cmdWrite, 0, size - 1, 2, enospc},
			{c, cmdTrim, 0, 0, size + 1, enospc},
			{c, cmdWriteZeroes, 0, size, 1, enospc},
			{c, cmdWriteZeroes, flagReqOne, 0, 1, einval},
			{c, 99, 0, 0, 1, einval},
			{r, cmdWrite, 0, 0, 1, eperm},
			{r, cmdTrim, 0, 0, 1, eperm},
			{r, cmdWriteZeroes, 0, 0, 1, eperm},
			{c, cmdRead, flagFUA, 0, 1, ok},
			{c, cmdFlush, 0, 0, 0, ok},
			{r, cmdFlush, 0, 0, 0, ok},
			{r, cmdRead, 0, 0, 1, ok},
		} {
			var data []byte
			if q.kind == cmdWrite {
				data = make([]byte, q.n)
			}
			if _, _, e := q.c.do(t, q.kind, q.flags, q.off, q.n, data); e != q.want {
				t.Errorf("command %d with flags %#x of %d bytes at %d: error %d, want %d", q.kind, q.flags, q.n, q.off, e, q.want)
			}
		}
		if _, _, e := c.do(t, cmdBlockStatus, flagReqOne, 0, size, nil); (e == ok) != structured {
			t.Errorf("the status of a client that has not asked for it: error %d", e)
		}
		c.ask(cmdWrite, 0, 0, maxRequest+1, nil)
		if _, err := c.take(1); err != io.EOF {
			t.Errorf("who writes more than he may at once is not disconnected: %v", err)
		}
	}
}

func TestExportsAreChosenByName(t *testing.T) {
	addr, _ := serve(t, store(), 1<<20, Config{})
	for _, name := range []string{"", "disk"} {
		if c, err := dial(t, addr, true, nil, name); err != nil || c.size != 1<<20 {
			t.Errorf("choosing %q: %v", name, err)
		}
	}
	if _, err := dial(t, addr, true, nil, "other"); err == nil {
		t.Error("there is an export of another name")
	}
}

// TestWithACertificateEverybodyUsesTLS: a client without TLS, or without a certificate of the
// right authority, learns nothing.
func TestWithACertificateEverybodyUsesTLS(t *testing.T) {
	ours, others := testcert.NewAuthority(t, "ours"), testcert.NewAuthority(t, "another's")
	var files listen.Files
	files.CA[listen.Client] = ours.File
	files.Cert, files.Key = ours.Issue(t, "server")
	certs, err := listen.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	as := func(a *testcert.Authority) *tls.Config {
		c := a.Client(t, "client", ours)
		c.ServerName = "127.0.0.1"
		return c
	}
	addr, _ := serve(t, store(), 1<<20, Config{TLS: certs.Server(listen.Client)})
	c, err := dial(t, addr, true, as(ours), "disk")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, e := c.do(t, cmdWrite, 0, 0, 100, make([]byte, 100)); e != ok {
		t.Errorf("error %d", e)
	}
	if _, err := dial(t, addr, true, nil, "disk"); err == nil {
		t.Error("a client without TLS was let in")
	}
	if _, err := dial(t, addr, true, as(others), "disk"); err == nil {
		t.Error("a client with a stranger's certificate was let in")
	}
	plain, _ := serve(t, store(), 1<<20, Config{})
	if _, err := dial(t, plain, true, as(ours), "disk"); err == nil {
		t.Error("there is TLS without a certificate")
	}
}

// TestTooManyConnectionsAreRefused, and the ones that there are go on.
func TestTooManyConnectionsAreRefused(t *testing.T) {
	addr, _ := serve(t, store(), 1<<20, Config{MaxConns: 2})
	first := connect(t, addr, true)
	second := connect(t, addr, true)
	for _, c := range []*client{first, second} { // so that both are counted
		if _, _, e := c.do(t, cmdFlush, 0, 0, 0, nil); e != ok {
			t.Errorf("error %d", e)
		}
	}
	if c, err := dial(t, addr, true, nil, ""); err == nil {
		c.ask(cmdFlush, 0, 0, 0, nil)
		if _, err := c.take(1); err == nil {
			t.Error("a third client is served")
		}
	}
	for _, c := range []*client{first, second} {
		if _, _, e := c.do(t, cmdFlush, 0, 0, 0, nil); e != ok {
			t.Errorf("error %d", e)
		}
	}
	second.ask(cmdDisconnect, 0, 0, 0, nil)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c, err := dial(t, addr, true, nil, "")
		if err == nil {
			if c.ask(cmdFlush, 0, 0, 0, nil); c.cookie == 1 {
				if _, err = c.take(20); err == nil {
					return
				}
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no client is let in after one has gone: %v", err)
		}
	}
}

// troubled is a store that answers no read while it is held, and can lose everything.
type troubled struct {
	far.Store
	mu   sync.Mutex
	open chan struct{}  // nil while it answers; guarded by mu
	lent []*lostSegment // guarded by mu
}

type lostSegment struct {
	far.Segment
	lost chan struct{}
}

func (s *lostSegment) Lost() <-chan struct{} { return s.lost }

func (h *troubled) Alloc(ctx context.Context) (far.Segment, error) {
	seg, err := h.Store.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &lostSegment{seg, make(chan struct{})}
	h.lent = append(h.lent, s)
	return s, nil
}

func (h *troubled) hold(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if on {
		h.open = make(chan struct{})
	} else if h.open != nil {
		close(h.open)
		h.open = nil
	}
}

// lose has all that is far be lost.
func (h *troubled) lose() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.lent {
		close(s.lost)
	}
	h.lent = nil
}

func (h *troubled) Read(ctx context.Context, ops []far.ReadOp) {
	h.mu.Lock()
	open := h.open
	h.mu.Unlock()
	if open != nil {
		select {
		case <-open:
		case <-ctx.Done():
		}
	}
	for i := range ops {
		s := ops[i].Seg.(*lostSegment)
		select {
		case <-s.lost:
			ops[i].Err = errors.New("it is lost")
			continue
		default:
		}
		if ops[i].Err = ctx.Err(); ops[i].Err == nil {
			one := []far.ReadOp{{Seg: s.Segment, Off: ops[i].Off, Buf: ops[i].Buf}}
			h.Store.Read(ctx, one)
			ops[i].Err = one[0].Err
		}
	}
}

// TestWhatDoesNotComeInTimeIsAnError: requests that need far memory that does not answer fail
// with EIO, others are answered meanwhile, and all is well when it answers again.
func TestWhatDoesNotComeInTimeIsAnError(t *testing.T) {
	const size = 12 << 20
	slow := &troubled{Store: store()}
	addr, _ := serve(t, slow, size, Config{Timeout: 500 * time.Millisecond})
	c := connect(t, addr, true)
	data := bytes.Repeat([]byte{7}, size)
	if _, _, e := c.do(t, cmdWrite, 0, 0, size, data); e != ok {
		t.Fatalf("error %d", e)
	}
	slow.hold(true)
	c.ask(cmdRead, 0, 0, 1<<20, nil)
	late := c.cookie
	c.ask(cmdFlush, 0, 0, 0, nil)
	if _, _, e, err := c.reply(c.cookie, cmdFlush, 0, 0); err != nil || e != ok {
		t.Errorf("flushing while another request waits: error %d, %v", e, err)
	}
	if _, _, e, err := c.reply(late, cmdRead, 0, 0); err != nil || e != eio {
		t.Errorf("reading what does not come: error %d, %v", e, err)
	}
	slow.hold(false)
	if got, _, e := c.do(t, cmdRead, 0, 0, size, nil); e != ok || !bytes.Equal(got, data) {
		t.Errorf("reading when it comes again: error %d", e)
	}
}

// TestBuffersAheadAreThereFromTheStart of a connection, and else when they are needed.
func TestBuffersAheadAreThereFromTheStart(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		_, s := serve(t, store(), 1<<20, Config{Ahead: ahead})
		c := newConn(s, nil, session{})
		for range atATime {
			if b := <-c.free; (cap(b.data) == piece) != ahead {
				t.Fatalf("with Ahead = %v a buffer of a new connection has %d bytes", ahead, cap(b.data))
			}
		}
	}
}

// TestCloseAnswersWhatHasCome, and waits for nobody who is silent.
func TestCloseAnswersWhatHasCome(t *testing.T) {
	const size = 12 << 20
	slow := &troubled{Store: store()}
	addr, s := serve(t, slow, size, Config{})
	c, silent := connect(t, addr, true), connect(t, addr, true)
	if _, _, e := c.do(t, cmdWrite, 0, 0, size, bytes.Repeat([]byte{7}, size)); e != ok {
		t.Fatalf("error %d", e)
	}
	silent.ask(cmdWrite, 0, 0, 1<<20, nil) // and nothing of it
	slow.hold(true)
	c.ask(cmdRead, 0, 0, 4096, nil)
	for len(s.waitingFor()) < 2 {
		time.Sleep(time.Millisecond)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	slow.hold(false)
	if got, _, e, err := c.reply(c.cookie, cmdRead, 0, 4096); err != nil || e != ok || got[0] != 7 {
		t.Errorf("a request that had come: error %d, %v", e, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := silent.take(1); err == nil {
		t.Error("the silent client is still connected")
	}
}

// waitingFor are the connections of which a request is under way.
func (s *Server) waitingFor() (busy []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if len(c.free) < atATime {
			busy = append(busy, c)
		}
	}
	return busy
}

// TestAClientThatTakesNothingIsLetGo: who does not take his replies, or does not send what he
// has announced, is disconnected; in virtual time, over pipes.
func TestAClientThatTakesNothingIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []func(c *client){
			func(c *client) { c.ask(cmdRead, 0, 0, 1<<20, nil) },
			func(c *client) { c.ask(cmdWrite, 0, 0, 1<<20, make([]byte, 5)) },
		} {
			h, err := far.NewHeap(store(), far.Config{Local: far.MinLocal})
			if err != nil {
				t.Fatal(err)
			}
			v, err := pages.New(h, "disk", 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if err := v.Write(t.Context(), bytes.Repeat([]byte{7}, 1<<20), 0); err != nil {
				t.Fatal(err)
			}
			s, err := New(Config{Volume: v, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			near, theirs := net.Pipe()
			done := make(chan error, 1)
			go func() { done <- newConn(s, theirs, session{structured: true}).serve() }()
			what(&client{Conn: near})
			began := time.Now()
			if err := <-done; err == nil {
				t.Error("it went without an error")
			}
			if took := time.Since(began); took != s.cfg.Stall {
				t.Errorf("it was let go after %v, want %v", took, s.cfg.Stall)
			}
			near.Close()
			if err := errors.Join(s.Close(), h.Close()); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestAFullStoreIsSaidToBeFull with ENOSPC, and trimming makes room.
func TestAFullStoreIsSaidToBeFull(t *testing.T) {
	addr, _ := serve(t, far.NewMemStore(256<<10, 20), 64<<20, Config{Timeout: time.Minute})
	c := connect(t, addr, true)
	data := bytes.Repeat([]byte{7}, 1<<20)
	off := int64(0)
	e := ok
	for ; e == ok; off += 1 << 20 {
		_, _, e = c.do(t, cmdWrite, 0, off, 1<<20, data)
	}
	if e != enospc {
		t.Fatalf("error %d, want ENOSPC", e)
	}
	if _, _, e := c.do(t, cmdTrim, 0, 0, int(off), nil); e != ok {
		t.Fatalf("trimming: error %d", e)
	}
	if _, _, e := c.do(t, cmdWrite, 0, 0, 1<<20, data); e != ok {
		t.Errorf("writing after that: error %d", e)
	}
}

// TestALostPageIsAnErrorUntilItIsWritten: what was lost with its node is EIO, not zeros.
func TestALostPageIsAnErrorUntilItIsWritten(t *testing.T) {
	const size = 12 << 20
	mem := &troubled{Store: store()}
	addr, _ := serve(t, mem, size, Config{})
	c := connect(t, addr, true)
	data := bytes.Repeat([]byte{7}, size)
	if _, _, e := c.do(t, cmdWrite, 0, 0, size, data); e != ok {
		t.Fatalf("error %d", e)
	}
	mem.lose()
	var lost []int64
	for off := int64(0); off < size; off += pages.Size {
		switch got, _, e := c.do(t, cmdRead, 0, off, pages.Size, nil); {
		case e == eio:
			lost = append(lost, off)
		case e != ok || !bytes.Equal(got, data[:pages.Size]):
			t.Fatalf("the page at %d is wrong: error %d", off, e)
		}
	}
	if len(lost) < size/pages.Size/2 {
		t.Fatalf("%d pages are lost, want most of them", len(lost))
	}
	for i, off := range slices.Backward(lost) {
		kind, n := uint16(cmdWrite), pages.Size
		if i%2 == 0 {
			kind = cmdTrim
		}
		if _, _, e := c.do(t, kind, 0, off, n, data[:n*int(kind&1)]); e != ok {
			t.Fatalf("writing or trimming a lost page: error %d", e)
		}
		if got, _, e := c.do(t, cmdRead, 0, off, n, nil); e != ok || got[0] != byte(7*(kind&1)) {
			t.Fatalf("the page at %d, written or trimmed, is wrong: error %d", off, e)
		}
	}
}

// TestALongReplyThatFailsHalfwayEndsTheConnection of a client that has not asked for
// structured replies, since nothing but data can follow; with structure an error is said.
func TestALongReplyThatFailsHalfwayEndsTheConnection(t *testing.T) {
	const size = 12 << 20
	mem := &troubled{Store: store()}
	addr, _ := serve(t, mem, size, Config{})
	plain, structured := connect(t, addr, false), connect(t, addr, true)
	data := bytes.Repeat([]byte{7}, size)
	if _, _, e := plain.do(t, cmdWrite, 0, 0, size, data); e != ok {
		t.Fatalf("error %d", e)
	}
	mem.lose()
	if _, _, e := plain.do(t, cmdWrite, 0, 0, piece, data[:piece]); e != ok {
		t.Fatalf("error %d", e)
	}
	if _, _, e := structured.do(t, cmdRead, 0, 0, size/2, nil); e != eio {
		t.Errorf("reading what is lost from its second piece on: error %d, want EIO", e)
	}
	plain.ask(cmdRead, 0, 0, size/2, nil)
	b, err := io.ReadAll(plain)
	if len(b) < 16+piece || len(b) >= 16+size/2 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes came before the connection ended: %v", len(b), err)
	}
}

// TestWhatIsFlushedSurvivesACrash: on a heap that is kept, what was written before a FLUSH, or with FUA, is there when the
// disk is opened as it is then. Without, it need not be.
func TestWhatIsFlushedSurvivesACrash(t *testing.T) {
	dir := t.TempDir()
	openDir := func(dir string) *far.Heap {
		store, err := disk.Open(disk.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		h, err := far.Open(t.Context(), store, far.Config{Local: far.MinLocal})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	const size = 8 << 20
	addr, _ := serveHeap(t, openDir(dir), size, Config{})
	c := connect(t, addr, true)
	want := make([]byte, size)
	survives := func(what string) {
		t.Helper()
		image := t.TempDir()
		if err := os.CopyFS(image, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		h := openDir(image)
		defer h.Close()
		v, err := pages.New(h, "disk", size)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, size)
		if err := v.Read(t.Context(), got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("after %s and a crash there are other bytes (%v)", what, err)
		}
	}
	do := func(kind, flags uint16, off int64, n int, data []byte) {
		t.Helper()
		if _, _, e := c.do(t, kind, flags, off, n, data); e != ok {
			t.Fatalf("request %d: error %d", kind, e)
		}
		if kind == cmdWrite {
			copy(want[off:], data)
		} else {
			clear(want[off : off+int64(n)])
		}
	}
	fill := func(n int, b byte) []byte { return bytes.Repeat([]byte{b}, n) }
	do(cmdWrite, 0, 5000, 3<<20, fill(3<<20, 1))
	do(cmdFlush, 0, 0, 0, nil)
	survives("FLUSH")
	do(cmdWrite, flagFUA, 100_000, 300_000, fill(300_000, 2))
	survives("WRITE with FUA")
	do(cmdTrim, flagFUA, 1<<20, 1<<20, nil)
	survives("TRIM with FUA")
	var wg sync.WaitGroup
	for i := range 8 { // they share checkpoints
		wg.Go(func() {
			c := connect(t, addr, false)
			b := fill(4096, byte(10+i))
			for _, kind := range []uint16{cmdWrite, cmdFlush} {
				n := len(b)
				if kind == cmdFlush {
					b, n = nil, 0
				}
				if _, _, e := c.do(t, kind, 0, int64(i)<<16, n, b); e != ok {
					t.Errorf("request %d: error %d", kind, e)
				}
			}
			c.Close()
		})
		copy(want[i<<16:], fill(4096, byte(10+i)))
	}
	wg.Wait()
	survives("FLUSH by several")
}

// TestWhatComesNextIsReadAhead: of a device that is read in a row, 4 KiB at a time over two connections in turn, pages are
// local before they are read; of one that is read at random none is.
func TestWhatComesNextIsReadAhead(t *testing.T) {
	const count = 4096 // 16 MiB, of which 4 are local
	addr, s := serve(t, store(), count*pages.Size, Config{})
	v := s.cfg.Volume
	for page := range int64(count) {
		if err := v.Write(t.Context(), bytes.Repeat([]byte{byte(page), 1}, pages.Size/2), page*pages.Size); err != nil {
			t.Fatal(err)
		}
	}
	clients := []*client{connect(t, addr, true), connect(t, addr, false)}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		page := random.Int64N(count)
		if b, _, e := clients[i%2].do(t, cmdRead, 0, page*pages.Size, pages.Size, nil); e != ok || len(b) != pages.Size || b[0] != byte(page) {
			t.Fatalf("page %d begins with %x, error %d", page, b[:min(len(b), 1)], e)
		}
	}
	if n := s.stats.ahead.Load(); n > 64 {
		t.Errorf("%d pages were read ahead of 100 at random", n)
	}
	before := s.stats.ahead.Load()
	for page := range int64(256) {
		if b, _, e := clients[page%2].do(t, cmdRead, 0, page*pages.Size, pages.Size, nil); e != ok || len(b) != pages.Size || b[0] != byte(page) {
			t.Fatalf("page %d begins with %x, error %d", page, b[:min(len(b), 1)], e)
		}
	}
	for end := time.Now().Add(30 * time.Second); s.stats.ahead.Load() < before+200; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d pages were read ahead of 256 in a row", s.stats.ahead.Load()-before)
		}
	}
}
