package stream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"polder/internal/brief"
	"polder/verbs"
)

// A file travels over a Unix socket with the bytes of a FILE frame, or with earlier bytes: the receiver gets it from
// the socket no later than the frame's first byte.

// maxFiles is how many files may wait for their frames at the receiving end, and how
// many one message of the socket may carry.
const maxFiles = 2

var (
	errNoFile = errors.New("a frame says that a file comes with it, and none has come")
	errFiles  = errors.New("more files come than may")
)

// SendFile sends a file and body to the peer, at the other end of a Unix socket. The file stays the caller's, who
// must not send more than a few. It does not block.
func (c *Conn) SendFile(f *os.File, body []byte) error {
	if !c.out.takesFiles() {
		return fmt.Errorf("cannot send a file to %s: it is not at a Unix socket: %w", c.RemoteAddr(), verbs.ErrInvalid)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot send a file: %w", err)
	}
	if err := c.out.add(frameFile, body, os.NewFile(uintptr(fd), f.Name())); err != nil {
		return fmt.Errorf("cannot send a file: %w", err)
	}
	c.Flush()
	return nil
}

// dropFiles closes what has not been sent.
func (o *outbox) dropFiles() {
	o.mu.Lock()
	defer o.mu.Unlock()
	closeAll(o.files)
	o.files = nil
}

// filesWriter is a *net.UnixConn.
type filesWriter interface {
	WriteMsgUnix(b, oob []byte, addr *net.UnixAddr) (n, oobn int, err error)
}

// takesFiles reports whether files can be sent to the peer.
func (o *outbox) takesFiles() bool {
	if o.raw == nil {
		return false
	}
	_, ok := o.raw.Socket.(filesWriter)
	return ok
}

// writeFiles writes to the socket, with files.
func writeFiles(sock filesWriter, b []byte, files []*os.File) (n int, err error) {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	n, _, err = sock.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	return n, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// takeFile handles a FILE frame, in the reader.
func (c *Conn) takeFile(body []byte) error {
	from, ok := c.nc.(*Files)
	if !ok || c.TakeFile == nil {
		return errFiles
	}
	if len(from.came) == 0 {
		return errNoFile
	}
	f := from.came[0]
	from.came = from.came[1:]
	return c.TakeFile(f, body)
}

// Files is a Unix socket that receives the files that come with its bytes; without it the kernel would close them.
// Only one goroutine may read.
type Files struct {
	*brief.Conn
	raw  syscall.RawConn
	do   func(fd uintptr) bool // f.read, made once
	buf  []byte                // of the present read
	n    int
	err  error
	msg  message
	came []*os.File
}

// NewFiles makes a Files of a connected stream socket.
func NewFiles(nc *net.UnixConn) (*Files, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot get at the socket: %w", err)
	}
	c, err := brief.New(nc)
	if err != nil {
		return nil, err
	}
	f := &Files{Conn: c, raw: raw}
	f.do = f.read
	return f, nil
}

// Read implements net.Conn.
//
// Hot path: it allocates only when a file comes.
func (f *Files) Read(b []byte) (int, error) {
	f.buf, f.n, f.err = b, 0, nil
	if err := f.raw.Read(f.do); err != nil {
		return 0, err
	}
	f.buf = nil
	return f.n, f.err
}

func (f *Files) read(fd uintptr) (done bool) {
	for {
		n, oob, truncated, errno := f.msg.receive(fd, f.buf)
		brief.Received(fd)
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		default:
			f.err = os.NewSyscallError("recvmsg", errno)
			return true
		}
		if len(oob) > 0 || truncated {
			if f.err = f.take(oob, truncated); f.err != nil {
				return true
			}
		}
		if f.n = n; n == 0 && len(f.buf) > 0 {
			f.err = io.EOF
		}
		return true
	}
}

// take takes the files of a message.
func (f *Files) take(oob []byte, truncated bool) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("cannot read what comes with the bytes: %w", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // credentials and such
		}
		for _, fd := range fds {
			f.came = append(f.came, os.NewFile(uintptr(fd), "received"))
		}
	}
	if truncated || len(f.came) > maxFiles {
		return errFiles
	}
	return nil
}

// drop closes the files that nobody has taken.
func (f *Files) drop() {
	closeAll(f.came)
	f.came = nil
}
