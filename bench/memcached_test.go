package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/bradfitz/gomemcache/memcache"

	"polder/memcached"
	"polder/soft"
)

// TestARealMemcachedClientIsServed uses the client that most Go programs use.
func TestARealMemcachedClientIsServed(t *testing.T) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	h, err := soft.Open(soft.Config{Budget: soft.MinBudget, Max: 64 << 20, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	s, err := memcached.New(memcached.Config{Heap: h, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	defer func() {
		if err := errors.Join(s.Close(), <-served, h.Close()); err != nil {
			t.Error(err)
		}
	}()
	c := memcache.New(lis.Addr().String())
	defer func() { _ = c.Close() }()

	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	ok("ping", c.Ping())
	if _, err := c.Get("a"); !errors.Is(err, memcache.ErrCacheMiss) {
		t.Errorf("a miss: got %v", err)
	}
	ok("set", c.Set(&memcache.Item{Key: "a", Value: []byte("one"), Flags: 7, Expiration: 100}))
	a, err := c.Get("a")
	ok("get", err)
	if string(a.Value) != "one" || a.Flags != 7 {
		t.Errorf("get: got %q with flags %d", a.Value, a.Flags)
	}
	if err := c.Add(&memcache.Item{Key: "a", Value: []byte("x")}); !errors.Is(err, memcache.ErrNotStored) {
		t.Errorf("add: got %v", err)
	}
	ok("replace", c.Replace(&memcache.Item{Key: "a", Value: []byte("two")}))
	ok("append", c.Append(&memcache.Item{Key: "a", Value: []byte("!")}))
	ok("prepend", c.Prepend(&memcache.Item{Key: "a", Value: []byte("<")}))
	stale, err := c.Get("a")
	ok("get", err)
	if string(stale.Value) != "<two!" {
		t.Errorf("get: got %q", stale.Value)
	}
	fresh := *stale
	fresh.Value = []byte("three")
	ok("cas", c.CompareAndSwap(&fresh))
	if err := c.CompareAndSwap(stale); !errors.Is(err, memcache.ErrCASConflict) {
		t.Errorf("cas with an old number: got %v", err)
	}
	ok("touch", c.Touch("a", 1000))
	if err := c.Touch("b", 1000); !errors.Is(err, memcache.ErrCacheMiss) {
		t.Errorf("touch of nothing: got %v", err)
	}
	ok("set", c.Set(&memcache.Item{Key: "n", Value: []byte("40")}))
	if n, err := c.Increment("n", 3); n != 43 || err != nil {
		t.Errorf("incr: got %d, %v", n, err)
	}
	if n, err := c.Decrement("n", 100); n != 0 || err != nil {
		t.Errorf("decr: got %d, %v", n, err)
	}
	m, err := c.GetMulti([]string{"a", "b", "n"})
	ok("get of several", err)
	if len(m) != 2 || string(m["a"].Value) != "three" || string(m["n"].Value) != "0" {
		t.Errorf("get of several: got %v", m)
	}
	ok("delete", c.Delete("a"))
	if err := c.Delete("a"); !errors.Is(err, memcache.ErrCacheMiss) {
		t.Errorf("delete again: got %v", err)
	}

	// Far more than fits: what is there is right.
	hits := 0
	for round := range 2 {
		for i := range 1000 {
			key := fmt.Sprint("k", i)
			want := strings.Repeat(key, 10000)
			if round == 0 {
				ok("set", c.Set(&memcache.Item{Key: key, Value: []byte(want)}))
				continue
			}
			item, err := c.Get(key)
			switch {
			case errors.Is(err, memcache.ErrCacheMiss):
			case err != nil:
				t.Fatal(err)
			case string(item.Value) != want:
				t.Fatalf("%s has another value", key)
			default:
				hits++
			}
		}
	}
	if hits == 0 || hits == 1000 {
		t.Errorf("%d of 1000 are left: want some and not all", hits)
	}
	ok("flush_all", c.FlushAll())
	if _, err := c.Get("n"); !errors.Is(err, memcache.ErrCacheMiss) {
		t.Errorf("after flush_all: got %v", err)
	}
}
