package pager

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"polder/far"
	"polder/internal/fdpass"
	"polder/pages"
	"polder/pages/internal/wire"
	"polder/pages/region"
	"polder/pool/pooltest"
)

// oneByOne maps a region, reads which pages to touch, and says what their first byte was, plus one if it was written to.
// It goes on while a page is read that is touched "besides".
func oneByOne(addr string) error {
	r, err := region.Map(context.Background(), addr, 4*MinLocal, region.Config{Local: MinLocal})
	if err != nil {
		return err
	}
	defer r.Close()
	fmt.Println("ready")
	for {
		var what string
		var page int
		if _, err := fmt.Scanln(&what, &page); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		b := &r.Bytes()[page*pages.Size]
		switch what {
		case "besides":
			go func() { fmt.Println(*b) }()
			continue
		case "write":
			*b++
		}
		fmt.Println(*b)
	}
}

// client is a process that touches one page at a time, of a mapping that a test looks into.
type client struct {
	*testing.T
	m     *mapping
	in    io.Writer
	lines chan string
}

// newClient starts a client. The test does for its mapping what Server.enter does.
func newClient(t *testing.T) *client {
	return newClientOver(t, far.NewMemStore(256<<10, 64))
}

func newClientOver(t *testing.T, store far.Store) *client {
	h, err := far.NewHeap(store, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := pages.Open(h, pages.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Volumes: volumes, Size: 64 << 20, Frames: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pager")
	lis, err := fdpass.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	// A signal has who waits for a page try again, and Go's scheduler sends those to its threads.
	cmd.Env = append(os.Environ(), "ONE_BY_ONE=unix:"+path, "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=2")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sock, err := lis.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := fdpass.New(sock)
	if err != nil {
		t.Fatal(err)
	}
	b, files, err := conn.RecvFDs()
	if err != nil {
		t.Fatal(err)
	}
	a, err := wire.ParseAttach(b)
	if err != nil {
		t.Fatal(err)
	}
	number, _, err := s.admit(a)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.newMapping(conn, a, nil, files, number)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- m.run(a) }()
	c := &client{T: t, m: m, in: in, lines: make(chan string, 16)}
	go func() {
		defer close(c.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may wait for a page
		for range c.lines {
		}
		_ = cmd.Wait()
		<-ended
		s.leave(a, nil, nil)
		if err := errors.Join(lis.Close(), s.Close(), h.Close()); err != nil {
			t.Error(err)
		}
	})
	c.says("ready") // so the mapping has begun, and ends after what the test does with it
	return c
}

// touch has the client read from a page or write to it, which may wait.
func (c *client) touch(what string, page int64) {
	c.Helper()
	if _, err := fmt.Fprintln(c.in, what, page); err != nil {
		c.Fatal(err)
	}
}

// says waits until what the client was to do is done.
func (c *client) says(want string) {
	c.Helper()
	select {
	case got := <-c.lines:
		if got != want {
			c.Errorf("the client found %q, want %q", got, want)
		}
	case <-time.After(hangs):
		c.Error("the client waits for a page for good")
	}
}

// hangs is when a client or a pin is taken to wait for good.
const hangs = 20 * time.Second

// claimed takes a frame for a page, as who is about to load it does.
func (c *client) claimed(page int64) uint32 {
	c.Helper()
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	at, ok := c.m.claim(page)
	if !ok {
		c.Fatal("there is no free frame")
	}
	return at
}

// wanted waits until somebody needs the page of a frame that another has.
func (c *client) wanted(at uint32) {
	c.Helper()
	pooltest.Eventually(c.T, "somebody waits for the page", func() bool {
		c.m.mu.Lock()
		defer c.m.mu.Unlock()
		return c.m.frames[at].want
	})
}

// filled is a page that begins so.
func filled(first byte) []byte {
	b := make([]byte, pages.Size)
	b[0] = first
	return b
}

// TestWhoWritesToAPageThatIsBeingPlacedGoesOn: it is in the memory already, protected, and its frame is loading still.
func TestWhoWritesToAPageThatIsBeingPlacedGoesOn(t *testing.T) {
	c := newClient(t)
	row := []uint32{c.claimed(3)}
	err := c.m.copyIn(row, filled(7), false)
	c.touch("write", 3)
	c.wanted(row[0])
	c.m.mu.Lock()
	c.m.placed(row, false, err)
	c.m.mu.Unlock()
	c.says("8")
}

// evicting has the client read a page that begins so, and takes it to be evicted.
func (c *client) evicting(page int64, first byte) uint32 {
	c.Helper()
	if err := c.m.volume.Write(c.Context(), filled(first), page*pages.Size); err != nil {
		c.Fatal(err)
	}
	c.touch("read", page)
	c.says(fmt.Sprint(first))
	pooltest.Eventually(c.T, "the page is placed", func() bool { // the client may have read it before
		c.m.mu.Lock()
		defer c.m.mu.Unlock()
		return c.m.frames[c.m.index[page]-1].state == clean
	})
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	at, chosen := c.m.index[page]-1, new(chosen)
	c.m.frames[at].used = false
	if c.m.policy.next(); !c.m.take(chosen, at, false) || chosen.dropped != 1 {
		c.Fatalf("the frame cannot be taken: %+v", c.m.frames[at])
	}
	return at
}

// TestWhoWritesToAPageThatIsBeingDroppedGoesOn: it is protected, and then it is gone.
func TestWhoWritesToAPageThatIsBeingDroppedGoesOn(t *testing.T) {
	c := newClient(t)
	at := c.evicting(5, 41)
	c.touch("write", 5)
	c.wanted(at)
	c.m.drop([]uint32{at})
	c.says("42")
}

// pinned has a page pinned, which waits for the frame at.
func (c *client) pinned(page int64, at uint32) (done <-chan error) {
	c.Helper()
	pinned := make(chan error, 1)
	c.m.helpers.Go(func() {
		pinned <- c.m.pin(wire.Request{ID: 1, Op: wire.OpPin, Off: uint64(page) * pages.Size, N: pages.Size})
	})
	c.wanted(at)
	return pinned
}

func (c *client) pins(done <-chan error) {
	c.Helper()
	select {
	case err := <-done:
		if err != nil {
			c.Error(err)
		}
	case <-time.After(hangs):
		c.Error("the pin waits for a page for good")
	}
}

// TestAPinWaitsUntilAPageIsPlaced that another brings.
func TestAPinWaitsUntilAPageIsPlaced(t *testing.T) {
	c := newClient(t)
	at := c.claimed(9)
	done := c.pinned(9, at)
	c.m.place([]uint32{at}, filled(1), false)
	c.pins(done)
}

// TestAPinWaitsUntilAPageIsDropped, and brings it again.
func TestAPinWaitsUntilAPageIsDropped(t *testing.T) {
	c := newClient(t)
	at := c.evicting(9, 1)
	done := c.pinned(9, at)
	c.m.drop([]uint32{at})
	c.pins(done)
}

// TestAPinWaitsUntilAPageIsWritten that was to be evicted, and then stays.
func TestAPinWaitsUntilAPageIsWritten(t *testing.T) {
	c := newClient(t)
	at := c.evicting(9, 1)
	done := c.pinned(9, at)
	if freed := c.m.dropWritten([]uint32{at}, 1); freed != 0 {
		t.Errorf("%d pages were dropped that somebody waits for", freed)
	}
	c.pins(done)
}

// TestAPinThatWaitsForAFrameIsToldThatItsPageFails.
func TestAPinThatWaitsForAFrameIsToldThatItsPageFails(t *testing.T) {
	c := newClient(t)
	for page := range int64(len(c.m.frames)) {
		c.claimed(page)
	}
	const page = 3 * MinLocal / pages.Size
	done := make(chan error, 1)
	c.m.helpers.Go(func() {
		done <- c.m.pin(wire.Request{ID: 1, Op: wire.OpPin, Off: page * pages.Size, N: pages.Size})
	})
	pooltest.Eventually(t, "it waits for a frame", func() bool {
		c.m.mu.Lock()
		defer c.m.mu.Unlock()
		return c.m.pinned > 0
	})
	c.m.poison(page, errLost)
	select {
	case err := <-done:
		if !errors.Is(err, errPoisoned) {
			t.Errorf("got %v, want %v", err, errPoisoned)
		}
	case <-time.After(hangs):
		t.Error("the pin waits for a frame for good")
	}
}
