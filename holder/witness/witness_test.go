package witness_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"polder/holder"
	"polder/holder/witness"
	"polder/internal/listen"
	"polder/internal/testcert"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long what should happen at all may take.
const patience = time.Minute

// server is a witness in this process, which can be stopped and started again.
type server struct {
	t    *testing.T
	dir  string
	addr string
	s    *witness.Server
	end  chan error
}

func start(t *testing.T, cfg witness.Config) *server {
	t.Helper()
	w := &server{t: t, dir: t.TempDir()}
	cfg.Dir = w.dir
	w.addr = "unix:" + filepath.Join(w.dir, "socket")
	w.start(cfg)
	t.Cleanup(w.stop)
	return w
}

func (w *server) start(cfg witness.Config) {
	w.t.Helper()
	cfg.Dir, cfg.Logger = w.dir, slog.New(slog.NewTextHandler(io.Discard, nil))
	s, err := witness.NewServer(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	os.Remove(w.addr[len("unix:"):])
	lis, err := net.Listen("unix", w.addr[len("unix:"):])
	if err != nil {
		w.t.Fatal(err)
	}
	w.s, w.end = s, make(chan error, 1)
	go func() { w.end <- s.Serve(lis) }()
}

func (w *server) stop() {
	w.t.Helper()
	if w.s == nil {
		return
	}
	if err := w.s.Close(); err != nil {
		w.t.Error(err)
	}
	if err := <-w.end; err != nil {
		w.t.Error(err)
	}
	w.s = nil
}

// forget has the witness lose its state.
func (w *server) forget() {
	w.t.Helper()
	w.stop()
	if err := os.RemoveAll(filepath.Join(w.dir, "log")); err != nil {
		w.t.Fatal(err)
	}
	w.start(witness.Config{})
}

// startSet starts n witnesses that are a set.
func startSet(t *testing.T, n int) ([]*server, []string) {
	t.Helper()
	var all []*server
	var addrs []string
	for range n {
		w := start(t, witness.Config{})
		all, addrs = append(all, w), append(addrs, w.addr)
	}
	if _, err := newClient(t, addrs...).Change(in(t), addrs); err != nil {
		t.Fatal(err)
	}
	return all, addrs
}

func newClient(t *testing.T, addrs ...string) *witness.Client {
	t.Helper()
	c, err := witness.NewClient(witness.ClientConfig{Witnesses: addrs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newRegister(t *testing.T, c *witness.Client, name string) *witness.Register {
	t.Helper()
	r, err := c.Register(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func in(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// shortly is a time within which something is not expected to happen.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func swap(t *testing.T, r holder.Register, version uint64, value string) {
	t.Helper()
	if got, err := r.Swap(in(t), version, []byte(value)); err != nil || got != version+1 {
		t.Fatalf("Swap(%d, %q) = %d, %v, want %d", version, value, got, err, version+1)
	}
}

func want(t *testing.T, r holder.Register, value string, version uint64) {
	t.Helper()
	got, v, err := r.Read(in(t))
	if err != nil || string(got) != value || v != version {
		t.Fatalf("Read() = %q, %d, %v, want %q, %d", got, v, err, value, version)
	}
}

func TestARegisterChangesByCompareAndSwap(t *testing.T) {
	_, addrs := startSet(t, 3)
	a := newRegister(t, newClient(t, addrs...), "heap/0")
	b := newRegister(t, newClient(t, addrs[1]), "heap/0") // learns of the others
	want(t, a, "", 0)
	swap(t, a, 0, "one")
	want(t, b, "one", 1)
	swap(t, b, 1, "two")
	if _, err := a.Swap(in(t), 1, []byte("other")); !errors.Is(err, holder.ErrChanged) {
		t.Fatalf("changing version 1 when there is version 2 = %v, want ErrChanged", err)
	}
	want(t, a, "two", 2)
	swap(t, a, 2, "")
	swap(t, a, 3, strings.Repeat("x", holder.MaxValue))
	want(t, b, strings.Repeat("x", holder.MaxValue), 4)
	if _, err := a.Swap(in(t), 4, make([]byte, holder.MaxValue+1)); !errors.Is(err, holder.ErrTooLarge) {
		t.Fatalf("a value of more than MaxValue = %v, want ErrTooLarge", err)
	}
	want(t, newRegister(t, newClient(t, addrs...), "heap/1"), "", 0)
}

func TestAMajorityIsEnoughAndLessIsNot(t *testing.T) {
	ws, addrs := startSet(t, 3)
	c := newClient(t, addrs...)
	r := newRegister(t, c, "r")
	swap(t, r, 0, "one")
	ws[0].stop()
	swap(t, r, 1, "two")
	ws[1].stop()
	if _, err := r.Swap(shortly(t), 2, []byte("three")); !errors.Is(err, holder.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Swap without a majority = %v, want ErrUnknown since time was up", err)
	}
	if _, _, err := r.Read(shortly(t)); err == nil || !strings.Contains(err.Error(), addrs[0]) {
		t.Fatalf("Read without a majority = %v, want an error that names %s", err, addrs[0])
	}
	other := newRegister(t, c, "other")
	if _, err := other.Swap(shortly(t), 0, []byte("x")); err == nil || errors.Is(err, holder.ErrUnknown) {
		t.Fatalf("Swap that nobody can have accepted = %v, want another error than ErrUnknown", err)
	}
	ws[0].start(witness.Config{})
	value, version, err := r.Read(in(t))
	if err != nil || fmt.Sprint(string(value), version) != "two2" && fmt.Sprint(string(value), version) != "three3" {
		t.Fatalf("Read() = %q, %d, %v, want two or three", value, version, err)
	}
	ws[1].start(witness.Config{})
	want(t, r, string(value), version)
}

func TestStateSurvivesTheRestartOfAll(t *testing.T) {
	ws, addrs := startSet(t, 3)
	swap(t, newRegister(t, newClient(t, addrs...), "r"), 0, "one")
	for _, w := range ws {
		w.stop()
	}
	for _, w := range ws {
		w.start(witness.Config{})
	}
	want(t, newRegister(t, newClient(t, addrs...), "r"), "one", 1)
}

func TestAWitnessThatLostItsStateHasNoVote(t *testing.T) {
	ws, addrs := startSet(t, 3)
	c := newClient(t, addrs...)
	r := newRegister(t, c, "r")
	ws[0].stop()
	swap(t, r, 0, "one") // by the two others
	ws[0].start(witness.Config{})
	ws[1].forget()
	ws[2].stop()
	// One that has not seen it and one that has forgotten it.
	if value, version, err := r.Read(shortly(t)); err == nil {
		t.Fatalf("Read() = %q, %d of a witness that has not seen the change and one that has forgotten it", value, version)
	}
	if _, err := c.Change(shortly(t), addrs[:2]); err == nil {
		t.Fatal("two witnesses have become a set")
	}
	ws[2].start(witness.Config{})
	want(t, r, "one", 1)
	set, err := c.Change(in(t), addrs)
	if err != nil || set.Version != 2 {
		t.Fatalf("letting the witness in again = %v, %v, want set 2", set, err)
	}
	ws[2].stop()
	want(t, r, "one", 1)
	swap(t, r, 1, "two")
	ws[0].stop()
	ws[2].start(witness.Config{})
	want(t, newRegister(t, newClient(t, addrs...), "r"), "two", 2)
}

func TestThreeWitnessesReplaceThreeOthers(t *testing.T) {
	old, before := startSet(t, 3)
	c := newClient(t, before...)
	var regs []*witness.Register
	for i := range 20 {
		r := newRegister(t, c, fmt.Sprintf("r%d", i))
		swap(t, r, 0, fmt.Sprint(i))
		regs = append(regs, r)
	}
	var after []string
	for range 3 {
		after = append(after, start(t, witness.Config{}).addr)
	}
	tool := newClient(t, before...)
	for i, set := range [][]string{{before[0], before[1], before[2], after[0], after[1]}, {before[0], after[0], after[1]}, after} {
		if got, err := tool.Change(in(t), set); err != nil || got.Version != uint64(i+2) {
			t.Fatalf("Change = %v, %v, want set %d", got, err, i+2)
		}
		for i, r := range regs {
			want(t, r, fmt.Sprint(i), 1)
		}
	}
	for _, w := range old {
		w.stop()
	}
	for i, r := range regs {
		swap(t, r, 1, fmt.Sprint("new", i))
	}
}

// breakLog has every write to the witness's log fail from now on.
func breakLog(t *testing.T, dir string) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		path, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err != nil || !strings.HasPrefix(path, filepath.Join(dir, "log")+"/") {
			continue
		}
		n, err := strconv.Atoi(fd.Name())
		if err == nil {
			err = unix.Dup3(int(null.Fd()), n, unix.O_CLOEXEC)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAWitnessWhoseLogFailsAnswersNobody(t *testing.T) {
	ws, addrs := startSet(t, 3)
	r := newRegister(t, newClient(t, addrs...), "r")
	swap(t, r, 0, "one")
	breakLog(t, ws[0].dir)
	swap(t, r, 1, "two") // by the others
	if err := <-ws[0].end; err == nil || !strings.Contains(err.Error(), "cannot be a witness any more") {
		t.Errorf("Serve of a witness whose log has failed = %v", err)
	}
	if err := ws[0].s.Health(); err == nil {
		t.Error("it says that it is well")
	}
	swap(t, r, 2, "three")
	ws[0].s.Close() // says again what has failed
	ws[0].start(witness.Config{})
	ws[1].stop()
	want(t, newRegister(t, newClient(t, addrs...), "r"), "three", 3)
}

func TestAWitnessKeepsNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	long := func(t *testing.T) context.Context { // enough for the answer that it has when this is over
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		t.Cleanup(cancel)
		return ctx
	}
	var addrs []string
	for range 3 {
		addrs = append(addrs, start(t, witness.Config{Registers: 3, Bytes: 300 << 10}).addr)
	}
	c := newClient(t, addrs...)
	if _, err := c.Change(in(t), addrs); err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", holder.MaxValue)
	for i := range 2 {
		swap(t, newRegister(t, c, fmt.Sprint(i)), 0, big)
	}
	third := newRegister(t, c, "third")
	if _, err := third.Swap(long(t), 0, []byte(big)); err == nil || !strings.Contains(err.Error(), "it keeps at most") {
		t.Errorf("a value for which there is no room = %v", err)
	}
	for version := range uint64(5) { // what is replaced takes no room
		swap(t, newRegister(t, c, "0"), version+1, big)
	}
	swap(t, third, 0, "small")
	if _, err := newRegister(t, c, "fourth").Swap(long(t), 0, nil); err == nil || !strings.Contains(err.Error(), "as many as it keeps") {
		t.Errorf("a register for which there is no room = %v", err)
	}
}

func TestStrangersDoNotHinderAWitness(t *testing.T) {
	w := start(t, witness.Config{Clients: 4})
	path := strings.TrimPrefix(w.addr, "unix:")
	dial := func(what string) net.Conn {
		t.Helper()
		nc, err := net.Dial("unix", path)
		if err == nil {
			_, err = io.WriteString(nc, what)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		nc.SetDeadline(time.Now().Add(patience))
		return nc
	}
	greeting := "PLDRWIT\x01"
	closed := func(what string, nc net.Conn) {
		t.Helper()
		if _, err := io.Copy(io.Discard, nc); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want that it hangs up", what, err)
		}
	}
	for range 10 {
		dial("") // and says nothing
	}
	closed("another greeting", dial("GET / HTTP/1.1\r\n\r\n"))
	closed("a frame that is too long", dial(greeting+"\xff\xff\xff\xff\x00\x00\x00\x00"))
	closed("a damaged frame", dial(greeting+"\x02\x00\x00\x00\x00\x00\x00\x00ab"))
	dial(greeting + "\x02\x00") // and goes on no more
	c := newClient(t, w.addr)
	got := c.Greet(in(t), []string{w.addr})
	if got[0].Err != nil || got[0].ID == (witness.Identity{}) {
		t.Errorf("Greet = %+v", got)
	}
	gone := make(chan struct{}, 10)
	for range cap(gone) {
		nc := dial(greeting)
		go func() {
			_, _ = io.Copy(io.Discard, nc)
			gone <- struct{}{}
		}()
	}
	for i := range cap(gone) - 4 {
		select {
		case <-gone:
		case <-time.After(patience):
			t.Fatalf("of 10 connections where 4 may be, %d were hung up on", i)
		}
	}
}

func TestWitnessesUseTLS(t *testing.T) {
	ca, other := testcert.NewAuthority(t, "ours"), testcert.NewAuthority(t, "another")
	load := func(ca *testcert.Authority) *listen.Certificates {
		cert, key := ca.Issue(t, "witness")
		files := listen.Files{Cert: cert, Key: key}
		files.CA[listen.Node] = ca.File
		c, err := listen.Load(files)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	certs := load(ca)
	var addrs []string
	for range 3 {
		s, err := witness.NewServer(witness.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		lis, err := listen.Security{Certificates: certs}.Listen(listen.Node, "listen", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		end := make(chan error, 1)
		go func() { end <- s.Serve(lis) }()
		t.Cleanup(func() {
			if err := errors.Join(s.Close(), <-end); err != nil {
				t.Error(err)
			}
		})
		addrs = append(addrs, lis.Addr().String())
	}
	client := func(dial func() *tls.Config) *witness.Client {
		c, err := witness.NewClient(witness.ClientConfig{Witnesses: addrs, TLS: dial})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	c := client(certs.Dial)
	if _, err := c.Change(in(t), addrs); err != nil {
		t.Fatal(err)
	}
	swap(t, newRegister(t, c, "r"), 0, "one")
	for name, dial := range map[string]func() *tls.Config{"no certificate": nil, "one of another authority": load(other).Dial} {
		if value, _, err := newRegister(t, client(dial), "r").Read(shortly(t)); err == nil {
			t.Errorf("with %s the register is read: %q", name, value)
		}
	}
}

func TestWhatIsUnderWayEndsWithTheRegisterAndTheClient(t *testing.T) {
	ws, addrs := startSet(t, 3)
	c := newClient(t, addrs...)
	r := newRegister(t, c, "r")
	swap(t, r, 0, "one")
	for _, w := range ws {
		w.stop()
	}
	for what, end := range map[string]func() error{"the register": r.Close, "the client": c.Close} {
		use := newRegister(t, c, "other")
		if what == "the register" {
			use = r
		}
		done := make(chan error, 1)
		go func() {
			_, _, err := use.Read(context.Background())
			done <- err
		}()
		if err := end(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, holder.ErrClosed) {
			t.Errorf("a read under way when %s is closed = %v, want ErrClosed", what, err)
		}
	}
}
