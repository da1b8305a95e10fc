package share_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"

	"polder/share"
	"polder/share/resource"
	"polder/share/server"
)

// world is what a random program of many clients should have come to.
type world struct {
	s       *server.Server
	socket  string
	clients []*share.Client
	keys    map[string]string // what each key must hold
	owner   map[string]int
	pins    map[string]map[int]int
	views   []openView
	next    int
}

type openView struct {
	v    share.View
	want string
}

// TestRandomProgramsOfManyClients checks, against a model, that no page is
// owned twice, no bytes change under a view, no region is freed with a live
// reference, and everything is freed in the end.
func TestRandomProgramsOfManyClients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("/dev/shm", "life") // thousands of logs are made
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		opt := testOptions(dir)
		opt.Pools = []resource.Spec{{Kind: resource.Memfd, Size: 512 << 10}}
		opt.Poll = rapid.SampledFrom([]time.Duration{-1, time.Second}).Draw(t, "poll")
		s, err := server.Start(opt)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		w := &world{s: s, socket: opt.Socket, clients: make([]*share.Client, 3), keys: map[string]string{}, owner: map[string]int{}, pins: map[string]map[int]int{}}
		defer w.close()
		t.Repeat(map[string]func(*rapid.T){
			"put": w.put, "get": w.get, "closeView": w.closeView, "delete": w.delete,
			"pin": w.pin, "unpin": w.unpin, "leave": w.leave, "": w.check,
		})
		w.finish(t)
	})
}

var ctx = context.Background()

func (w *world) client(t *rapid.T) (int, *share.Client) {
	i := rapid.IntRange(0, len(w.clients)-1).Draw(t, "client")
	if w.clients[i] == nil {
		c, err := share.Open(ctx, share.Config{Socket: w.socket, PageSize: 8 << 10, RegionSize: 32 << 10})
		if err != nil {
			t.Fatal(err)
		}
		w.clients[i] = c
	}
	return i, w.clients[i]
}

func drawKey(t *rapid.T) string {
	return fmt.Sprint("k", rapid.IntRange(0, 11).Draw(t, "key"))
}

func (w *world) put(t *rapid.T) {
	i, c := w.client(t)
	key := drawKey(t)
	w.next++
	value := fmt.Sprintf("%s by %d, the %d.", key, i, w.next)
	p, err := c.Alloc(ctx)
	if errors.Is(err, share.ErrFull) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	stored, err := c.Put(ctx, key, p, copy(p.Bytes(), value))
	if err != nil {
		t.Fatal(err)
	}
	if _, there := w.keys[key]; stored == there {
		t.Fatalf("put of %s: stored %v, and it was there: %v", key, stored, there)
	}
	if stored {
		w.keys[key], w.owner[key] = value, i
	}
}

func (w *world) get(t *rapid.T) {
	_, c := w.client(t)
	key := drawKey(t)
	want, there := w.keys[key]
	v, err := c.Get(ctx, key)
	switch {
	case errors.Is(err, share.ErrNotFound) && !there:
		return
	case err != nil || !there:
		t.Fatalf("get of %s: %v, and it is there: %v", key, err, there)
	case string(v.Bytes()) != want:
		t.Fatalf("get of %s: got %q, want %q", key, v.Bytes(), want)
	}
	w.views = append(w.views, openView{v, want})
}

func (w *world) closeView(t *rapid.T) {
	if len(w.views) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.views)-1).Draw(t, "view")
	if err := w.views[i].v.Close(); err != nil {
		t.Fatal(err)
	}
	w.views = append(w.views[:i], w.views[i+1:]...)
}

func (w *world) delete(t *rapid.T) {
	_, c := w.client(t)
	key := drawKey(t)
	_, there := w.keys[key]
	err := c.Delete(ctx, key)
	want := error(nil)
	switch {
	case !there:
		want = share.ErrNotFound
	case len(w.pins[key]) > 0:
		want = share.ErrPinned
	}
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Fatalf("delete of %s: got %v, want %v", key, err, want)
	}
	if want == nil {
		delete(w.keys, key)
	}
}

func (w *world) pin(t *rapid.T) {
	i, c := w.client(t)
	key := drawKey(t)
	_, there := w.keys[key]
	if err := c.Pin(ctx, key); (err == nil) != there {
		t.Fatalf("pin of %s: %v, and it is there: %v", key, err, there)
	}
	if there {
		if w.pins[key] == nil {
			w.pins[key] = map[int]int{}
		}
		w.pins[key][i]++
	}
}

func (w *world) unpin(t *rapid.T) {
	i, c := w.client(t)
	key := drawKey(t)
	pinned := w.pins[key][i] > 0
	if err := c.Unpin(ctx, key); (err == nil) != pinned {
		t.Fatalf("unpin of %s: %v, and it is pinned: %v", key, err, pinned)
	}
	if pinned {
		if w.pins[key][i]--; w.pins[key][i] == 0 {
			delete(w.pins[key], i)
		}
	}
}

// leave closes a client; its keys stay, its pins go.
func (w *world) leave(t *rapid.T) {
	i, c := w.client(t)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	w.clients[i] = nil
	// A session with open views lasts, and so do its pins: close them.
	kept := w.views[:0]
	for _, v := range w.views {
		if v.v.Of(c) {
			if err := v.v.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			kept = append(kept, v)
		}
	}
	w.views = kept
	for _, pins := range w.pins {
		delete(pins, i)
	}
}

// check looks at the bytes under all views, and at all keys.
func (w *world) check(t *rapid.T) {
	for _, v := range w.views {
		if got := string(v.v.Bytes()); got != v.want {
			t.Fatalf("the bytes under a view changed: got %q, want %q", got, v.want)
		}
	}
	if got := w.s.Info().Keys; got != len(w.keys) {
		t.Fatalf("the daemon has %d keys, want %d", got, len(w.keys))
	}
}

// finish ends everything, and all memory must be free again.
func (w *world) finish(t *rapid.T) {
	for _, v := range w.views {
		if err := v.v.Close(); err != nil {
			t.Fatal(err)
		}
	}
	w.views = nil
	w.close()
	c, err := share.Open(ctx, share.Config{Socket: w.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for key, want := range w.keys {
		v, err := c.Get(ctx, key)
		if err != nil || string(v.Bytes()) != want {
			t.Fatalf("%s after its owner left: got %q, %v, want %q", key, v.Bytes(), err, want)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	w.s.Settle()
	info := w.s.Info()
	if info.Regions != 0 || info.Waiting != 0 || info.Pools[0].Free != info.Pools[0].Size {
		t.Fatalf("in the end there are %d regions, %d pages waiting, %d of %d bytes free", info.Regions, info.Waiting, info.Pools[0].Free, info.Pools[0].Size)
	}
}

func (w *world) close() {
	for _, v := range w.views {
		v.v.Close()
	}
	for i, c := range w.clients {
		if c != nil {
			c.Close()
			w.clients[i] = nil
		}
	}
}

// TestPagesThatAreFreeAgainComeBeforeANewRegion, wherever they are: given back unused,
// or those of keys that were deleted.
func TestPagesThatAreFreeAgainComeBeforeANewRegion(t *testing.T) {
	s, opt := startDaemon(t, nil)
	c := open(t, opt.Socket, nil)
	for i := range 4 { // the first region
		put(t, c, fmt.Sprint(i), "v")
	}
	var pages []share.Page
	for range 4 { // the second one
		p, err := c.Alloc(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, p)
	}
	p, err := c.Alloc(t.Context()) // the third one, which is the active one now
	if err != nil {
		t.Fatal(err)
	}
	regions := func() int { return s.Info().Regions }
	if got := regions(); got != 3 {
		t.Fatalf("got %d regions, want 3", got)
	}
	for range 3 {
		if _, err := c.Alloc(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, free := range []func() error{pages[0].Free, func() error { return c.Delete(t.Context(), "0") }, p.Free, func() error { return c.Delete(t.Context(), "1") }} {
		if err := free(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the page is free", func() bool { return s.Info().Waiting == 0 })
		if _, err := c.Alloc(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := regions(); got != 3 {
			t.Fatalf("got %d regions although a page was free, want 3", got)
		}
	}
	if _, err := c.Alloc(t.Context()); err != nil || regions() != 4 {
		t.Errorf("without a free page: got %d regions, %v, want 4", regions(), err)
	}
}

// TestACallThatIsGivenUpHarmsNoOther has calls be given up as their answers
// come: what ends their time must not end that of the next call.
func TestACallThatIsGivenUpHarmsNoOther(t *testing.T) {
	_, opt := startDaemon(t, func(o *server.Options) { o.Poll = -1 })
	c := open(t, opt.Socket, nil)
	for range 5000 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if err := c.Delete(ctx, "k"); err == nil {
			t.Fatal("what is not there was deleted")
		}
		if err := c.Delete(t.Context(), "k"); !errors.Is(err, share.ErrNotFound) {
			t.Fatalf("got %v, want %v", err, share.ErrNotFound)
		}
	}
}
