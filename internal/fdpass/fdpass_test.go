package fdpass

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of a connection.
func pair(t *testing.T) (client, server *Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = Dial(path); err != nil {
		t.Fatal(err)
	}
	sock, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	if server, err = New(sock); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestMessagesKeepTheirBoundaries(t *testing.T) {
	c, s := pair(t)
	for _, n := range []int{1, 7, MaxMessage} {
		want := bytes.Repeat([]byte{byte(n)}, n)
		if err := c.Send(want); err != nil {
			t.Fatal(err)
		}
		got, err := s.Recv()
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes: got %d, %v", n, len(got), err)
		}
		s.Done()
	}
	if err := c.Send(make([]byte, MaxMessage+1)); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("a message too large: got %v, want %v", err, ErrTooLarge)
	}
	c.Close()
	if _, err := s.Recv(); err != io.EOF {
		t.Fatalf("after the other end has closed: got %v, want %v", err, io.EOF)
	}
}

func TestDescriptorsArrive(t *testing.T) {
	c, s := pair(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := c.SendFDs([]byte("x"), f); err != nil {
		t.Fatal(err)
	}
	_, files, err := s.RecvFDs()
	if err != nil || len(files) != 1 {
		t.Fatalf("got %d files, %v, want 1", len(files), err)
	}
	defer CloseAll(files)
	if _, err := files[0].Write([]byte("through")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || string(got) != "through" {
		t.Fatalf("got %q, %v", got, err)
	}
	// Where none are expected, the kernel closes them, and the message arrives.
	if err := c.SendFDs([]byte("y"), f); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Recv(); err != nil || string(got) != "y" {
		t.Fatalf("got %q, %v", got, err)
	}
	s.Done()
}

// TestDescriptorsThatCannotBeTakenAreSaid: either the message carries too many, or this process has too many files
// open. Those that came are closed.
func TestDescriptorsThatCannotBeTakenAreSaid(t *testing.T) {
	c, s := pair(t)
	send := func(n int) {
		t.Helper()
		if err := c.SendFDs([]byte("x"), slices.Repeat([]*os.File{os.Stdin}, n)...); err != nil {
			t.Fatal(err)
		}
	}
	free := func() int {
		t.Helper()
		fd, err := unix.Dup(0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		return fd
	}
	send(maxFDs + 1)
	if _, _, err := s.RecvFDs(); err == nil || errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "carries more than 8") {
		t.Errorf("a message with %d descriptors: got %v, want it to say how many it may carry", maxFDs+1, err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	first := free()
	for room := range 2 {
		send(2)
		few := unix.Rlimit{Cur: uint64(first + room), Max: limit.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
			t.Fatal(err)
		}
		_, _, err := s.RecvFDs()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("two descriptors with room for %d: got %v, want %v", room, err, unix.EMFILE)
		}
		if got := free(); got != first {
			t.Errorf("the first free descriptor is %d, want %d", got, first)
		}
	}
}

func TestPeerIsThisProcess(t *testing.T) {
	_, s := pair(t)
	p, err := s.Peer()
	if err != nil || p.PID != os.Getpid() || p.UID != os.Getuid() {
		t.Fatalf("got %+v, %v, want pid %d, uid %d", p, err, os.Getpid(), os.Getuid())
	}
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
}

// TestListenTakesOverWhatIsDead, and nothing else: a socket that somebody serves, of
// whichever type, and a file stay as they are.
func TestListenTakesOverWhatIsDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	types := map[string]func(string, os.FileMode) (*net.UnixListener, error){"messages": Listen, "stream": ListenStream}
	for first, listen := range types {
		for second, again := range types {
			l, err := listen(path, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			if other, err := again(path, 0o600); err == nil {
				other.Close()
				t.Errorf("%s took over a socket of %s that is served", second, first)
			} else if !strings.Contains(err.Error(), "served by another process") {
				t.Errorf("%s, where %s is served: got %v, want it to say so", second, first, err)
			}
			l.SetUnlinkOnClose(false)
			l.Close() // as if its process had died
			l, err = again(path, 0o640)
			if err != nil {
				t.Fatalf("%s, where %s has died: %v", second, first, err)
			}
			if st, err := os.Stat(path); err != nil || st.Mode() != os.ModeSocket|0o640 {
				t.Errorf("got %v, %v, want a socket with the permissions 0640", st.Mode(), err)
			}
			l.Close()
		}
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("where there is a file: got %v, %v, want it to say so", l, err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file: got %q, %v", b, err)
	}
}

// TestOneOfTwoTakesOverWhatIsDead: of those who listen at one instant where a process has
// died, one does, and can be reached.
func TestOneOfTwoTakesOverWhatIsDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for range 100 {
		dead, err := Listen(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		dead.Close()
		var start, done sync.WaitGroup
		start.Add(1)
		var listeners [2]*net.UnixListener
		for i := range listeners {
			done.Go(func() {
				start.Wait()
				listeners[i], _ = Listen(path, 0o600)
			})
		}
		start.Done()
		done.Wait()
		l := listeners[0]
		if l == nil {
			l = listeners[1]
		} else if listeners[1] != nil {
			t.Fatal("both listen")
		}
		if l == nil {
			t.Fatal("nobody listens")
		}
		c, err := Dial(path)
		if err != nil {
			t.Fatalf("who listens cannot be reached: %v", err)
		}
		c.Close()
		l.Close()
	}
}

// TestListenWaitsForItsTurn, but not for ever.
func TestListenWaitsForItsTurn(t *testing.T) {
	dir := t.TempDir()
	defer func(d time.Duration) { turnTime = d }(turnTime)
	turnTime = 20 * time.Millisecond
	held, err := takeTurn(dir)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(filepath.Join(dir, "s"), 0o600); err == nil || !strings.Contains(err.Error(), "cannot lock the directory") {
		t.Errorf("while the directory is locked: got %v, %v, want it to say so", l, err)
	}
	turnTime = time.Minute
	listening := make(chan error, 1)
	go func() {
		l, err := Listen(filepath.Join(dir, "s"), 0o600)
		if err == nil {
			l.Close()
		}
		listening <- err
	}()
	held.Close()
	if err := <-listening; err != nil {
		t.Errorf("once it is not: %v", err)
	}
}

// TestRecycledPidIsAnotherProcess is the start-time defence, on a /proc that
// says what the test wants.
func TestRecycledPidIsAnotherProcess(t *testing.T) {
	proc := t.TempDir()
	if err := os.Mkdir(filepath.Join(proc, "42"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(start int) {
		t.Helper()
		// The command may hold spaces and parentheses.
		stat := fmt.Sprintf("42 (a) b (c) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0", start)
		if err := os.WriteFile(filepath.Join(proc, "42", "stat"), []byte(stat), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1000)
	start, err := StartTime(proc, 42)
	if err != nil || start != 1000 {
		t.Fatalf("start time: got %d, %v, want 1000", start, err)
	}
	if !Alive(proc, 42, start) {
		t.Fatal("the process is said to be dead")
	}
	write(2000)
	if Alive(proc, 42, start) {
		t.Fatal("a later process with the same pid passes for the first one")
	}
	if Alive(proc, 43, start) {
		t.Fatal("a process that does not exist is alive")
	}
	for _, bad := range []string{"", "42", "42 (x) S 1"} {
		if err := os.WriteFile(filepath.Join(proc, "42", "stat"), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := StartTime(proc, 42); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
	self, err := StartTime("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenProcess(os.Getpid(), self+1); !errors.Is(err, unix.ESRCH) {
		t.Fatalf("this pid with another start time: got %v, want %v", err, unix.ESRCH)
	}
}

func TestWatcherTellsOfDeathAtOnce(t *testing.T) {
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := StartTime("/proc", cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	open := func() *os.File {
		t.Helper()
		f, err := OpenProcess(cmd.Process.Pid, start)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	died := make(chan struct{})
	if _, err := w.Watch(open(), func() { close(died) }); err != nil {
		t.Fatal(err)
	}
	stop, err := w.Watch(open(), func() { t.Error("a watch that was ended told of the death") })
	if err != nil {
		t.Fatal(err)
	}
	stop()
	stop()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-died
	_ = cmd.Wait()
	w.Close()
	if _, err := w.Watch(must(os.Open(os.DevNull)), func() {}); err == nil {
		t.Fatal("a closed watcher watches")
	}
}

func must(f *os.File, err error) *os.File {
	if err != nil {
		panic(err)
	}
	return f
}
