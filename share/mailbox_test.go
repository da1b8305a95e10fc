package share_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"polder/share"
	"polder/share/resource"
	"polder/share/server"
)

// polled makes the daemon poll whoever has asked something twice.
func polled(o *server.Options) { o.Poll = time.Hour }

// busy makes the daemon take the client for busy.
func busy(t *testing.T, s *server.Server, c *share.Client) {
	t.Helper()
	eventually(t, "requests come by mailbox", func() bool {
		if _, err := c.Exists(t.Context(), "nothing"); err != nil {
			t.Fatal(err)
		}
		return s.Info().Posted > 0
	})
}

// putAndGet puts a key under itself, and reads it.
func putAndGet(c *share.Client, key string) error {
	ctx := context.Background()
	p, err := c.Alloc(ctx)
	if err != nil {
		return err
	}
	if stored, err := c.Put(ctx, key, p, copy(p.Bytes(), key)); err != nil || !stored {
		return fmt.Errorf("put of %s: stored %v, %w", key, stored, err)
	}
	v, err := c.Get(ctx, key)
	if err != nil {
		return err
	}
	defer v.Close()
	if string(v.Bytes()) != key {
		return fmt.Errorf("get of %s: got %q", key, v.Bytes())
	}
	return nil
}

func TestBusyClientsAreServedByMailbox(t *testing.T) {
	s, opt := startDaemon(t, polled)
	c := open(t, opt.Socket, nil)
	busy(t, s, c)
	ctx := context.Background()
	before := s.Info()
	for i := range 10 {
		put(t, c, fmt.Sprint("k", i), fmt.Sprint("v", i))
	}
	for i := range 10 {
		wantValue(t, c, fmt.Sprint("k", i), fmt.Sprint("v", i))
	}
	if err := c.Pin(ctx, "k0"); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, "k0"); !errors.Is(err, share.ErrPinned) {
		t.Errorf("delete of a pinned key: got %v, want %v", err, share.ErrPinned)
	}
	if err := c.Unpin(ctx, "k0"); err != nil {
		t.Fatal(err)
	}
	if err := c.Unpin(ctx, "k0"); !errors.Is(err, share.ErrNotFound) {
		t.Errorf("unpin of what is not pinned: got %v, want %v", err, share.ErrNotFound)
	}
	if put(t, c, "k1", "another") {
		t.Error("the second writer of a key has won")
	}
	if _, err := c.Get(ctx, "missing"); !errors.Is(err, share.ErrNotFound) {
		t.Errorf("a key that is not there: got %v, want %v", err, share.ErrNotFound)
	}
	after := s.Info()
	// On a machine that is busy with other things, some go by the socket.
	eventually(t, "many requests come by mailbox", func() bool {
		wantValue(t, c, "k2", "v2")
		if _, err := c.Exists(ctx, "k2"); err != nil {
			t.Fatal(err)
		}
		return s.Info().Posted >= before.Posted+25
	})
	// Two regions were asked for by the socket, and one mapped; nothing else.
	for op, want := range map[string]uint64{"alloc": 3, "map": 3} {
		if got := after.Requests[op] - before.Requests[op]; got > want {
			t.Errorf("%d requests to %s, want at most %d", got, op, want)
		}
	}
}

func TestWhatDoesNotFitAMailboxGoesByTheSocket(t *testing.T) {
	s, opt := startDaemon(t, polled)
	c := open(t, opt.Socket, nil)
	busy(t, s, c)
	keys := make([]string, 300)
	for i := range keys {
		keys[i] = fmt.Sprintf("a rather long key, the %d.", i)
	}
	before := s.Info().Posted
	found, err := c.ExistsAll(t.Context(), keys)
	if err != nil || len(found) != len(keys) {
		t.Fatalf("got %d answers, %v", len(found), err)
	}
	views, err := c.GetAll(t.Context(), keys)
	if err != nil || len(views) != len(keys) {
		t.Fatalf("got %d views, %v", len(views), err)
	}
	if got := s.Info().Posted - before; got != 0 {
		t.Fatalf("%d requests came by mailbox, want none", got)
	}
}

func TestManyGoroutinesShareAMailbox(t *testing.T) {
	s, opt := startDaemon(t, polled)
	c := open(t, opt.Socket, nil)
	busy(t, s, c)
	var wg sync.WaitGroup
	for g := range 16 { // twice as many as a mailbox has slots
		wg.Go(func() {
			for i := range 50 {
				key := fmt.Sprintf("%d/%d", g, i)
				if err := putAndGet(c, key); err != nil {
					t.Error(err)
				}
				if err := c.Delete(context.Background(), key); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := s.Info().Keys; n != 0 {
		t.Fatalf("%d keys are left", n)
	}
}

func TestCancelledRequestsByMailbox(t *testing.T) {
	s, opt := startDaemon(t, polled)
	c := open(t, opt.Socket, nil)
	busy(t, s, c)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Exists(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %v", err, context.Canceled)
	}
	put(t, c, "k", "v")
	wantValue(t, c, "k", "v")
}

// TestRecordsThatAreSyncedGoByMailbox has the poller hand the wait for the
// disk to others.
func TestRecordsThatAreSyncedGoByMailbox(t *testing.T) {
	s, opt := startDaemon(t, func(o *server.Options) {
		polled(o)
		o.Sync = true
		o.Pools = []resource.Spec{{Kind: resource.Memfd, Size: 64 << 20}}
	})
	c := open(t, opt.Socket, nil)
	busy(t, s, c)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 5 {
				key := fmt.Sprintf("%d/%d", g, i)
				if err := putAndGet(c, key); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := s.Info().Keys; got != 40 {
		t.Fatalf("got %d keys, want 40", got)
	}
}

func TestAClientThatIsNotBusyIsNotPolled(t *testing.T) {
	s, opt := startDaemon(t, func(o *server.Options) { o.Poll = -1 })
	c := open(t, opt.Socket, nil)
	for i := range 20 {
		put(t, c, fmt.Sprint(i), "v")
	}
	if got := s.Info().Posted; got != 0 {
		t.Fatalf("%d requests came by mailbox, which is off", got)
	}
}

// TestAClosedClientIsNotPolled closes clients while they are polled.
func TestAClosedClientIsNotPolled(t *testing.T) {
	s, opt := startDaemon(t, polled)
	for range 20 {
		c := open(t, opt.Socket, nil)
		before := s.Info().Posted
		eventually(t, "requests come by mailbox", func() bool {
			put(t, c, "k", "v")
			return s.Info().Posted > before
		})
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Exists(context.Background(), "k"); !errors.Is(err, share.ErrClosed) {
			t.Fatalf("after Close: got %v, want %v", err, share.ErrClosed)
		}
	}
	eventually(t, "all sessions have ended", func() bool { return s.Info().Sessions == 0 })
}
