package robustness

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
)

// A daemon of the tests below, and what it logs to.
type piped struct {
	*child.Process
	name string
	log  *os.File // the reading end of the pipe that is its standard output and error
}

// startPiped runs a daemon whose standard output and error are one pipe.
func startPiped(t *testing.T, args ...string) *piped {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return startLoggingTo(t, r, w, args...)
}

// startLoggingTo is startPiped for a pipe of the caller's.
func startLoggingTo(t *testing.T, r, w *os.File, args ...string) *piped {
	t.Helper()
	t.Cleanup(func() { _ = r.Close() })
	defer func() { _ = w.Close() }() // the daemon has its own
	p := proctest.RunCommand(t, child.Command{
		Path:  "/bin/sh",
		Args:  append([]string{"-c", `exec "$0" "$@" >&4 2>&4`, proctest.Binary()}, args...),
		Files: []*os.File{w},
	})
	return &piped{Process: p, name: args[0], log: r}
}

// everyDaemon starts each daemon of the binary in turn and gives it to check.
func everyDaemon(t *testing.T, check func(t *testing.T, d *piped)) {
	node := startNode(t, "64MiB", "--manager", "finemem")
	for _, args := range [][]string{
		{"node", "--lend", "16MiB", "--listen", "127.0.0.1:0"},
		{"up", "--lend", "64MiB", "--local", "8MiB", "--listen", "127.0.0.1:0"},
		{"serve", "--far", node.Addr("verbs"), "--manager", "finemem", "--local", "8MiB", "--listen", "127.0.0.1:0"},
		{"serve", "--tier", "soft", "--memcached", "127.0.0.1:0", "--listen", "127.0.0.1:0"},
		{"serve", "files", "DIR", "--listen", "127.0.0.1:0"},
		{"broker", "--far", node.Addr("verbs"), "--listen", "DIR/broker.sock"},
		{"coordinator", "--socket", "DIR/coordinator.sock"},
		{"witness", "--dir", "DIR/witness", "--listen", "127.0.0.1:0"},
		{"share", "--socket", "DIR/share.sock", "--dir", "DIR/share", "--pool", "memfd:1MiB"},
		{"share", "--keep", "--socket", "DIR/share.sock", "--dir", "DIR/share", "--pool", "memfd:1MiB"},
	} {
		t.Run(strings.Join(args[:min(3, len(args))], " "), func(t *testing.T) {
			dir := t.TempDir()
			args := slices.Clone(args)
			for i, a := range args {
				args[i] = strings.ReplaceAll(a, "DIR", dir)
			}
			check(t, startPiped(t, append(args, "--admin", "127.0.0.1:0")...))
		})
	}
}

// TestSIGHUPEndsNoDaemon: what they hold would be lost.
func TestSIGHUPEndsNoDaemon(t *testing.T) {
	t.Parallel()
	everyDaemon(t, func(t *testing.T, d *piped) {
		for range 3 {
			if err := d.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
		}
		d.mustLog(t, "reloaded")
		d.mustLive(t)
	})
}

// TestALogThatNobodyReadsEndsNoDaemon: the reader of the pipe goes, as when a
// log collector is restarted.
func TestALogThatNobodyReadsEndsNoDaemon(t *testing.T) {
	t.Parallel()
	everyDaemon(t, func(t *testing.T, d *piped) {
		if err := d.log.Close(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := d.Signal(syscall.SIGHUP); err != nil { // has something to say
				t.Fatal(err)
			}
			d.mustLive(t)
		}
	})
}

// TestALogWhoseReaderHasStoppedBlocksNoDaemon: the pipe of a node, and of a server
// that borrows from it, is full before they start, and stays so. They log more than
// they keep for a reader, and clients are answered all the while. When somebody
// reads again, they are told that something is missing.
func TestALogWhoseReaderHasStoppedBlocksNoDaemon(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "config")
	write := func(text string) {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("log-level: info\n")
	start := func(args ...string) *piped {
		r, w := fullPipe(t)
		return startLoggingTo(t, r, w, append(args, "--config", config, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")...)
	}
	node := start("node", "--lend", "64MiB")
	server := start("serve", "--far", node.Addr("verbs"), "--local", "4MiB")

	ctx, cancel := context.WithCancel(t.Context())
	var going sync.WaitGroup
	stop := func() { cancel(); going.Wait() }
	defer stop()
	var requests atomic.Int64
	going.Go(func() {
		if n, err := readAndWrite(ctx, connect(t, server.Process), "key", 1000, 8<<10, &requests); err != nil {
			t.Errorf("after %d requests: %v", n, err)
			cancel() // there is nothing to wait for
		}
	})
	write("log-level: " + strings.Repeat("x", 32<<10) + "\n") // the message that says what is wrong has it all
	for n := range int64(12) {
		for _, d := range []*piped{node, server} {
			if err := d.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			proctest.Until(t, "polder "+d.name+" has logged", func() bool { return logged(t, d.Addr("admin"), "info", "reloaded after SIGHUP") > n })
		}
		from := requests.Load()
		proctest.Until(t, "clients are answered", func() bool { return ctx.Err() != nil || requests.Load() > from+100 })
	}
	if err := connect(t, server.Process).Ping(ctx).Err(); err != nil {
		t.Errorf("a client that comes now: %v", err)
	}
	stop()
	for _, d := range []*piped{node, server} {
		d.mustLive(t)
		d.mustLog(t, "were dropped here, because nobody read them")
	}
}

// fullPipe returns a pipe into which nobody can write before somebody has read.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = w.WriteString("\n")
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return r, w
}

// mustLog waits until the daemon has logged what.
func (d *piped) mustLog(t *testing.T, what string) {
	t.Helper()
	var said []byte
	found := make(chan struct{})
	go func() {
		defer close(found)
		b := make([]byte, 4096)
		for !strings.Contains(string(said), what) {
			n, err := d.log.Read(b)
			if err != nil {
				return
			}
			said = append(said, b[:n]...)
		}
	}()
	defer func() {
		if t.Failed() {
			t.Logf("polder %s wrote: %s", d.name, said)
		}
	}()
	select {
	case <-found:
	case <-d.Done():
		t.Fatalf("polder %s has ended: %v", d.name, d.Err())
	case <-time.After(hang):
		_ = d.log.Close()
		<-found
	}
	if !strings.Contains(string(said), what) {
		t.Fatalf("polder %s did not log %q", d.name, what)
	}
}

// mustLive asks the daemon for its health.
func (d *piped) mustLive(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.Addr("admin")+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("polder %s does not answer: %v", d.name, err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("polder %s is not well: %s", d.name, resp.Status)
	}
}
