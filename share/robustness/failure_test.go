package robustness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"polder/share"
)

func TestWriterKilledAtEveryStepOfPut(t *testing.T) {
	dir, _ := keep(t, "memfd:1MiB", "")
	c := open(t, dir)
	steps := []struct {
		failpoint string
		visible   bool
	}{
		{"client.region-mapped", false},
		{"client.region-populated", false},
		{"client.page-filled", false},
		{"client.put-answered", true},
	}
	for _, step := range steps {
		fail := filepath.Join(t.TempDir(), "fail")
		if err := os.WriteFile(fail, []byte(step.failpoint+"\t1"), 0o600); err != nil {
			t.Fatal(err)
		}
		w := start(t, self(t, "writer", dir, "k", envFail+"="+fail))
		if w.ready() {
			t.Fatalf("%s: the writer was not killed", step.failpoint)
		}
		w.kill()
		until(t, "the dead writer is reaped", func() bool { return stats(t, c).Sessions == 1 })
		found, err := c.Exists(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if found != step.visible {
			t.Fatalf("%s: the key is visible: %v, want %v", step.failpoint, found, step.visible)
		}
		if found {
			wantValue(t, c, "k", "value of k")
			if err := c.Delete(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}
		untilEmpty(t, c)
	}
	t.Logf("writer killed at %d steps: nothing half visible, nothing leaked", len(steps))
}

// TestWriterKilledWithARequestInItsMailbox: whether the daemon has taken the
// request by then is chance, so the key may be there or not; but whole. When
// the daemon begins to look into the mailbox is chance, too, if the machine is
// busy: until then requests go by the socket, however many they are. So the
// writer goes on until one of them has gone by mailbox.
func TestWriterKilledWithARequestInItsMailbox(t *testing.T) {
	dir, _ := keep(t, "memfd:1MiB", "")
	c := open(t, dir)
	var keys []string
	for i := range 8 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	visible := 0
	for n := range 4 {
		fail := filepath.Join(t.TempDir(), "fail")
		if err := os.WriteFile(fail, fmt.Appendf(nil, "client.posted\t%d", n+1), 0o600); err != nil {
			t.Fatal(err)
		}
		w := start(t, self(t, "rewriter", dir, strings.Join(keys, " "), envFail+"="+fail))
		if w.ready() {
			t.Fatal("the writer says that it is ready, want it killed")
		}
		w.kill()
		if _, err := os.Stat(fail + killed); err != nil {
			t.Fatalf("the writer has ended otherwise than with a request in its mailbox: %v", err)
		}
		until(t, "the dead writer is reaped", func() bool { return stats(t, c).Sessions == 1 })
		gone := false
		for _, key := range keys {
			found, err := c.Exists(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if found && gone {
				t.Errorf("%s is there, and a key that was put before is not", key)
			}
			if gone = gone || !found; !found {
				continue
			}
			visible++
			wantValue(t, c, key, "value of "+key)
			if err := c.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		untilEmpty(t, c)
	}
	t.Logf("writer killed 4 times with a request in its mailbox: %d keys visible, all whole, nothing leaked", visible)
}

func TestReaderKilledWhileItHoldsViews(t *testing.T) {
	dir, _ := keep(t, "memfd:1MiB", "")
	c := open(t, dir)
	put(t, c, "a", "x")
	put(t, c, "b", "y")
	r := start(t, self(t, "reader", dir, "a b"))
	if !r.ready() {
		t.Fatal("the reader has failed")
	}
	if err := c.Delete(t.Context(), "a"); !errors.Is(err, share.ErrPinned) {
		t.Fatalf("a key that the reader has pinned: got %v, want %v", err, share.ErrPinned)
	}
	if got := stats(t, c).Views; got != 2 {
		t.Fatalf("got %d open views, want 2", got)
	}
	r.kill()
	until(t, "the dead reader's views are dropped", func() bool { return stats(t, c).Views == 0 })
	for _, key := range []string{"a", "b"} {
		if err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the pages are free", func() bool { return stats(t, c).Waiting == 0 })
}

func TestOwnerKilledWhileReadersHoldViews(t *testing.T) {
	dir, _ := keep(t, "memfd:1MiB", "")
	c := open(t, dir)
	w := start(t, self(t, "writer", dir, "a b"))
	if !w.ready() {
		t.Fatal("the writer has failed")
	}
	v, err := c.Get(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	w.kill()
	until(t, "the region is deferred", func() bool { return stats(t, c).Deferred == 1 })
	wantValue(t, c, "b", "value of b")
	for _, key := range []string{"a", "b"} {
		if err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	// Others take all the memory that they can get, and write to it.
	other := open(t, dir)
	for {
		p, err := other.Alloc(t.Context())
		if errors.Is(err, share.ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.Bytes() {
			p.Bytes()[i] = 0xff
		}
	}
	if got := string(v.Bytes()); got != "value of a" {
		t.Fatalf("the view of a dead owner's page: got %q", got)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	untilEmpty(t, c)
}

// TestDaemonKilledAtEveryMomentOfTheLog runs a program of puts, deletes, pins
// and views against a daemon that dies at the n-th moment of the log's work,
// for every n, and compares what is there in the end with what was
// acknowledged.
func TestDaemonKilledAtEveryMomentOfTheLog(t *testing.T) {
	for _, pool := range []string{"memfd:1MiB", "file:$DIR/pool:1MiB"} {
		kills, step := 0, 1
		if os.Getenv("TEST_SOAK") == "" {
			step = 3
		}
		for n := 1 + len(pool)%step; programWithDeath(t, pool, fmt.Sprintf("*\t%d", n), nil); n += step {
			kills++
		}
		if kills < 28/step {
			t.Errorf("%s: the daemon was killed %d times: the program does too little", pool, kills)
		}
		t.Logf("%s: daemon killed at %d moments of the log: state equal to what was acknowledged, nothing leaked, nothing freed early", pool, kills)
	}
}

// TestDaemonKilledAtEveryStepOfARequestByMailbox is the same, at the moments
// that only such requests come to.
func TestDaemonKilledAtEveryStepOfARequestByMailbox(t *testing.T) {
	kills := 0
	for _, step := range []string{"daemon.post-received", "daemon.post-committed"} {
		for n := 1; n <= 2; n++ {
			if !programWithDeath(t, "memfd:1MiB", fmt.Sprintf("%s\t%d", step, n), untilDeath) {
				t.Errorf("the daemon was not killed at the moment %d of %s", n, step)
			}
			kills++
		}
	}
	t.Logf("daemon killed at %d moments of requests by mailbox: state equal to what was acknowledged", kills)
}

// programWithDeath runs first, if it is not nil, and the program, and reports whether
// the daemon was killed.
func programWithDeath(t *testing.T, pool, where string, first func(t *testing.T, dir string, dead func() bool)) (died bool) {
	t.Run(strings.ReplaceAll(where, "\t", "@"), func(t *testing.T) {
		fail := filepath.Join(t.TempDir(), "fail")
		if err := os.WriteFile(fail, []byte(where), 0o600); err != nil {
			t.Fatal(err)
		}
		dir, _ := keep(t, pool, "", envFail+"="+fail)
		dead := func() bool {
			_, err := os.Stat(fail + killed)
			return err == nil
		}
		if first != nil {
			first(t, dir, dead)
		}
		program(t, dir)
		died = dead()
	})
	return died && !t.Failed()
}

// untilDeath puts and deletes until the daemon has been killed: how many requests go
// by mailbox depends on how busy the machine is.
func untilDeath(t *testing.T, dir string, dead func() bool) {
	ctx := context.Background()
	c := open(t, dir)
	until(t, "the daemon is killed", func() bool {
		put(t, c, "key", "value")
		wantValue(t, c, "key", "value")
		if err := c.Delete(ctx, "key"); err != nil {
			t.Fatal(err)
		}
		if found, err := c.Exists(ctx, "key"); err != nil || found {
			t.Fatalf("a key whose deletion was acknowledged: found %v, %v", found, err)
		}
		return dead()
	})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

func program(t *testing.T, dir string) {
	ctx := context.Background()
	w, r := open(t, dir), open(t, dir)
	for i := range 5 { // two regions
		put(t, w, fmt.Sprint("k", i), fmt.Sprint("v", i))
	}
	v, err := r.Get(ctx, "k1")
	if err != nil {
		t.Fatal(err)
	}
	pinned := true
	if err := r.Pin(ctx, "k0"); errors.Is(err, share.ErrUncertain) {
		pinned = false
	} else if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"k1", "k2"} {
		if err := r.Delete(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 { // in the page of k2, and not in that of k1
		put(t, w, fmt.Sprint("new", i), "another value")
	}
	if got := string(v.Bytes()); got != "v1" {
		t.Fatalf("the view of a deleted key: got %q, want v1", got)
	}
	for key, want := range map[string]string{"k0": "v0", "k3": "v3", "k4": "v4", "new0": "another value", "new2": "another value"} {
		wantValue(t, r, key, want)
		wantValue(t, w, key, want)
	}
	for _, key := range []string{"k1", "k2"} {
		if found, err := r.Exists(ctx, key); err != nil || found {
			t.Fatalf("%s, whose deletion was acknowledged: found %v, %v", key, found, err)
		}
	}
	if pinned {
		if err := w.Delete(ctx, "k0"); !errors.Is(err, share.ErrPinned) {
			t.Fatalf("a key whose pin was acknowledged: got %v, want %v", err, share.ErrPinned)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	observer := open(t, dir)
	until(t, "the writer is gone", func() bool {
		info := stats(t, observer)
		return info.Sessions == 2 && info.Deferred == info.Regions
	})
	if got := string(v.Bytes()); got != "v1" {
		t.Fatalf("the view after its owner left: got %q, want v1", got)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "the reader is gone", func() bool { return stats(t, observer).Sessions == 1 })
	for k, err := range observer.Keys(ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		if err := observer.Delete(ctx, k.Key); err != nil {
			t.Fatal(err)
		}
	}
	untilEmpty(t, observer)
	if err := observer.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFreshDaemonCannotTakeOverARunningOne(t *testing.T) {
	dir, _ := keep(t, "memfd:1MiB", "")
	open(t, dir)
	cmd := self(t, "daemon", dir, "", envPool+"=memfd:1MiB")
	cmd.Stderr = nil
	err := cmd.Run()
	if !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("a second daemon on the same directory: got %v, want that it exits", err)
	}
}

func TestDaemonKilledAgainAndAgainUnderLoad(t *testing.T) {
	dir, kill := keep(t, "memfd:4MiB", "")
	c, r := open(t, dir), open(t, dir)
	for round := range 5 {
		for i := range 20 {
			put(t, c, fmt.Sprintf("%d/%d", round, i), fmt.Sprint(round, i))
			if i == 10 {
				kill()
			}
		}
		for i := range 20 {
			key := fmt.Sprintf("%d/%d", round, i)
			wantValue(t, r, key, fmt.Sprint(round, i))
			if err := r.Delete(context.Background(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// restartProgram is a Python client that lives through a restart.
const restartProgram = `
import polder_share, sys
with polder_share.Client(sys.argv[1], page_size=16 << 10, region_size=64 << 10) as c:
    for key in ("p0", "p1"):
        page = c.alloc()
        page.buffer[:2] = key.encode()
        c.put(key, page, 2)
    view = c.get("p0")
    print("ready", flush=True)
    sys.stdin.readline()
    assert bytes(view.buffer) == b"p0"
    with c.get("p1") as other:
        assert bytes(other.buffer) == b"p1"
    page = c.alloc()
    page.buffer[:2] = b"p2"
    assert c.put("p2", page, 2)
    assert bytes(view.buffer) == b"p0"
    view.close()
print("ready", flush=True)
sys.stdin.readline()
`

func TestPythonClientLivesThroughARestart(t *testing.T) {
	dir, kill := keep(t, "memfd:1MiB", "")
	c := open(t, dir)
	put(t, c, "go", "v")
	cmd := exec.Command("python3", "-B", "-c", restartProgram, filepath.Join(dir, "s"))
	python, err := filepath.Abs("../../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "PYTHONPATH="+python)
	cmd.Stderr = os.Stderr
	p := start(t, cmd)
	if !p.ready() {
		t.Fatal("the Python client has failed")
	}
	kill()
	if err := c.Delete(t.Context(), "p0"); err != nil { // the view must not mind
		t.Fatal(err)
	}
	put(t, c, "more", "v")
	if _, err := p.in.Write([]byte("go on\n")); err != nil {
		t.Fatal(err)
	}
	if !p.ready() {
		t.Fatal("the Python client has failed after the restart")
	}
	wantValue(t, c, "p2", "p2")
}
