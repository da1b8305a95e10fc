package maru

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/share/maru/marutest"
	"polder/share/server"
)

func TestGarbageOnBothPortsHarmsNobody(t *testing.T) {
	h := build(t, func(_ *server.Options, d *Options) { d.MaxConns = 64 })
	o := h.owner(t, h.tcp, "identity", "o", 1<<20)
	o.store(t, "k", 0, "v")
	ready := "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
	var greeting [64]byte
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	hello := string(greeting[:]) + ready
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 400 {
		noise := make([]byte, rng.IntN(200))
		for j := range noise {
			noise[j] = byte(rng.Uint32())
		}
		addr, first := h.rm, ""
		if i%2 == 0 {
			addr = strings.TrimPrefix(h.tcp, "tcp://")
			first = []string{"", string(greeting[:]), hello, hello + "\x01\x00", hello + "\x01\x00\x02\x7f\xff\xff\xff\xff\xff\xff\xff",
				hello + "\x01\x00\x00\x20\xcf\x00\x01\x10\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x10"}[rng.IntN(6)]
		} else if i%4 == 1 {
			first = "URAM\x02\x00\x09\x00\x2e\x00\x00\x00"
		}
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		nc.Write(append([]byte(first), noise...))
		if i%3 == 0 {
			nc.SetReadDeadline(time.Now().Add(time.Millisecond))
			io.Copy(io.Discard, nc)
		}
		if i%8 != 0 { // some stay
			nc.Close()
		} else {
			defer nc.Close()
		}
	}
	want(t, o.Client, "k", "v")
	until(t, "a client can connect", func() bool {
		c, err := marutest.Dial(h.tcp, "another", "c")
		if err != nil {
			return false
		}
		defer c.Close()
		b, err := c.Get("k")
		return err == nil && string(b) == "v"
	})
}

// TestManyClientsAtOnce has each store, read what all have stored, and leave.
func TestManyClientsAtOnce(t *testing.T) {
	h := build(t, nil)
	const clients = 64
	var stored, read sync.WaitGroup
	stored.Add(clients)
	errs := make(chan error, clients)
	for i := range clients {
		read.Go(func() {
			errs <- func() error {
				c, err := marutest.Dial(h.tcp, fmt.Sprintf("identity%d", i), fmt.Sprint(i))
				if err != nil {
					stored.Done()
					return err
				}
				defer c.Close()
				r, err := c.Alloc(64 << 10)
				var mem []byte
				if err == nil {
					mem, err = c.Map(r)
				}
				for j := range 8 {
					if err == nil {
						key := fmt.Sprintf("%d/%d", i, j)
						copy(mem[j*8192:], key)
						_, err = c.Register(server.MaruKey{Key: key, Region: r.ID, Offset: int64(j * 8192), Length: int64(len(key))})
					}
				}
				stored.Done()
				if err != nil {
					return err
				}
				stored.Wait()
				for k := range clients {
					key := fmt.Sprintf("%d/%d", k, (i+k)%8)
					if b, err := c.Get(key); err != nil || string(b) != key {
						return fmt.Errorf("%s: got %q, %v", key, b, err)
					}
				}
				return c.Return(r.ID)
			}()
		})
	}
	for range clients {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	read.Wait()
}

// TestAThousandClientsAtOnce has all of them connect, and then, while all are there,
// each look a key up in turn with the others: it is what made the door's frames our
// own (see the package's page).
func TestAThousandClientsAtOnce(t *testing.T) {
	h := build(t, nil)
	const clients, rounds = 1000, 2
	o := h.owner(t, h.tcp, "owner", "owner", 1<<20)
	o.store(t, "k", 4096, "value")
	var wg, connected sync.WaitGroup
	connected.Add(clients)
	errs := make(chan error, clients)
	var lookups atomic.Int64
	began := time.Now()
	counted := make(chan struct{})   // how many are there, before the first goes
	doors := make(chan struct{}, 64) // a handshake has its time, also where everything is slow
	for i := range clients {
		wg.Go(func() {
			doors <- struct{}{}
			c, err := marutest.Dial(h.tcp, fmt.Sprintf("identity%d", i), fmt.Sprint(i))
			if err == nil {
				defer c.Close()
				_, err = c.Exists("k")
			}
			<-doors
			connected.Done()
			if err != nil {
				errs <- err
				return
			}
			<-counted
			for range rounds {
				if f, err := c.Lookup("k"); err != nil || f.At != 4096 || f.Size != 5 {
					errs <- fmt.Errorf("client %d: %d bytes at %d, %w, want 5 at 4096", i, f.Size, f.At, err)
					return
				}
				lookups.Add(1)
			}
		})
	}
	connected.Wait()
	h.mu.Lock()
	most := len(h.clients)
	h.mu.Unlock()
	close(counted)
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if most <= clients || lookups.Load() != clients*rounds {
		t.Errorf("%d clients were there at a time and %d lookups answered, want %d and %d", most, lookups.Load(), clients+1, clients*rounds)
	}
	t.Logf("%d clients connected, and each looked a key up %d times, in %v", clients, rounds, time.Since(began).Round(time.Millisecond))
	until(t, "they are gone", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.clients) == 1
	})
	want(t, o.Client, "k", "value")
}

// stuck is a connection that takes nothing until it is released.
type stuck struct {
	net.Conn
	writing, release chan struct{}
}

func (c *stuck) Write([]byte) (int, error) {
	close(c.writing)
	<-c.release
	return 0, os.ErrDeadlineExceeded
}

// TestAClientThatTakesNoHeartbeatHoldsNobodyUp has a client connect while the door
// asks another one for a sign of life, which does not read.
func TestAClientThatTakesNoHeartbeatHoldsNobodyUp(t *testing.T) {
	h := build(t, nil)
	near, far := net.Pipe()
	defer far.Close()
	defer near.Close()
	conn := &stuck{near, make(chan struct{}), make(chan struct{})}
	c := &client{d: h.Door, link: newLink(conn, h.stalls, nil), peer: peerInfo{minor: 1}, asked: -time.Hour}
	c.link.arrival.heard.Store(int64(-time.Hour))
	h.mu.Lock()
	h.clients[c] = struct{}{}
	h.mu.Unlock()
	asked, served := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		h.heartbeats()
	}()
	<-conn.writing
	go func() {
		defer close(served)
		another, err := marutest.Dial(h.tcp, "another", "another")
		if err != nil {
			t.Error(err)
			return
		}
		another.Close()
	}()
	select {
	case <-served:
	case <-time.After(20 * time.Second):
		t.Error("a client that takes no heartbeat keeps another one from connecting")
	}
	close(conn.release)
	<-asked
	<-served
	h.mu.Lock()
	delete(h.clients, c)
	h.mu.Unlock()
}

// TestAClientThatIsKickedIsDisconnectedAndMayComeBackAsANewOne: its regions and pins
// are gone, and it hears of it.
func TestAClientThatIsKickedIsDisconnectedAndMayComeBackAsANewOne(t *testing.T) {
	h := build(t, nil)
	o := h.owner(t, h.tcp, "identity", "o", 1<<20)
	o.store(t, "k", 0, "v")
	if ok, err := o.Pin("k"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	n := h.native(t)
	for s, err := range n.Sessions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if s.Maru {
			if err := n.Kick(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := o.Exists("k"); err == nil {
		t.Error("a client that was kicked is served by its old connection")
	}
	again := h.owner(t, h.tcp, "identity", "o", 1<<20)
	if ok, err := again.Delete("k"); !ok || err != nil {
		t.Errorf("deleting the key that the kicked client had pinned: got %v, %v", ok, err)
	}
	again.store(t, "k", 0, "anew")
}

// TestAnAnswerDoesNotWaitForTheNextRequest: a request comes together with something
// that is none, such as the answer to a heartbeat, or with the beginning of another
// one. Its own answer must go out, or its sender gives it up as lost.
func TestAnAnswerDoesNotWaitForTheNextRequest(t *testing.T) {
	h := build(t, nil)
	for what, behind := range map[string]string{"the answer to a heartbeat": "\x04\x05\x04PONG", "half a frame": "\x01", "half a request": "\x01\x00\x00\x20\xcf"} {
		nc, err := net.Dial("tcp", strings.TrimPrefix(h.tcp, "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		l := newLink(nc, newStalls(), nil)
		if _, err := l.greet("DEALER", "identity of "+what); err != nil {
			t.Fatal(err)
		}
		e := newEncoder()
		e.begin(header{kind: typeHeartbeat, sequence: 7})
		e.object(0)
		msg := e.end()
		if _, err := nc.Write(append(append([]byte{flagMore, 0, 0, byte(len(msg))}, msg...), behind...)); err != nil {
			t.Fatal(err)
		}
		if err := nc.SetReadDeadline(time.Now().Add(frameTime / 2)); err != nil { // half a frame ends the connection later
			t.Fatal(err)
		}
		body, _, err := l.message(nil)
		if err != nil {
			t.Errorf("behind the request is %s: %v, want its answer", what, err)
			continue
		}
		if got, err := parseHeader(body); err != nil || got.sequence != 7 {
			t.Errorf("behind the request is %s: got the answer %+v, %v, want that to request 7", what, got, err)
		}
	}
}
