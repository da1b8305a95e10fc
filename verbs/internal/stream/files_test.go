package stream

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"polder/verbs"
)

// newFile makes a file that holds content.
func newFile(t testing.TB, content string) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "file")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	return f
}

// taken is a file that has come.
type taken struct {
	f    *os.File
	body string
}

// hostileServer answers one client by hand: with frames, and files sent beside them.
type hostileServer struct {
	t  testing.TB
	nc *net.UnixConn
	n  uint32
}

func (s *hostileServer) send(b []byte, files ...*os.File) {
	s.t.Helper()
	if _, err := writeFiles(s.nc, b, files); err != nil {
		s.t.Fatal(err)
	}
}

func (s *hostileServer) frame(t frameType, body []byte) []byte {
	s.n++
	return appendFrame(nil, t, body, s.n-1)
}

// byHand connects a Conn, which puts the files that come into the channel, to a peer
// made by hand.
func byHand(t *testing.T) (*testConn, *hostileServer, <-chan taken) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		nc, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = nc.(*net.UnixConn)
	}
	s := &hostileServer{t: t, nc: ends[1]}
	t.Cleanup(func() { s.nc.Close() })
	hello := ourHello.encode()
	s.send(hello[:])
	nc, err := NewFiles(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan taken, 8)
	c := &testConn{}
	c.TakeFile = func(f *os.File, body []byte) error {
		came <- taken{f, string(body)}
		return nil
	}
	cfg, err := Config{}.Normalized()
	if err != nil {
		t.Fatal(err)
	}
	admit := func() (func(), error) { return func() {}, nil }
	if err := c.Establish(patient(t), c, newDevice(t), nc, cfg, nil, admit); err != nil {
		t.Fatal(err)
	}
	return c, s, came
}

// wantFile takes the next file and checks what it holds.
func wantFile(t *testing.T, came <-chan taken, content, body string) {
	t.Helper()
	select {
	case got := <-came:
		defer got.f.Close()
		b, err := io.ReadAll(io.NewSectionReader(got.f, 0, 1<<20))
		if err != nil || string(b) != content || got.body != body {
			t.Errorf("got a file with %q, announced as %q, %v; want %q, %q", b, got.body, err, content, body)
		}
	case <-patient(t).Done():
		t.Fatal("no file has come")
	}
}

func TestFilesComeInOrderBetweenPackets(t *testing.T) {
	c, s, came := byHand(t)
	for i := range 3 {
		s.send(s.frame(framePing, nil))
		s.send(s.frame(frameFile, []byte{byte('a' + i)}), newFile(t, "content"))
	}
	for _, body := range []string{"a", "b", "c"} {
		wantFile(t, came, "content", body)
	}
	// A file may come with bytes before its frame, and two with one byte.
	s.send(s.frame(framePing, nil), newFile(t, "1"), newFile(t, "2"))
	s.send(append(s.frame(frameFile, nil), s.frame(frameFile, nil)...))
	wantFile(t, came, "1", "")
	wantFile(t, came, "2", "")
	if err := c.Err(); err != nil {
		t.Errorf("the connection has ended: %v", err)
	}
}

func TestFilesThatNobodyAnnouncedCutTheConnection(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(s *hostileServer)
		want error
	}{
		"a frame without a file": {func(s *hostileServer) { s.send(s.frame(frameFile, nil)) }, errNoFile},
		"three files in a message": {func(s *hostileServer) {
			s.send(s.frame(framePing, nil), newFile(s.t, ""), newFile(s.t, ""), newFile(s.t, ""))
		}, errFiles},
		"three files, one by one": {func(s *hostileServer) {
			for range 3 {
				s.send(s.frame(framePing, nil), newFile(s.t, ""))
			}
		}, errFiles},
	} {
		t.Run(name, func(t *testing.T) {
			conn, s, _ := byHand(t)
			before := openFiles(t)
			c.do(s)
			select {
			case <-conn.Done():
			case <-patient(t).Done():
				t.Fatal("the connection is not cut")
			}
			if err := conn.Err(); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if err := conn.dev.Close(); err != nil { // waits for its goroutines
				t.Fatal(err)
			}
			if after := openFiles(t); after > before+3 { // the sender's own
				t.Errorf("%d files are open, %d were before: what came was not closed", after, before)
			}
		})
	}
}

// openFiles is how many descriptors this process has.
func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func TestAFileThatIsSentComesAmongWrites(t *testing.T) {
	server, client := newDevice(t), newDevice(t)
	l := newUnixListener(t, server, Config{})
	cfg, err := Config{}.Normalized()
	if err != nil {
		t.Fatal(err)
	}
	sock, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: l.Addr(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := NewFiles(sock)
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan taken, 2)
	c := &testConn{}
	c.TakeFile = func(f *os.File, body []byte) error {
		came <- taken{f, string(body)}
		return nil
	}
	if err := c.Establish(patient(t), c, client, nc, cfg, nil, func() (func(), error) { return func() {}, nil }); err != nil {
		nc.Close()
		t.Fatal(err)
	}
	pd, err := client.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := client.CreateCQ(verbs.CQInit{Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = c.Connect(patient(t), qp, nil) }() // so that the server has the connection
	req, err := l.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"first", "second"} {
		f := newFile(t, content)
		if err := req.Conn().(*testConn).SendFile(f, []byte(content)); err != nil {
			t.Fatal(err)
		}
		f.Close() // it stays the sender's
		wantFile(t, came, content, content)
	}
	if err := req.Reject("that was all"); err != nil {
		t.Fatal(err)
	}
	// Over TCP there is no way.
	tcp := newListener(t, server, Config{})
	if err := dial(t, client, tcp).SendFile(newFile(t, ""), nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("over TCP: got %v, want %v", err, verbs.ErrInvalid)
	}
}
