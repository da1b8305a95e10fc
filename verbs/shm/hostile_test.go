package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/verbs"
)

// rawDial connects to l and says nothing.
func rawDial(t testing.TB, l verbs.Listener) *net.UnixConn {
	t.Helper()
	nc, err := fdpass.DialStream(patient(t), path(l.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return nc
}

// newMemory makes memory that could be passed.
func newMemory(t testing.TB, sealed bool) *arena.Memfd {
	t.Helper()
	fd, err := arena.NewMemfd("test", arena.PageSize)
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
	bystander := newDevice(t)
	other, err := Dial(patient(t), bystander, l.Addr(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"another protocol": []byte("GET / HTTP/1.0\r\nHost: polder\r\n\r\n"),
		"another version":  append([]byte("polderTC\x09"), make([]byte, 23)...),
		"no checksum":      append([]byte("polderTC\x01"), make([]byte, 23)...),
	} {
		t.Run(name, func(t *testing.T) {
			nc := rawDial(t, l)
			fd := newMemory(t, true)
			// Files that come to a listener are nobody's.
			if _, _, err := nc.WriteMsgUnix(b, unix.UnixRights(int(fd.File().Fd())), nil); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, nc); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection was not closed")
			}
		})
	}
	if other.Err() != nil {
		t.Fatalf("a bystander's connection ended: %v", other.Err())
	}
	if _, err := Dial(patient(t), newDevice(t), l.Addr(), Config{}); err != nil {
		t.Fatalf("an honest client is refused after that: %v", err)
	}
}

// TestAListenerTakesNoFiles: the listening end passes memory, and takes none.
func TestAListenerTakesNoFiles(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{})
	client, err := Dial(patient(t), newDevice(t), l.Addr(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	fd := newMemory(t, true)
	if err := client.(*conn).SendFile(fd.File(), size(fd.Size())); err != nil {
		t.Fatal(err)
	}
	select {
	case <-client.Done():
	case <-patient(t).Done():
		t.Fatal("the client is not cut off")
	}
	if err := client.(*conn).PassMemory(fd); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a client passes memory: got %v, want %v", err, verbs.ErrInvalid)
	}
}

// size is what announces so much memory.
func size(n int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

// TestHostileServers: a client maps nothing that could be truncated under it.
func TestHostileServers(t *testing.T) {
	open, sealed := newMemory(t, false).File(), newMemory(t, true).File()
	plain, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.Truncate(int64(arena.PageSize)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		file *os.File
		body []byte
		want string
	}{
		{"memory that is not sealed", open, size(arena.PageSize), "is not sealed"},
		{"a file that is no memory", plain, size(arena.PageSize), "seal"},
		{"another size than said", sealed, size(2 * arena.PageSize), "announced"},
		{"no size", sealed, nil, "takes 8 bytes"},
		{"sealed memory", sealed, size(arena.PageSize), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, server := join(t)
			if err := server.SendFile(c.file, c.body); err != nil {
				t.Fatal(err)
			}
			m, err := client.ReceiveMemory(patient(t))
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				m.Close()
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error about %q", err, c.want)
			}
			<-client.Done()
		})
	}
	t.Run("memory three times", func(t *testing.T) {
		client, server := join(t)
		for i := range maxMemories + 1 {
			if err := server.SendFile(sealed, size(arena.PageSize)); err != nil {
				t.Fatal(err)
			}
			if i == maxMemories {
				break
			}
			m, err := client.ReceiveMemory(patient(t)) // one by one
			if err != nil {
				t.Fatal(err)
			}
			m.Close()
		}
		select {
		case <-client.Done():
		case <-patient(t).Done():
			t.Fatal("the connection is not cut")
		}
		if err := client.Err(); !errors.Is(err, errMemories) {
			t.Errorf("got %v, want %v", err, errMemories)
		}
	})
}

// join makes a connection and returns both ends.
func join(t *testing.T) (client, server *conn) {
	t.Helper()
	p := newPair(t)
	c, err := p.Dial(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	pd, err := p.Client.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := p.Client.CreateCQ(verbs.CQInit{Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1})
	if err != nil {
		t.Fatal(err)
	}
	connected := make(chan struct{})
	ctx, cancel := context.WithCancel(patient(t))
	go func() {
		defer close(connected)
		_, _ = c.Connect(ctx, qp, nil) // so that the server has the connection
	}()
	t.Cleanup(func() { cancel(); <-connected })
	req, err := p.Listener.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	return c.(*conn), req.Conn().(*conn)
}

func TestTheSameUserIsTrusted(t *testing.T) {
	c, err := Config{}.normalized()
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(t, newDevice(t), Config{})
	if who, err := c.admit(rawDial(t, l)); err != nil || !strings.Contains(who, "process") {
		t.Errorf("this very user: got %q, %v", who, err)
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	dev := newDevice(t)
	addr := filepath.Join(t.TempDir(), "sock")
	for _, c := range []Config{{Mode: os.ModeDir | 0o600}, {HandshakeTimeout: -1}, {StallTimeout: -1}, {MaxConns: -1}, {Backlog: -1}} {
		if _, err := Listen(dev, addr, c); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: got %v", c, err)
		}
		if _, err := Dial(patient(t), dev, addr, c); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("dialling with %+v: got %v", c, err)
		}
	}
}
