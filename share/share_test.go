package share_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"polder/share"
	"polder/share/internal/wire"
	"polder/share/resource"
	"polder/share/server"

	"go.uber.org/goleak"
)

// startDaemon starts a daemon in this process on a fresh directory, and stops
// it when the test ends.
func startDaemon(t *testing.T, change func(*server.Options)) (*server.Server, server.Options) {
	t.Helper()
	opt := testOptions(t.TempDir())
	if change != nil {
		change(&opt)
	}
	s, err := server.Start(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("the daemon does not close: %v", err)
		}
	})
	return s, opt
}

func testOptions(dir string) server.Options {
	return server.Options{
		Dir:         filepath.Join(dir, "state"),
		Socket:      filepath.Join(dir, "s"),
		Pools:       []resource.Spec{{Kind: resource.Memfd, Size: 64 << 20}},
		SegmentSize: 64 << 10,
		Tick:        5 * time.Millisecond,
		Log:         slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// open attaches a client with small pages and regions, and closes it when the
// test ends.
func open(t *testing.T, socket string, change func(*share.Config)) *share.Client {
	t.Helper()
	cfg := share.Config{Socket: socket, PageSize: 16 << 10, RegionSize: 64 << 10}
	if change != nil {
		change(&cfg)
	}
	c, err := share.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("the client does not close: %v", err)
		}
	})
	return c
}

func put(t *testing.T, c *share.Client, key, value string) bool {
	t.Helper()
	p, err := c.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stored, err := c.Put(t.Context(), key, p, copy(p.Bytes(), value))
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func mustGet(t *testing.T, c *share.Client, key string) share.View {
	t.Helper()
	v, err := c.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func wantValue(t *testing.T, c *share.Client, key, want string) {
	t.Helper()
	v := mustGet(t, c, key)
	defer v.Close()
	if got := string(v.Bytes()); got != want {
		t.Fatalf("%q: got %q, want %q", key, got, want)
	}
}

// eventually waits until cond holds: for what the daemon does by itself.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("it never came about that %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestPutIsSeenByAnotherClientInPlace(t *testing.T) {
	_, opt := startDaemon(t, nil)
	w, r := open(t, opt.Socket, nil), open(t, opt.Socket, nil)
	if !put(t, w, "a", "hello") {
		t.Fatal("the first put of a key was not stored")
	}
	for range 3 {
		wantValue(t, r, "a", "hello")
		wantValue(t, w, "a", "hello")
	}
	if _, err := r.Get(t.Context(), "b"); !errors.Is(err, share.ErrNotFound) {
		t.Fatalf("a key that was never put: got %v, want %v", err, share.ErrNotFound)
	}
}

func TestFirstWriterWins(t *testing.T) {
	_, opt := startDaemon(t, nil)
	a, b := open(t, opt.Socket, nil), open(t, opt.Socket, nil)
	put(t, a, "k", "first")
	if put(t, b, "k", "second") {
		t.Fatal("the second writer of a key was told that it had stored it")
	}
	wantValue(t, b, "k", "first")
}

func TestViewStaysRightWhenItsKeyIsDeleted(t *testing.T) {
	s, opt := startDaemon(t, nil)
	w, r := open(t, opt.Socket, nil), open(t, opt.Socket, nil)
	put(t, w, "k", "precious")
	v := mustGet(t, r, "k")
	if err := r.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(t.Context(), "k"); !errors.Is(err, share.ErrNotFound) {
		t.Fatalf("a deleted key: got %v, want %v", err, share.ErrNotFound)
	}
	// Fill all that can be filled: the page must not be among it.
	for i := range 3 {
		put(t, w, fmt.Sprint("other", i), "xxxxxxxxxxxxxxxx")
	}
	p, err := w.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	copy(p.Bytes(), "yyyyyyyyyyyyyyyy")
	if got := string(v.Bytes()); got != "precious" {
		t.Fatalf("the view of a deleted key: got %q, want %q", got, "precious")
	}
	if got := s.Info().Waiting; got != 1 {
		t.Fatalf("pages that wait for a view: got %d, want 1", got)
	}
	v.Close()
	v.Close()
	eventually(t, "the page was freed", func() bool { return s.Info().Waiting == 0 })
}

// TestClosingACopyOfAViewEndsNoOtherView closes a copy when the view's slot of the
// lease serves another one.
func TestClosingACopyOfAViewEndsNoOtherView(t *testing.T) {
	s, opt := startDaemon(t, nil)
	c := open(t, opt.Socket, nil)
	put(t, c, "k", "precious")
	first := mustGet(t, c, "k")
	copied := first
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := mustGet(t, c, "k")
	if err := copied.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.Info().Views; got != 1 {
		t.Errorf("with one view open, and a copy of another closed twice: the daemon sees %d", got)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.Info().Views; got != 0 {
		t.Errorf("with none open: the daemon sees %d", got)
	}
}

func TestKeysOutliveTheirOwnerAndTheLastOneFreesTheRegion(t *testing.T) {
	s, opt := startDaemon(t, nil)
	r := open(t, opt.Socket, nil)
	w := open(t, opt.Socket, nil)
	put(t, w, "k1", "one")
	put(t, w, "k2", "two")
	v := mustGet(t, r, "k1")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if info := s.Info(); info.Deferred != 1 || info.Regions != 1 {
		t.Fatalf("after the owner left: got %d regions, %d deferred, want 1, 1", info.Regions, info.Deferred)
	}
	wantValue(t, r, "k2", "two")
	for _, k := range []string{"k1", "k2"} {
		if err := r.Delete(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	if string(v.Bytes()) != "one" {
		t.Fatal("a view changed when its key was deleted")
	}
	if n := s.Info().Regions; n != 1 {
		t.Fatalf("with an open view: got %d regions, want 1", n)
	}
	v.Close()
	eventually(t, "the region was freed", func() bool {
		info := s.Info()
		return info.Regions == 0 && info.Pools[0].Free == info.Pools[0].Size
	})
}

func TestPinsKeepKeys(t *testing.T) {
	_, opt := startDaemon(t, nil)
	a, b := open(t, opt.Socket, nil), open(t, opt.Socket, nil)
	for _, k := range []string{"1", "2", "4"} {
		put(t, a, k, k)
	}
	n, err := b.PinAll(t.Context(), []string{"1", "2", "3", "4"})
	if err != nil || n != 2 {
		t.Fatalf("pinning 1 2 3 4 without 3: got %d, %v, want 2", n, err)
	}
	errs, err := a.DeleteAll(t.Context(), []string{"1", "2", "3", "4"})
	if err != nil {
		t.Fatal(err)
	}
	want := []error{share.ErrPinned, share.ErrPinned, share.ErrNotFound, nil}
	for i := range want {
		if !errors.Is(errs[i], want[i]) {
			t.Errorf("deleting key %d: got %v, want %v", i+1, errs[i], want[i])
		}
	}
	if err := b.Unpin(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	if err := a.Unpin(t.Context(), "2"); !errors.Is(err, share.ErrNotFound) {
		t.Fatalf("unpinning another's pin: got %v, want %v", err, share.ErrNotFound)
	}
	if err := a.Delete(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Delete(t.Context(), "2"); err != nil {
		t.Fatalf("after the pinner left: %v", err)
	}
}

func TestPagesAreUsedAgain(t *testing.T) {
	s, opt := startDaemon(t, nil)
	c := open(t, opt.Socket, nil)
	for i := range 100 {
		key := fmt.Sprint(i)
		put(t, c, key, key)
		if err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Info().Allocs; got != 1 {
		t.Fatalf("100 puts and deletes took %d regions, want 1", got)
	}
}

func TestBatches(t *testing.T) {
	_, opt := startDaemon(t, nil)
	w, r := open(t, opt.Socket, nil), open(t, opt.Socket, nil)
	var keys []string
	var items []share.Item
	for i := range 30 {
		p, err := w.Alloc(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("key%02d", i)
		keys = append(keys, key)
		items = append(items, share.Item{Key: key, Page: p, Len: copy(p.Bytes(), key)})
	}
	stored, err := w.PutAll(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	for i, ok := range stored {
		if !ok {
			t.Fatalf("%s was not stored", keys[i])
		}
	}
	views, err := r.GetAll(t.Context(), append(keys, "missing"))
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range views[:30] {
		if !v.Ok() || string(v.Bytes()) != keys[i] {
			t.Fatalf("%s: got %q", keys[i], v.Bytes())
		}
		v.Close()
	}
	if views[30].Ok() {
		t.Fatal("a missing key has a view")
	}
	found, err := r.ExistsAll(t.Context(), []string{"missing", "key07"})
	if err != nil || found[0] || !found[1] {
		t.Fatalf("exists: got %v, %v, want false, true", found, err)
	}
	n := 0
	for k, err := range r.Keys(t.Context(), "key1") {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("key1%d", n); k.Key != want {
			t.Fatalf("listing: got %s, want %s", k.Key, want)
		}
		n++
	}
	if n != 10 {
		t.Fatalf("listing key1*: got %d keys, want 10", n)
	}
}

// TestKeysOfAnyBytesAreListed, each once: such as are not UTF-8, and such as take several times their bytes in JSON.
func TestKeysOfAnyBytesAreListed(t *testing.T) {
	_, opt := startDaemon(t, nil)
	c := open(t, opt.Socket, nil)
	want := []string{"\x00", "\x80", "\xff\x00", "\xff\xff", "a key"}
	for i := range 200 {
		want = append(want, fmt.Sprintf("%03d", i)+strings.Repeat("<", wire.MaxKey-3), "\xfe"+strings.Repeat(string(rune(i%64)), wire.MaxKey-4)+fmt.Sprintf("%03d", i))
	}
	slices.Sort(want)
	for _, key := range want {
		put(t, c, key, "")
	}
	var got []string
	for k, err := range c.Keys(t.Context(), "") {
		if err != nil {
			t.Fatalf("after %d of %d keys: %v", len(got), len(want), err)
		}
		if got = append(got, k.Key); len(got) > len(want) {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d keys are listed, want %d, in order", len(got), len(want))
	}
}

func TestMoreViewsThanTheLeaseHolds(t *testing.T) {
	s, opt := startDaemon(t, nil)
	w, r := open(t, opt.Socket, nil), open(t, opt.Socket, nil)
	put(t, w, "k", "v")
	var views []share.View
	for range 4096 + 10 {
		views = append(views, mustGet(t, r, "k"))
	}
	if got := s.Info().Views; got != len(views) {
		t.Fatalf("open views: the daemon sees %d, want %d", got, len(views))
	}
	for _, v := range views {
		if !bytes.Equal(v.Bytes(), []byte("v")) {
			t.Fatal("a view shows something else")
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Info().Views; got != 0 {
		t.Fatalf("after all are closed: the daemon sees %d views, want 0", got)
	}
}

func TestViewsOutliveTheirClient(t *testing.T) {
	s, opt := startDaemon(t, nil)
	w := open(t, opt.Socket, nil)
	put(t, w, "k", "still here")
	r, err := share.Open(t.Context(), share.Config{Socket: opt.Socket})
	if err != nil {
		t.Fatal(err)
	}
	v := mustGet(t, r, "k")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if string(v.Bytes()) != "still here" {
		t.Fatal("the view changed when its client was closed")
	}
	if got := s.Info().Sessions; got != 2 {
		t.Fatalf("with an open view: got %d sessions, want 2", got)
	}
	if _, err := r.Get(t.Context(), "k"); !errors.Is(err, share.ErrClosed) {
		t.Fatalf("get of a closed client: got %v, want %v", err, share.ErrClosed)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session ended", func() bool { return s.Info().Sessions == 1 })
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	_, opt := startDaemon(t, nil)
	c := open(t, opt.Socket, nil)
	put(t, c, "k", "v")
	ctx := context.Background()
	if v, err := c.Get(ctx, "k"); err != nil {
		t.Fatal(err)
	} else {
		v.Close()
	}
	if n := testing.AllocsPerRun(100, func() {
		v, err := c.Get(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		v.Close()
	}); n != 0 {
		t.Errorf("a get that is remembered allocates %v times, want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		p, err := c.Alloc(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Free(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a page of the active region allocates %v times, want 0", n)
	}
}

func BenchmarkGetRemembered(b *testing.B) {
	dir := b.TempDir()
	s, err := server.Start(testOptions(dir))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	c, err := share.Open(b.Context(), share.Config{Socket: filepath.Join(dir, "s"), PageSize: 4096, RegionSize: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	p, err := c.Alloc(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if _, err := c.Put(b.Context(), "k", p, 10); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		v, err := c.Get(b.Context(), "k")
		if err != nil {
			b.Fatal(err)
		}
		v.Close()
	}
}

func BenchmarkExists(b *testing.B) {
	dir := b.TempDir()
	s, err := server.Start(testOptions(dir))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	c, err := share.Open(b.Context(), share.Config{Socket: filepath.Join(dir, "s"), PageSize: 4096, RegionSize: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for b.Loop() {
		if _, err := c.Exists(context.Background(), "k"); err != nil {
			b.Fatal(err)
		}
	}
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		// Mailboxes are used by at least two processors only.
		runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0)))
		code := m.Run()
		if err := goleak.Find(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return code
	}())
}

func BenchmarkAllocRegion(b *testing.B) {
	dir := b.TempDir()
	opt := testOptions(dir)
	opt.Pools[0].Size = 8 << 30
	opt.SegmentSize = 4 << 20
	s, err := server.Start(opt)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	c, err := share.Open(b.Context(), share.Config{Socket: filepath.Join(dir, "s"), PageSize: 64 << 10, RegionSize: 64 << 10})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	for b.Loop() {
		if _, err := c.Alloc(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
