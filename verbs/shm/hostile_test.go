package shm

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/verbs"
	"polder/verbs/internal/cm"
	"polder/verbs/softnic"
)

// rawPeer is a client made by hand: it can say anything.
type rawPeer struct {
	t    testing.TB
	sock *fdpass.Conn
	*region
	tail uint64
}

// rawDial connects to l and says nothing.
func rawDial(t testing.TB, l verbs.Listener) *rawPeer {
	t.Helper()
	sock, err := fdpass.Dial(path(l.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sock.Close() })
	if err := sock.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &rawPeer{t: t, sock: sock}
}

// greet shakes hands.
func (p *rawPeer) greet() *rawPeer {
	p.t.Helper()
	var err error
	if p.region, err = greetServer(p.sock); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { p.mem.Close() })
	return p
}

// write puts b into the ring and tells the listening end.
func (p *rawPeer) write(b []byte) {
	p.out.put(p.tail, b)
	p.tail += uint64(len(b))
	p.publish(p.tail)
}

func (p *rawPeer) publish(tail uint64) {
	p.out.tail.Store(tail)
	p.far.ring()
}

// record is a well-formed record.
func record(t recordType, body []byte) []byte {
	b := make([]byte, padded(len(body)))
	putHeader((*[recordHeader]byte)(b), t, len(body))
	copy(b[recordHeader:], body)
	return b
}

// wantCut waits until the listening end has hung up.
func (p *rawPeer) wantCut() {
	p.t.Helper()
	if _, _, err := p.sock.RecvFDs(); !errors.Is(err, io.EOF) && !isReset(err) {
		p.t.Errorf("the connection ended with %v, want it closed", err)
	}
}

// hangUp says that nothing more will come.
func (p *rawPeer) hangUp() {
	p.t.Helper()
	raw, err := p.sock.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_WR) })
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// isReset reports whether the peer has hung up without reading all.
func isReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }

// join connects the peer to a queue pair of dev's.
func (p *rawPeer) join(dev verbs.Device, l verbs.Listener) (verbs.QP, verbs.Conn) {
	p.t.Helper()
	pd, err := dev.AllocPD()
	if err != nil {
		p.t.Fatal(err)
	}
	cq, err := dev.CreateCQ(verbs.CQInit{Depth: 16})
	if err != nil {
		p.t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 4, RecvDepth: 4})
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(record(recordConnect, cm.Append(nil, 5, 1, []byte("hello"))))
	req, err := l.Accept(patient(p.t))
	if err != nil {
		p.t.Fatal(err)
	}
	if err := req.Accept(qp, nil); err != nil {
		p.t.Fatal(err)
	}
	return qp, req.Conn()
}

// TestHostileRings: whatever a client puts into the rings costs it its
// connection, and nobody else theirs.
func TestHostileRings(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{})
	bystander := newDevice(t)
	other, err := Dial(patient(t), bystander, l.Addr(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	packet := softnic.Packet{Kind: softnic.KindAck}
	badPacket := packet.AppendHeader(nil)
	badPacket[2] = 1 // padding
	long := make([]byte, recordHeader)
	binary.LittleEndian.PutUint32(long, maxBody+1)
	binary.LittleEndian.PutUint32(long[4:], uint32(recordPacket))
	cut := record(recordPacket, make([]byte, 100))[:64]
	for name, do := range map[string]func(p *rawPeer){
		"a tail beyond the ring":        func(p *rawPeer) { p.publish(ringSize + 8) },
		"a tail that goes back":         func(p *rawPeer) { p.publish(^uint64(7)) },
		"a tail inside a word":          func(p *rawPeer) { p.publish(12) },
		"an empty record type":          func(p *rawPeer) { p.write(make([]byte, 8)) },
		"an unknown record type":        func(p *rawPeer) { p.write(record(recordTypeEnd, nil)) },
		"a record that is too long":     func(p *rawPeer) { p.write(long) },
		"a record that is not whole":    func(p *rawPeer) { p.write(cut) },
		"a packet without a kind":       func(p *rawPeer) { p.write(record(recordPacket, make([]byte, 16))) },
		"a packet with padding set":     func(p *rawPeer) { p.write(record(recordPacket, badPacket)) },
		"a short packet":                func(p *rawPeer) { p.write(record(recordPacket, []byte{1})) },
		"a short connection request":    func(p *rawPeer) { p.write(record(recordConnect, []byte{1, 2, 3})) },
		"a queue pair out of range":     func(p *rawPeer) { p.write(record(recordConnect, cm.Append(nil, 1, 1<<24, nil))) },
		"private data without end":      func(p *rawPeer) { p.write(record(recordConnect, cm.Append(nil, 1, 1, make([]byte, 300)))) },
		"a good bye":                    func(p *rawPeer) { p.write(record(recordBye, nil)) },
		"a message where none may come": func(p *rawPeer) { p.sock.Send(encodeMessage(kindMemory, 0)) },
		"memory where none may come": func(p *rawPeer) {
			fd := newMemory(p.t, true)
			p.sock.SendFDs(encodeMessage(kindMemory, fd.Size()), fd.File())
		},
		"a head beyond the tail": func(p *rawPeer) {
			p.in.head.Store(1 << 40)
			p.write(record(recordConnect, cm.Append(nil, 1, 1, nil)))
			req, err := l.Accept(patient(p.t))
			if err != nil {
				p.t.Fatal(err)
			}
			_ = req.Reject("no") // has the ring written to
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := rawDial(t, l).greet()
			p.far.word.Store(77) // no word of a client's keeps the reader
			do(p)
			p.wantCut()
		})
	}
	if other.Err() != nil {
		t.Fatalf("a bystander's connection ended: %v", other.Err())
	}
}

// TestAFloodWithoutReadingIsCutOff has requests rejected whose answers the client
// does not read.
func TestAFloodWithoutReadingIsCutOff(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{})
	p := rawDial(t, l).greet()
	if err := l.Close(); err != nil { // so that every request is rejected
		t.Fatal(err)
	}
	request := record(recordConnect, cm.Append(nil, 1, 1, nil))
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		p.wantCut()
	}()
	for {
		select {
		case <-cut:
			return
		default:
		}
		if p.tail-p.out.head.Load() <= ringSize-uint64(len(request)) {
			p.write(request)
		}
	}
}

// TestAStoppedPeerHoldsNobodyUp: what cannot be sent waits, and Close does not.
func TestAStoppedPeerHoldsNobodyUp(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{})
	p := rawDial(t, l).greet()
	qp, conn := p.join(dev, l)
	if err := qp.PostRecv(verbs.RecvWR{}); err != nil {
		t.Fatal(err)
	}
	p.own.word.Store(asleep) // and never looks
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if got := qp.State(); got != verbs.StateError {
		t.Fatalf("the queue pair is in %v, want ERR", got)
	}
	p.wantCut()
}

// newMemory makes memory that could be passed.
func newMemory(t testing.TB, sealed bool) *arena.Memfd {
	t.Helper()
	fd, err := arena.NewMemfd("test", regionSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fd.Close() })
	if sealed {
		if err := fd.SealForGood(); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

func TestBadHellosAreRefused(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{})
	other := encodeMessage(kindHello, 0)
	other[8] = 9 // version
	fd := newMemory(t, true)
	for name, send := range map[string]func(*fdpass.Conn) error{
		"another protocol":  func(c *fdpass.Conn) error { return c.Send([]byte("GET / HTTP/1.0")) },
		"another version":   func(c *fdpass.Conn) error { return c.Send(other) },
		"another kind":      func(c *fdpass.Conn) error { return c.Send(encodeMessage(kindMemory, 0)) },
		"a size":            func(c *fdpass.Conn) error { return c.Send(encodeMessage(kindHello, 8)) },
		"too short":         func(c *fdpass.Conn) error { return c.Send(encodeMessage(kindHello, 0)[:20]) },
		"with a descriptor": func(c *fdpass.Conn) error { return c.SendFDs(encodeMessage(kindHello, 0), fd.File()) },
		"an empty message":  func(c *fdpass.Conn) error { return c.Send(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			p := rawDial(t, l)
			if err := send(p.sock); err != nil {
				t.Fatal(err)
			}
			p.wantCut()
		})
	}
	if _, err := Dial(patient(t), newDevice(t), l.Addr(), Config{}); err != nil {
		t.Fatalf("an honest client is refused after that: %v", err)
	}
}

// TestHostileServers: a client maps nothing that could be truncated under it.
func TestHostileServers(t *testing.T) {
	small, err := arena.NewMemfd("test", arena.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	if err := small.SealForGood(); err != nil {
		t.Fatal(err)
	}
	open, sealed := newMemory(t, false), newMemory(t, true)
	for _, c := range []struct {
		name string
		size int
		fd   *arena.Memfd
		want string
	}{
		{"rings that are not sealed", regionSize, open, "is not sealed"},
		{"rings that are too small", arena.PageSize, small, "rings of"},
		{"rings of another size than said", regionSize, small, "announced"},
		{"no rings", 0, nil, "descriptors"},
		{"sealed rings", regionSize, sealed, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := filepath.Join(t.TempDir(), "sock")
			l, err := fdpass.Listen(addr, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			dialled := make(chan struct{})
			served := make(chan error, 1)
			go func() { served <- serveHello(l, c.size, c.fd, dialled) }()
			conn, err := Dial(patient(t), newDevice(t), addr, Config{})
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				close(dialled)
				<-conn.Done()
			} else if close(dialled); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error about %q", err, c.want)
			}
			if err := <-served; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// serveHello answers one client with fd, which it says has so many bytes, and
// hangs up when it may.
func serveHello(l *net.UnixListener, size int, fd *arena.Memfd, hangUp <-chan struct{}) error {
	nc, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	defer nc.Close()
	sock, err := fdpass.New(nc)
	if err != nil {
		return err
	}
	if _, err := receive(sock, kindHello, false); err != nil {
		return err
	}
	var files []*os.File
	if fd != nil {
		files = append(files, fd.File())
	}
	if err := sock.SendFDs(encodeMessage(kindHello, size), files...); err != nil {
		return err
	}
	<-hangUp
	return nil
}

func TestOnlyTheSameUserAndRootAreTrusted(t *testing.T) {
	for _, c := range []struct {
		uid, self int
		want      bool
	}{{1000, 1000, true}, {0, 1000, true}, {1000, 0, false}, {1001, 1000, false}} {
		if got := trusted(c.uid, c.self); got != c.want {
			t.Errorf("a peer of user %d is trusted by user %d: %v", c.uid, c.self, got)
		}
	}
	c, err := Config{}.normalized()
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(t, newDevice(t), Config{})
	if who, err := c.admit(rawDial(t, l).sock); err != nil || !strings.Contains(who, "process") {
		t.Errorf("this very user: got %q, %v", who, err)
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	dev := newDevice(t)
	addr := filepath.Join(t.TempDir(), "sock")
	for _, c := range []Config{{Mode: os.ModeDir | 0o600}, {HandshakeTimeout: -1}, {MaxConns: -1}, {Backlog: -1}} {
		if _, err := Listen(dev, addr, c); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: got %v", c, err)
		}
		if _, err := Dial(patient(t), dev, addr, c); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("dialling with %+v: got %v", c, err)
		}
	}
}
