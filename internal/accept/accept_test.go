package accept

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"polder/internal/testcert"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what should happen at all.
const patience = time.Minute

var quiet = slog.New(slog.DiscardHandler)

// failure is what net's Accept returns.
func failure(errno syscall.Errno) error {
	return &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", errno)}
}

func TestAcceptingGoesOnAfterAShortageAndSaysSoOnce(t *testing.T) {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EPROTO, syscall.EPERM,
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			log := slog.New(slog.NewTextHandler(&out, nil))
			const shortage = time.Minute
			began, taken, calls := time.Now(), 0, 0
			err := Each(log, func() (int, error) {
				calls++
				switch {
				case taken == 5:
					return 0, &net.OpError{Op: "accept", Net: "tcp", Err: net.ErrClosed}
				case time.Since(began) < shortage || calls%2 == 0: // and every other one fails afterwards
					return 0, failure(errno)
				}
				return calls, nil
			}, func(int) { taken++ })
			if !errors.Is(err, net.ErrClosed) || taken != 5 {
				t.Errorf("%v: got %d connections and %v, want 5 and that the listener is closed", errno, taken, err)
			}
			if most := int(shortage/lastPause) + 100; calls > most {
				t.Errorf("%v: tried %d times in %v, want at most %d", errno, calls, shortage, most)
			}
			if got := strings.Count(out.String(), "\n"); got != 1 || !strings.Contains(out.String(), errno.Error()) {
				t.Errorf("%v: got %d lines, want one that says why:\n%s", errno, got, &out)
			}
		})
	}
}

func TestAcceptingEndsWhenTheListenerIsOfNoUse(t *testing.T) {
	for _, want := range []error{failure(syscall.EBADF), failure(syscall.EINVAL), failure(syscall.ENOTSOCK), io.EOF, net.ErrClosed} {
		if err := Each(quiet, func() (int, error) { return 0, want }, func(int) {}); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

// visit has somebody come to a gate, who never says anything. The error is what
// becomes of him.
func visit(t *testing.T, g *Gate) <-chan error {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { here.Close(); there.Close() })
	fate := make(chan error, 1)
	g.Go(here, func(*Visitor) error {
		_, err := here.Read(make([]byte, 1))
		fate <- err
		return err
	})
	return fate
}

func TestAFullGateTurnsAwayWhoHasWaitedLongest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		g := NewGate(slog.New(slog.NewTextHandler(&out, nil)), time.Hour)
		g.places = 3
		var fates []<-chan error
		for range 5 {
			fates = append(fates, visit(t, g))
			time.Sleep(Stay / 2)
		}
		synctest.Wait()
		for i, fate := range fates {
			if got, want := len(fate) == 1, i < 2; got != want {
				t.Errorf("visitor %d of 5 at 3 places was turned away: %v, want %v", i, got, want)
			}
		}
		if g.Waiting() != 3 || strings.Count(out.String(), ErrCrowded.Error()) != 2 {
			t.Errorf("got %d waiting and the log\n%s", g.Waiting(), &out)
		}
		g.Close()
		g.Close()
		for i, fate := range fates[2:] {
			if err := <-fate; err == nil {
				t.Errorf("visitor %d is still there after the gate was closed", i+2)
			}
		}
		if strings.Count(out.String(), "\n") != 2 {
			t.Errorf("closing a gate is no refusal:\n%s", &out)
		}
	})
}

// TestACrowdDoesNotPushItselfOut has more honest peers come at once than there are
// places. Those who are in get the time to finish.
func TestACrowdDoesNotPushItselfOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(quiet, time.Hour)
		g.places = 3
		var entered [10]atomic.Bool
		for i := range entered {
			here, there := net.Pipe()
			defer here.Close()
			defer there.Close()
			g.Go(here, func(v *Visitor) error {
				time.Sleep(Stay)
				err := v.Enter()
				entered[i].Store(err == nil)
				return err
			})
		}
		time.Sleep(Stay)
		synctest.Wait()
		g.Close()
		for i := range entered {
			if got, want := entered[i].Load(), i < 3; got != want {
				t.Errorf("visitor %d of 10 who came at once to 3 places: entered %t, want %t", i, got, want)
			}
		}
	})
}

func TestNobodyStaysInAGateForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(quiet, 5*time.Second)
		defer g.Close()
		began := time.Now()
		if err := <-visit(t, g); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("got %v after %v, want the deadline after 5s", err, time.Since(began))
		}
		synctest.Wait()
		if g.Waiting() != 0 {
			t.Errorf("%d still wait", g.Waiting())
		}
	})
}

func TestWhoHasEnteredIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(quiet, 5*time.Second)
		g.places = 1
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		entered := make(chan error)
		g.Go(here, func(v *Visitor) error { entered <- v.Enter(); return nil })
		if err := <-entered; err != nil {
			t.Fatal(err)
		}
		visit(t, g)
		time.Sleep(Stay)
		visit(t, g)
		time.Sleep(time.Minute)
		g.Close()
		go there.Write([]byte("x"))
		if _, err := here.Read(make([]byte, 1)); err != nil {
			t.Errorf("the gate has touched a connection that had entered: %v", err)
		}
	})
}

func TestWhoEntersTooLateIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(quiet, time.Hour)
		g.places = 1
		here, there := net.Pipe()
		defer there.Close()
		late := make(chan error)
		g.Go(here, func(v *Visitor) error { <-v.Gone(); late <- v.Enter(); return nil })
		time.Sleep(Stay)
		visit(t, g)
		if err := <-late; !errors.Is(err, ErrCrowded) {
			t.Errorf("got %v, want %v", err, ErrCrowded)
		}
		g.Close()
		if g.Go(here, func(*Visitor) error { panic("BUG: proven after Close") }); g.Waiting() != 0 {
			t.Error("a closed gate takes connections in")
		}
	})
}

// TestAShortageIsPaidByWhoWaits has accept fail as without descriptors: those who
// hold them without having said who they are lose them.
func TestAShortageIsPaidByWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(quiet, time.Hour)
		defer g.Close()
		for range 7 {
			visit(t, g)
		}
		for _, want := range []int{3, 1, 0, 0} {
			if _, err := g.Accept(func() (net.Conn, error) { return nil, failure(syscall.EMFILE) })(); !errors.Is(err, syscall.EMFILE) {
				t.Fatal(err)
			}
			if got := g.Waiting(); got != want {
				t.Errorf("got %d waiting, want %d", got, want)
			}
		}
	})
}

// configs are TLS configurations of a server that demands certificates, and of a
// client that has one.
func configs(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	a := testcert.NewAuthority(t, "authority")
	client = a.Client(t, "client", a)
	server = a.Client(t, "server", a)
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, server.RootCAs
	return server, client
}

func open(t *testing.T) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

func dial(t *testing.T, lis net.Listener) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return nc
}

// TestACrowdDoesNotKeepAClientOut fills a TLS listener with peers that are silent,
// talk nonsense, or have begun a handshake and stopped. A client with a certificate
// gets in; nobody else is ever accepted.
func TestACrowdDoesNotKeepAClientOut(t *testing.T) {
	server, client := configs(t)
	gate := NewGate(quiet, patience)
	gate.places = 16
	lis := listen(ListenTLS(open(t), server), quiet, gate)
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			nc, err := lis.Accept()
			if err != nil {
				return
			}
			accepted <- nc
		}
	}()
	defer func() {
		if err := lis.Close(); err != nil {
			t.Error(err)
		}
		if _, more := <-accepted; more {
			t.Error("a stranger was accepted")
		}
	}()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range 100 {
		switch nc := dial(t, lis); i % 3 {
		case 1:
			io.WriteString(nc, "GET / HTTP/1.1\r\n\r\n")
		case 2:
			nc.Write([]byte{22, 3, 1, 1, 0, 1}) // the head of a ClientHello
		}
	}
	d := tls.Dialer{Config: client}
	nc, err := d.DialContext(ctx, "tcp", lis.Addr().String())
	for err != nil && ctx.Err() == nil { // until the crowd has had its time
		nc, err = d.DialContext(ctx, "tcp", lis.Addr().String())
	}
	if err != nil {
		t.Fatalf("a client with a certificate: %v", err)
	}
	defer nc.Close()
	select {
	case got := <-accepted:
		defer got.Close()
		if got.RemoteAddr().String() != nc.LocalAddr().String() {
			t.Errorf("accepted %v, want %v", got.RemoteAddr(), nc.LocalAddr())
		}
		if !got.(*tls.Conn).ConnectionState().HandshakeComplete {
			t.Error("it was accepted before its handshake")
		}
	case <-ctx.Done():
		t.Fatal("the client is not accepted")
	}
}

// TestAClosedListenerWaitsForNobody closes it while a peer is silent, and while a
// connection that is ready waits for an Accept that does not come.
func TestAClosedListenerWaitsForNobody(t *testing.T) {
	server, client := configs(t)
	lis := Listen(ListenTLS(open(t), server), quiet)
	dial(t, lis)
	nc, err := tls.Dial("tcp", lis.Addr().String(), client)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	plain := Listen(open(t), quiet)
	dial(t, plain)
	for _, l := range []net.Listener{lis, plain} {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want that the listener is closed", err)
		}
	}
}

// TestAStrangerSendsSoMuchAtMost has a peer send a chain of certificates that TLS
// would keep in memory. Who has entered may send what it likes.
func TestAStrangerSendsSoMuchAtMost(t *testing.T) {
	server, client := configs(t)
	log := make(logLines, 100)
	lis := Listen(ListenTLS(open(t), server), slog.New(slog.NewTextHandler(log, nil)))
	defer lis.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	long := client.Clone()
	c := client.Certificates[0]
	for len(c.Certificate)*len(c.Certificate[0]) < 4*MaxHandshake {
		c.Certificate = append(c.Certificate, c.Certificate[0])
	}
	long.Certificates = []tls.Certificate{c}
	if nc, err := (&tls.Dialer{Config: long}).DialContext(ctx, "tcp", lis.Addr().String()); err == nil {
		defer nc.Close()
	}
	select {
	case line := <-log:
		if !strings.Contains(line, errLongHandshake.Error()) {
			t.Errorf("got the log line %q, want one that says %q", line, errLongHandshake)
		}
	case <-ctx.Done():
		t.Fatal("a peer that sends a long chain of certificates is not refused")
	}

	go func() {
		nc, err := (&tls.Dialer{Config: client}).DialContext(ctx, "tcp", lis.Addr().String())
		if err == nil {
			nc.Write(make([]byte, 4*MaxHandshake))
			nc.Close()
		}
	}()
	nc, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	if n, err := io.Copy(io.Discard, nc); n != 4*MaxHandshake || err != nil {
		t.Errorf("got %d bytes, %v, from a client that has entered, want %d", n, err, 4*MaxHandshake)
	}
}

// logLines is a log by the line.
type logLines chan string

func (l logLines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}
