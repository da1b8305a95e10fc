// Package robustness kills, starves and attacks a daemon of shared memory and
// its clients, in processes of their own.
package robustness

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"polder/internal/failpoint"
	"polder/internal/keeper"
	"polder/internal/systemd"
	"polder/share"
	"polder/share/internal/wire"
	"polder/share/resource"
	"polder/share/server"
)

// The environment by which the test makes this binary play a part.
const (
	envRole      = "SHARE_TEST_ROLE"      // daemon, writer, rewriter, reader, intruder
	envDir       = "SHARE_TEST_DIR"       // of the daemon, or of the socket
	envPool      = "SHARE_TEST_POOL"      // specification of the pool
	envFail      = "SHARE_TEST_FAIL"      // a file that says where to die: name, tab, count
	envTmpfs     = "SHARE_TEST_TMPFS"     // size of a tmpfs for the daemon's state
	envSettle    = "SHARE_TEST_SETTLE"    // how long the daemon waits for clients after a restart
	envContained = "SHARE_TEST_CONTAINED" // the process is the first of a container
	envArgs      = "SHARE_TEST_ARGS"      // of the role
	killed       = ".killed"              // suffix of the file that says that it has happened
	smallPage    = 16 << 10

	fillerSize = 96 << 10 // of what another program has on the daemon's disk
	toldName   = "told"   // the file in the daemon's directory that it logs to
)

func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))) // else mailboxes are not used
	role := os.Getenv(envRole)
	if role == "" {
		goleak.VerifyTestMain(m)
		return
	}
	armFailpoint()
	var err error
	if os.Getenv(envContained) != "" && os.Getpid() == 1 {
		err = beContained()
	}
	if err != nil {
		role = "nothing"
	}
	switch role {
	case "nothing":
	case "daemon":
		err = beDaemon()
	case "writer":
		err = beWriter()
	case "rewriter":
		err = beRewriter()
	case "reader":
		err = beReader()
	case "keeper":
		err = beKeeper()
	case "viewer":
		err = beViewer()
	case "intruder":
		err = beIntruder()
	default:
		err = fmt.Errorf("there is no role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// armFailpoint makes this process kill itself where the file in envFail says,
// once: the file is renamed first, so that the next process goes on.
func armFailpoint() {
	path := os.Getenv(envFail)
	data, err := os.ReadFile(path)
	if path == "" || err != nil {
		return
	}
	name, count, _ := strings.Cut(string(data), "\t")
	left, err := strconv.Atoi(count)
	if err != nil {
		panic(err)
	}
	hits := make(chan int, 1)
	hits <- left
	failpoint.Set(func(hit string) {
		if hit != name && (name != "*" || strings.HasPrefix(hit, "client.")) {
			return
		}
		n := <-hits - 1
		if n == 0 {
			os.Rename(path, path+killed)
			unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		hits <- n
	})
}

func beDaemon() error {
	dir := os.Getenv(envDir)
	state := filepath.Join(dir, "state")
	free := make(chan os.Signal, 1)
	signal.Notify(free, syscall.SIGUSR1)
	if size := os.Getenv(envTmpfs); size != "" {
		if err := os.MkdirAll(state, 0o700); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("cannot make mounts private: %w", err)
		}
		if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size="+size); err != nil {
			return fmt.Errorf("cannot mount a small file system: %w", err)
		}
		go func() {
			<-free
			os.Remove(filepath.Join(state, "filler"))
		}()
		if err := os.WriteFile(filepath.Join(state, "filler"), make([]byte, fillerSize), 0o600); err != nil {
			return err
		}
	}
	spec, err := resource.ParseSpec(os.Getenv(envPool))
	if err != nil {
		return err
	}
	opt := server.Options{
		Dir: state, Socket: filepath.Join(dir, "s"), Pools: []resource.Spec{spec},
		SegmentSize: 32 << 10, CheckpointBytes: 8 << 10, Tick: 5 * time.Millisecond,
		SocketMode: 0o666, Poll: 50 * time.Millisecond, LRU: os.Getenv(envArgs) == "lru",
	}
	if opt.Settle, err = time.ParseDuration(cmp.Or(os.Getenv(envSettle), "1h")); err != nil {
		return err
	}
	told, err := os.OpenFile(filepath.Join(dir, toldName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer told.Close()
	opt.Log = slog.New(slog.NewTextHandler(told, nil))
	if opt.Store, err = systemd.OpenStore(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	opt.HandedOver = stop
	s, err := server.Start(opt)
	if err != nil {
		return err
	}
	<-ctx.Done()
	return s.Close()
}

// beKeeper keeps a daemon, and says which processes they are.
func beKeeper() error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return keeper.Run(ctx, keeper.Options{
		Dir: filepath.Join(os.Getenv(envDir), "state"), Path: path, Env: []string{envRole + "=daemon"},
		Started: func(pid int) { fmt.Println(pid) },
	})
}

// beWriter puts keys, says so, and waits to be killed.
func beWriter() error {
	ctx := context.Background()
	c, err := share.Open(ctx, config(os.Getenv(envDir)))
	if err != nil {
		return err
	}
	if err := putKeys(ctx, c, strings.Fields(os.Getenv(envArgs))); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func putKeys(ctx context.Context, c *share.Client, keys []string) error {
	for _, key := range keys {
		p, err := c.Alloc(ctx)
		if err != nil {
			return err
		}
		if _, err := c.Put(ctx, key, p, copy(p.Bytes(), "value of "+key)); err != nil {
			return err
		}
	}
	return nil
}

// beRewriter puts keys and deletes them, the last one first, until it is
// killed. So a key is never there without those that are named before it.
func beRewriter() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := share.Open(ctx, config(os.Getenv(envDir)))
	if err != nil {
		return err
	}
	keys := strings.Fields(os.Getenv(envArgs))
	for {
		if err := putKeys(ctx, c, keys); err != nil {
			return err
		}
		for _, key := range slices.Backward(keys) {
			if err := c.Delete(ctx, key); err != nil {
				return err
			}
		}
	}
}

// beIntruder does what it must not: see the table of attacks.
func beIntruder() error {
	dir := os.Getenv(envDir)
	what, arg, _ := strings.Cut(os.Getenv(envArgs), " ")
	switch what {
	case "write":
		c, err := share.Open(context.Background(), config(dir))
		if err != nil {
			return err
		}
		v, err := c.Get(context.Background(), arg)
		if err != nil {
			return err
		}
		v.Bytes()[0] = 'X' // must fault
		return errors.New("the write went through")
	case "connect":
		_, err := share.Open(context.Background(), config(dir))
		if errors.Is(err, share.ErrDenied) {
			return nil
		}
		return fmt.Errorf("got %v, want %v", err, share.ErrDenied)
	case "token":
		var tok [16]byte
		if _, err := hex.Decode(tok[:], []byte(arg)); err != nil {
			return err
		}
		_, status, err := attach(dir, tok)
		if err != nil || status != wire.Denied {
			return fmt.Errorf("got %v, %v, want %v", status, err, wire.Denied)
		}
		return nil
	}
	return fmt.Errorf("there is no attack %q", what)
}

// beReader opens views, says so, and waits to be killed.
func beReader() error {
	ctx := context.Background()
	c, err := share.Open(ctx, config(os.Getenv(envDir)))
	if err != nil {
		return err
	}
	for _, key := range strings.Fields(os.Getenv(envArgs)) {
		if _, err := c.Get(ctx, key); err != nil {
			return err
		}
		if err := c.Pin(ctx, key); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// beViewer pins keys and opens views of them, says so, and then, whenever it is
// told to, whether they still show what they have shown.
func beViewer() error {
	ctx := context.Background()
	c, err := share.Open(ctx, config(os.Getenv(envDir)))
	if err != nil {
		return err
	}
	views := map[string]share.View{}
	for _, key := range strings.Fields(os.Getenv(envArgs)) {
		if views[key], err = c.Get(ctx, key); err != nil {
			return err
		}
		if err := c.Pin(ctx, key); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		for key, v := range views {
			if got := string(v.Bytes()); got != "value of "+key {
				return fmt.Errorf("a view of %s shows %q", key, got)
			}
		}
		if in.Text() == "served" {
			if _, err := c.Exists(ctx, "any"); !errors.Is(err, share.ErrUnavailable) {
				return fmt.Errorf("a client that was fenced gets %v, want %v", err, share.ErrUnavailable)
			}
		}
		fmt.Println("ready")
	}
	return nil
}

func config(dir string) share.Config {
	return share.Config{Socket: filepath.Join(dir, "s"), PageSize: smallPage, RegionSize: 4 * smallPage, Patience: 30 * time.Second}
}

// self returns the command that plays a part.
func self(t *testing.T, role, dir, args string, env ...string) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	// The race detector would sleep for a second at each exit.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", envRole+"="+role, envDir+"="+dir, envArgs+"="+args)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	return cmd
}

// actor is a client in a process of its own.
type actor struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	dead bool
}

func start(t *testing.T, cmd *exec.Cmd) *actor {
	t.Helper()
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
	a := &actor{cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(a.kill)
	return a
}

// ready waits until the actor says that it is; false if it has died instead.
func (a *actor) ready() bool {
	line, err := a.out.ReadString('\n')
	return err == nil && line == "ready\n"
}

func (a *actor) kill() {
	if !a.dead {
		a.dead = true
		a.cmd.Process.Kill()
		a.cmd.Wait()
		a.in.Close()
	}
}

// keep runs a daemon under a keeper until the test ends, and returns its
// directory and a function that kills the daemon that runs now.
func keep(t *testing.T, pool, args string, env ...string) (dir string, kill func()) {
	t.Helper()
	// Sockets have short names, and the log is not what is measured here.
	dir, err := os.MkdirTemp("/dev/shm", "share")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cmd := self(t, "daemon", dir, args, append(env, envPool+"="+strings.ReplaceAll(pool, "$DIR", dir))...)
	ctx, cancel := context.WithCancel(context.Background())
	pids := make(chan int, 1000)
	done := make(chan error, 1)
	go func() {
		done <- keeper.Run(ctx, keeper.Options{
			Path: cmd.Path, Env: cmd.Env, Started: func(pid int) { pids <- pid },
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the keeper or the daemon ends badly: %v", err)
		}
	})
	current := 0
	return dir, func() {
		for current == 0 || len(pids) > 0 {
			current = <-pids
		}
		unix.Kill(current, unix.SIGKILL)
		current = 0
	}
}

func open(t *testing.T, dir string) *share.Client {
	t.Helper()
	var c *share.Client
	until(t, "the daemon answers", func() bool {
		var err error
		c, err = share.Open(t.Context(), config(dir))
		if err != nil && !errors.Is(err, share.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// until waits for what happens by itself.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("it never came about that %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func stats(t *testing.T, c *share.Client) share.Info {
	t.Helper()
	info, err := c.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// untilEmpty waits until nothing is allocated any more.
func untilEmpty(t *testing.T, c *share.Client) {
	t.Helper()
	until(t, "all memory is free", func() bool {
		info := stats(t, c)
		return info.Regions == 0 && info.Keys == 0 && info.Waiting == 0 && info.Pools[0].Free == info.Pools[0].Size
	})
}

func put(t *testing.T, c *share.Client, key, value string) {
	t.Helper()
	p, err := c.Alloc(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(context.Background(), key, p, copy(p.Bytes(), value)); err != nil {
		t.Fatal(err)
	}
}

func wantValue(t *testing.T, c *share.Client, key, want string) {
	t.Helper()
	v, err := c.Get(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if got := string(v.Bytes()); got != want {
		t.Fatalf("%q: got %q, want %q", key, got, want)
	}
}
