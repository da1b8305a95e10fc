package inplace

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/internal/testaddr"
	"polder/memnode/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const size = 1 << 20

var session = wire.Session{ID: 7, Secret: [32]byte{1, 2, 3}}

func TestNamesFollowAddresses(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:7070":        "@polder-in-place/127.0.0.1:7070",
		"[::ffff:10.0.0.1]:1":   "@polder-in-place/10.0.0.1:1",
		"[::]:7070":             "@polder-in-place/*:7070",
		"0.0.0.0:7070":          "@polder-in-place/*:7070",
		"[fe80::1%lo]:65535":    "@polder-in-place/fe80::1:65535",
		"[2001:db8::1]:7070":    "@polder-in-place/2001:db8::1:7070",
		"[::ffff:0.0.0.0]:7070": "@polder-in-place/*:7070",
	} {
		if got := Name(netip.MustParseAddrPort(addr)); got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}

func TestAConnectionIsTheSameAtBothEnds(t *testing.T) {
	r := Request{From: netip.MustParseAddrPort("[::ffff:127.0.0.1]:80")}
	for peer, want := range map[string]bool{
		"127.0.0.1:80": true, "[::ffff:127.0.0.1]:80": true, "127.0.0.1:81": false, "127.0.0.2:80": false, "process 3": false, "": false,
	} {
		if r.Is(peer) != want {
			t.Errorf("%v is said to be %q: %v", r.From, peer, !want)
		}
	}
}

func TestWhichAddressesAreOfThisMachine(t *testing.T) {
	for ip, want := range map[string]bool{"127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true, "192.0.2.7": false, "2001:db8::7": false} {
		if here(netip.MustParseAddr(ip)) != want {
			t.Errorf("%s is of this machine: %v", ip, !want)
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP); !ok || !here(ip) {
			t.Errorf("%v, of an interface, is not of this machine", a)
		}
	}
}

// at is an address whose socket is t's.
func at(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(testaddr.Host(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return netip.MustParseAddrPort(l.Addr().String())
}

func ask1(t *testing.T, addr netip.AddrPort) (*View, error) {
	t.Helper()
	return Ask(t.Context(), "127.0.0.1:5", addr.String(), session, size)
}

func newMemory(t *testing.T) *Memory {
	t.Helper()
	m, err := NewMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// TestMemoryIsPassed at the address where a node listens, or at all of the machine's.
func TestMemoryIsPassed(t *testing.T) {
	for _, everywhere := range []bool{false, true} {
		mem, addr := newMemory(t), at(t)
		listens := addr
		if everywhere {
			listens = netip.AddrPortFrom(netip.IPv6Unspecified(), addr.Port())
		}
		lease, file, err := NewLease()
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Close()
		var refuse atomic.Bool
		refuse.Store(true)
		door, err := Open(listens, mem, func(r *Request) (*arena.Memfd, error) {
			if r.Session != session || r.From != netip.MustParseAddrPort("127.0.0.1:5") {
				t.Errorf("asked by %+v", r)
			}
			if refuse.Load() {
				return nil, errors.New("not today")
			}
			return file, nil
		}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if v, err := ask1(t, addr); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "not today") {
			t.Errorf("got %v, %v, want the refusal", v, err)
		}
		refuse.Store(false)
		// Another machine's node has no memory here, whatever is at the same port.
		far := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), addr.Port())
		if v, err := ask1(t, far); !errors.Is(err, ErrElsewhere) {
			t.Errorf("another machine's: got %v, %v, want %v", v, err, ErrElsewhere)
		}
		v, err := ask1(t, addr)
		if err != nil {
			t.Fatal(err)
		}
		copy(mem.Mapping().Bytes()[size-4:], "here")
		if got := v.Bytes()[size-4:]; !bytes.Equal(got, []byte("here")) || !v.Valid() {
			t.Errorf("read %q under a lease that is valid: %v", got, v.Valid())
		}
		if err := mem.Punch(size/2, size/2); err != nil {
			t.Fatal(err)
		}
		if got := v.Bytes()[size-4:]; !bytes.Equal(got, make([]byte, 4)) {
			t.Errorf("what was given back reads %q", got)
		}
		lease.Revoke()
		if v.Valid() {
			t.Error("a lease that was revoked is valid")
		}
		if other, err := Open(listens, mem, nil, slog.New(slog.DiscardHandler)); err == nil {
			other.Close()
			t.Error("two nodes pass memory at one address")
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		door.Close()
		door.Close()
		if v, err := ask1(t, addr); !errors.Is(err, ErrElsewhere) {
			t.Errorf("after its end: got %v, %v, want %v", v, err, ErrElsewhere)
		}
	}
}

// sealed is a file of so many bytes.
func sealed(t *testing.T, n int, seal bool) *os.File {
	t.Helper()
	m, err := arena.NewMemfd("test", n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if seal {
		if err := m.SealForGood(); err != nil {
			t.Fatal(err)
		}
	}
	return m.File()
}

// TestAHostileNodeIsOfNoUse: what it passes is looked at, what it says is not believed, and it is not waited for for ever.
func TestAHostileNodeIsOfNoUse(t *testing.T) {
	good, lease := sealed(t, size, true), sealed(t, arena.PageSize, true)
	pipe, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer write.Close()
	ok := appendAnswer(nil, size, "")
	for what, try := range map[string]struct {
		answer []byte
		files  []*os.File
	}{
		"nothing":                  {nil, nil},
		"no descriptors":           {ok, nil},
		"one descriptor":           {ok, []*os.File{good}},
		"three descriptors":        {ok, []*os.File{good, lease, good}},
		"memory that may shrink":   {ok, []*os.File{sealed(t, size, false), lease}},
		"a lease that may shrink":  {ok, []*os.File{good, sealed(t, arena.PageSize, false)}},
		"less than it says":        {appendAnswer(nil, 2*size, ""), []*os.File{good, lease}},
		"less than it lends":       {appendAnswer(nil, size/2, ""), []*os.File{sealed(t, size/2, true), lease}},
		"a lease of two pages":     {ok, []*os.File{good, sealed(t, 2*arena.PageSize, true)}},
		"no memory":                {appendAnswer(nil, 0, ""), []*os.File{good, lease}},
		"more than there can be":   {appendAnswer(nil, -1, ""), []*os.File{good, lease}},
		"what is no memory":        {ok, []*os.File{pipe, write}},
		"a refusal with no end":    {append(appendAnswer(nil, 0, strings.Repeat("x", maxReason)), 'x'), nil},
		"a refusal and memory":     {appendAnswer(nil, 0, "no"), []*os.File{good, lease}},
		"another magic":            {append([]byte{1}, ok[1:]...), []*os.File{good, lease}},
		"what is not zero":         {append([]byte{ok[0], ok[1], ok[2], ok[3], 1}, ok[5:]...), []*os.File{good, lease}},
		"memory, and text with it": {appendAnswer(nil, size, "for you"), []*os.File{good, lease}},
	} {
		addr := at(t)
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: Name(addr), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			sock, err := l.AcceptUnix()
			if err != nil {
				t.Error(err)
				return
			}
			conn, err := fdpass.New(sock)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if _, err := conn.Recv(); err != nil {
				t.Error(err)
				return
			}
			conn.Done()
			if try.answer != nil {
				_ = conn.SendFDs(try.answer, try.files...)
			} else { // until it loses patience
				_, _ = conn.Recv()
			}
		}()
		if v, err := ask1(t, addr); err == nil {
			v.Close()
			t.Errorf("%s: it was mapped", what)
		} else if errors.Is(err, ErrElsewhere) {
			t.Errorf("%s: got %v", what, err)
		}
		l.Close()
		<-done
	}
}

// foreign runs f as another user, if this one is root, and reports whether it has.
func foreign(t *testing.T, f func()) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return false // who is not root cannot be anybody else; whom to trust is tested in fdpass
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		const nobody = 65534
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 { // of this thread alone
			done <- errno
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return true
}

// TestNothingIsPassedBetweenUsers: neither end talks to a process of another user.
func TestNothingIsPassedBetweenUsers(t *testing.T) {
	addr := at(t)
	door, err := Open(addr, newMemory(t), func(r *Request) (*arena.Memfd, error) {
		t.Error("another user's process was heard")
		return nil, errors.New("no")
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer door.Close()
	var conn *fdpass.Conn
	if foreign(t, func() { conn, err = fdpass.Dial(Name(addr)) }) {
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		r := Request{Session: session, From: addr}
		_ = conn.Send(r.Append(nil)) // it may be closed already
		if b, err := conn.Recv(); err == nil {
			t.Errorf("another user's process was answered %q", b)
		}
	}
	other := at(t)
	var l *net.UnixListener
	if foreign(t, func() { l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: Name(other), Net: "unixpacket"}) }) {
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		heard := make(chan int)
		go func() {
			sock, err := l.AcceptUnix()
			if err != nil {
				heard <- -1
				return
			}
			defer sock.Close()
			n, _ := sock.Read(make([]byte, askSize))
			heard <- n
		}()
		if v, err := ask1(t, other); err == nil || !strings.Contains(err.Error(), "runs as user") {
			t.Errorf("memory of another user's process: got %v, %v, want it refused", v, err)
		}
		if n := <-heard; n != 0 {
			t.Errorf("another user's process has heard %d bytes, with the secret of a session", n)
		}
	}
}

// FuzzRequest: what is understood says what was said, and nothing else is.
func FuzzRequest(f *testing.F) {
	r := Request{Session: session, From: netip.MustParseAddrPort("127.0.0.1:5")}
	f.Add(r.Append(nil))
	r.From = netip.MustParseAddrPort("[2001:db8::1]:65535")
	f.Add(r.Append(nil))
	f.Add(make([]byte, askSize))
	f.Add([]byte("PIP1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		if err := r.Decode(b); err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("got %v, want %v", err, wire.ErrMalformed)
			}
			return
		}
		if got := r.Append(nil); !bytes.Equal(got, b) {
			t.Fatalf("%x was understood as %x", b, got)
		}
	})
}

// FuzzAnswer: memory comes with two descriptors or not at all.
func FuzzAnswer(f *testing.F) {
	f.Add(appendAnswer(nil, size, ""), 2)
	f.Add(appendAnswer(nil, 0, "no"), 0)
	f.Add(appendAnswer(nil, size, ""), 1)
	f.Add([]byte("PIP1"), 0)
	f.Fuzz(func(t *testing.T, b []byte, files int) {
		n, err := decodeAnswer(b, files)
		switch {
		case err == nil && (files != 2 || n == 0 || !bytes.Equal(appendAnswer(nil, int(n), ""), b)):
			t.Fatalf("%x with %d descriptors was understood as %d bytes", b, files, n)
		case err != nil && n != 0:
			t.Fatalf("%d bytes with %v", n, err)
		}
	})
}
