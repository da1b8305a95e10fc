// Package fdpass moves messages and file descriptors between processes over
// Unix sockets that keep message boundaries, and tells who is at the other
// end.
//
// A [Conn] is a SOCK_SEQPACKET connection: a message arrives whole or not at
// all. Buffers are borrowed only while there is something to read, so that ten
// thousand idle connections hold no buffers.
//
// Concurrency: one goroutine may receive while another sends; Close may be
// called at any time and ends both. Nothing here locks.
package fdpass

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/systemd"
)

// MaxMessage is the largest message in bytes.
const MaxMessage = 128 << 10

// maxFDs is how many descriptors one message may carry.
const maxFDs = 8

// ErrTooLarge is returned for a message of more than MaxMessage bytes.
var ErrTooLarge = fmt.Errorf("the message is larger than %d bytes", MaxMessage)

var buffers = sync.Pool{New: func() any { return new([MaxMessage + 1]byte) }}

// Conn is a connection. It must not be copied.
type Conn struct {
	sock *net.UnixConn
	raw  syscall.RawConn

	// The receiving goroutine's. The callback is made once, so that receiving
	// does not allocate.
	recvFn  func(fd uintptr) bool
	in      *[MaxMessage + 1]byte
	n       int
	recvErr error

	// The sending goroutine's.
	sendFn  func(fd uintptr) bool
	out     []byte
	sendErr error
}

// New makes a Conn of a connected socket of the network "unixpacket".
func New(sock *net.UnixConn) (*Conn, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot use the socket: %w", err)
	}
	c := &Conn{sock: sock, raw: raw}
	c.recvFn = func(fd uintptr) bool {
		buf := buffers.Get().(*[MaxMessage + 1]byte)
		for {
			n, err := unix.Read(int(fd), buf[:])
			if err == unix.EINTR {
				continue
			}
			if err == unix.EAGAIN {
				buffers.Put(buf)
				return false
			}
			c.in, c.n, c.recvErr = buf, max(n, 0), err
			return true
		}
	}
	c.sendFn = func(fd uintptr) bool {
		for {
			_, err := unix.Write(int(fd), c.out)
			if err == unix.EINTR {
				continue
			}
			c.sendErr = err
			return err != unix.EAGAIN
		}
	}
	return c, nil
}

// dialTime is how long Dial tries while the listener's queue is full.
const dialTime = 5 * time.Second

// Dial connects to the socket at path. While more clients connect than the
// listener can take in, it tries again, for some seconds.
func Dial(path string) (*Conn, error) { return DialContext(context.Background(), path) }

// DialContext is Dial that also ends when ctx does.
func DialContext(ctx context.Context, path string) (*Conn, error) {
	sock, err := dial(ctx, "unixpacket", path)
	if err != nil {
		return nil, err
	}
	return New(sock)
}

// DialStream is DialContext for peers that do not send messages but bytes.
func DialStream(ctx context.Context, path string) (*net.UnixConn, error) {
	return dial(ctx, "unix", path)
}

func dial(ctx context.Context, network, path string) (*net.UnixConn, error) {
	var until time.Time
	for {
		sock, err := net.DialUnix(network, nil, &net.UnixAddr{Name: path, Net: network})
		if err == nil {
			return sock, nil
		}
		if until.IsZero() {
			until = time.Now().Add(dialTime)
		}
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(until) || ctx.Err() != nil {
			return nil, err
		}
		time.Sleep(time.Millisecond)
	}
}

// ErrServed: another process listens there.
var ErrServed = errors.New("it is served by another process")

// MaxPath is how long the path of a socket may be.
const MaxPath = 107

// Listen listens at path. It replaces a socket there that no process serves, and fails with ErrServed if one does. If
// several processes call it for the same path at the same time, one succeeds. The socket gets the given permissions,
// and its directory is made if need be. If the service manager listens at path already, its socket is used, and its
// permissions hold.
func Listen(path string, perm os.FileMode) (*net.UnixListener, error) {
	return listen("unixpacket", path, perm)
}

// ListenStream is Listen for peers that do not send messages but bytes.
func ListenStream(path string, perm os.FileMode) (*net.UnixListener, error) {
	return listen("unix", path, perm)
}

func listen(network, path string, perm os.FileMode) (*net.UnixListener, error) {
	if l, err := systemd.ListenerAt(network, path); l != nil || err != nil {
		own, _ := l.(*net.UnixListener)
		return own, err
	}
	if len(path) > MaxPath {
		return nil, fmt.Errorf("cannot listen on %s: the path has %d bytes, and that of a socket has at most %d: choose a shorter one", path, len(path), MaxPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	// No other process may act between our check that nobody serves a socket and our serving it.
	turn, err := takeTurn(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	defer turn.Close()
	addr := &net.UnixAddr{Name: path, Net: network}
	// A socket whose queue is full is served, and so is one of another type.
	c, err := net.DialUnix(network, nil, addr)
	switch {
	case err == nil:
		c.Close()
		fallthrough
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE):
		return nil, fmt.Errorf("cannot listen on %s: %w", path, ErrServed)
	case errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("cannot listen on %s: who serves it cannot be seen: %w", path, err)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("cannot listen on %s: what is there is no socket: choose another path", path)
		}
		os.Remove(path)
	}
	l, err := net.ListenUnix(network, addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	if err := os.Chmod(path, perm); err != nil {
		l.Close()
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	return l, nil
}

// turnTime is how long takeTurn waits for others.
var turnTime = 5 * time.Second

// takeTurn locks a directory until the file is closed. The lock is the kernel's and ends
// with the process.
func takeTurn(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(turnTime); ; time.Sleep(time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(until) {
			f.Close()
			return nil, fmt.Errorf("cannot lock the directory %s: %w", dir, err)
		}
	}
}

// Recv receives one message. The bytes are valid until Done, which must be
// called once for each message. Descriptors that come with the message are
// refused: the kernel closes them.
func (c *Conn) Recv() ([]byte, error) {
	if err := c.raw.Read(c.recvFn); err != nil {
		return nil, err
	}
	b, err := c.in[:c.n], c.recvErr
	switch {
	case err == nil && c.n == 0:
		err = io.EOF
	case err == nil && c.n > MaxMessage:
		err = ErrTooLarge
	}
	if err != nil {
		c.Done()
		return nil, err
	}
	return b, nil
}

// Done gives the buffer of the last message back.
func (c *Conn) Done() {
	if c.in != nil {
		buffers.Put(c.in)
		c.in = nil
	}
}

// RecvFDs is Recv for a message that may carry descriptors, which the caller
// owns. The bytes are the caller's too.
func (c *Conn) RecvFDs() ([]byte, []*os.File, error) {
	buf := buffers.Get().(*[MaxMessage + 1]byte)
	defer buffers.Put(buf)
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, flags, _, err := c.sock.ReadMsgUnix(buf[:], oob)
	if err != nil {
		return nil, nil, err
	}
	files, err := filesOf(oob[:oobn])
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case n > MaxMessage || flags&unix.MSG_TRUNC != 0:
		err = ErrTooLarge
	case flags&unix.MSG_CTRUNC != 0 && len(files) < maxFDs: // there was room for one more
		err = fmt.Errorf("cannot take more than %d of the descriptors that the message carries: %w", len(files), unix.EMFILE)
	case flags&unix.MSG_CTRUNC != 0:
		err = fmt.Errorf("the message carries more than %d descriptors", maxFDs)
	}
	if err != nil {
		CloseAll(files)
		return nil, nil, err
	}
	return append([]byte(nil), buf[:n]...), files, nil
}

func filesOf(oob []byte) ([]*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("cannot read the descriptors: %w", err)
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // credentials and such
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// CloseAll closes the files.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Send sends one message.
func (c *Conn) Send(b []byte) error {
	if len(b) > MaxMessage {
		return ErrTooLarge
	}
	c.out = b
	err := c.raw.Write(c.sendFn)
	c.out = nil
	if err != nil {
		return err
	}
	return c.sendErr
}

// TrySend sends one message if the other end has room for it, and fails at
// once if it has not.
func (c *Conn) TrySend(b []byte) error {
	var werr error
	err := c.raw.Control(func(fd uintptr) {
		_, werr = unix.Write(int(fd), b)
	})
	return errors.Join(err, werr)
}

// SendFDs sends one message with descriptors, which stay the caller's.
func (c *Conn) SendFDs(b []byte, files ...*os.File) error {
	if len(b) > MaxMessage {
		return ErrTooLarge
	}
	if len(files) == 0 {
		return c.Send(b)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	_, _, err := c.sock.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	return err
}

// SetDeadline bounds all that is sent and received from now on.
func (c *Conn) SetDeadline(t time.Time) error { return c.sock.SetDeadline(t) }

// SetReadDeadline bounds all that is received from now on.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.sock.SetReadDeadline(t) }

// SetWriteDeadline bounds all that is sent from now on.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.sock.SetWriteDeadline(t) }

// Close closes the connection.
func (c *Conn) Close() error { return c.sock.Close() }

// SyscallConn returns the socket underneath.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.sock.SyscallConn() }
