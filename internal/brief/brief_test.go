package brief_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"polder/internal/brief"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of a connection, the first of them a Conn.
func pair(t *testing.T, network string) (*brief.Conn, net.Conn) {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = filepath.Join(t.TempDir(), "sock")
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	c, err := brief.New(dialled.(brief.Socket))
	if err != nil {
		t.Fatal(err)
	}
	return c, accepted
}

func eachNetwork(t *testing.T, f func(t *testing.T, c *brief.Conn, peer net.Conn)) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			c, peer := pair(t, network)
			f(t, c, peer)
		})
	}
}

func TestBothDirectionsCarryMoreThanASocketHolds(t *testing.T) {
	eachNetwork(t, func(t *testing.T, c *brief.Conn, peer net.Conn) {
		want := bytes.Repeat([]byte("0123456789abcde"), 1<<20)
		echoed := make(chan error)
		go func() {
			_, err := io.Copy(peer, peer)
			echoed <- errors.Join(err, peer.(brief.Socket).CloseWrite())
		}()
		sent := make(chan error)
		go func() {
			n, err := c.Write(want)
			if err == nil && n != len(want) {
				err = io.ErrShortWrite
			}
			sent <- errors.Join(err, c.CloseWrite())
		}()
		got, err := io.ReadAll(c)
		if err := errors.Join(err, <-sent, <-echoed); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes came back, not the %d that were sent", len(got), len(want))
		}
	})
}

func TestTryWriteDoesNotWait(t *testing.T) {
	eachNetwork(t, func(t *testing.T, c *brief.Conn, peer net.Conn) {
		part, sent := make([]byte, 64<<10), 0
		for {
			n, err := c.TryWrite(part)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			sent += n
		}
		if got, err := io.CopyN(io.Discard, peer, int64(sent)); err != nil {
			t.Fatalf("of %d bytes that were sent, %d came: %v", sent, got, err)
		}
		if n, err := c.TryWrite(part); n == 0 || err != nil {
			t.Errorf("when there is room again: wrote %d bytes, %v", n, err)
		}
	})
}

func TestADeadlineEndsWhatWaits(t *testing.T) {
	eachNetwork(t, func(t *testing.T, c *brief.Conn, peer net.Conn) {
		time.AfterFunc(20*time.Millisecond, func() { c.SetDeadline(time.Unix(1, 0)) })
		_, err := c.Read(make([]byte, 1))
		var timeout net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() || !strings.HasPrefix(err.Error(), "read "+c.LocalAddr().Network()) {
			t.Errorf("a read that waited: got %v, want a timeout of a read", err)
		}
		c.SetDeadline(time.Time{})
		much := make([]byte, 64<<20)
		time.AfterFunc(100*time.Millisecond, func() { c.SetDeadline(time.Unix(1, 0)) })
		n, err := c.Write(much)
		if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 {
			t.Errorf("a write that waited: wrote %d bytes, got %v, want some and a timeout", n, err)
		}
		if got, err := io.CopyN(io.Discard, peer, int64(n)); err != nil {
			t.Errorf("%d bytes were said to be written, %d came: %v", n, got, err)
		}
	})
}

func TestClosingEndsWhatWaits(t *testing.T) {
	eachNetwork(t, func(t *testing.T, c *brief.Conn, peer net.Conn) {
		time.AfterFunc(20*time.Millisecond, func() { c.Close() })
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a read that waited: got %v, want %v", err, net.ErrClosed)
		}
		if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a write afterwards: got %v, want %v", err, net.ErrClosed)
		}
	})
}

func TestAPeerThatHasGoneIsNoSignal(t *testing.T) {
	eachNetwork(t, func(t *testing.T, c *brief.Conn, peer net.Conn) {
		peer.Close()
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("read: got %d bytes, %v, want EOF", n, err)
		}
		var err error
		for range 100 { // over TCP, the first is taken
			if _, err = c.Write([]byte("x")); err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("write: got %v, want %v", err, syscall.EPIPE)
		}
	})
}

func TestNothingIsReadIntoNoRoom(t *testing.T) {
	eachNetwork(t, func(t *testing.T, c *brief.Conn, _ net.Conn) {
		if n, err := c.Read(nil); n != 0 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
	})
}

func TestReadingAndWritingDoNotAllocate(t *testing.T) {
	eachNetwork(t, func(t *testing.T, c *brief.Conn, peer net.Conn) {
		peer = must(brief.New(peer.(brief.Socket)))
		b := make([]byte, 64)
		if n := testing.AllocsPerRun(100, func() {
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
			if _, err := c.TryWrite(b); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if _, err := io.ReadFull(peer, b); err != nil {
					t.Fatal(err)
				}
			}
		}); n != 0 {
			t.Errorf("%v allocations for two messages", n)
		}
	})
}

func TestBoottimeIsThatOfTheMachine(t *testing.T) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		t.Fatal(err)
	}
	if d := brief.Boottime() - time.Duration(ts.Nano()); d < 0 || d > time.Minute {
		t.Errorf("it is %v later than a moment ago", d)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
