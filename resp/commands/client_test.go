package commands

import (
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/far"
	"polder/resp/keyspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newClient makes a client of a heap over plenty of memory.
func newClient(t testing.TB) *Client {
	t.Helper()
	heap, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	sp := keyspace.New(keyspace.Config{OpTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		sp.Close()
		if err := heap.Close(); err != nil {
			t.Errorf("closing the heap: %v", err)
		}
	})
	if err := sp.Open(t.Context(), heap); err != nil {
		t.Fatal(err)
	}
	c := &Client{MaxBulk: 1 << 20, OutputLimit: 1 << 20}
	c.Ver, c.Limit = 2, 1<<20
	c.Use(sp)
	return c
}

// do runs a command about a single key, as package resp does.
func (c *Client) do(run func(*Client, [][]byte) error, write bool, args [][]byte) error {
	c.Out, c.Mark = c.Out[:0], 0
	c.LockKey(args[1], write, args)
	defer c.Unlock()
	err := run(c, args)
	c.End(err)
	return err
}

// TestACommandNeedsNoServer has commands run one after the other, and looks at the replies.
func TestACommandNeedsNoServer(t *testing.T) {
	c := newClient(t)
	for _, step := range []struct {
		run   func(*Client, [][]byte) error
		write bool
		args  []string
		want  string
	}{
		{Get, false, []string{"GET", "a"}, "$-1\r\n"},
		{Set, true, []string{"SET", "a", "value"}, "+OK\r\n"},
		{Get, false, []string{"GET", "a"}, "$5\r\nvalue\r\n"},
		{HSet, true, []string{"HSET", "h", "f", "v"}, ":1\r\n"},
		{HGet, false, []string{"HGET", "h", "f"}, "$1\r\nv\r\n"},
		{Del, true, []string{"DEL", "a"}, ":1\r\n"},
		{Get, false, []string{"GET", "h"}, "-WRONGTYPE Operation against a key holding the wrong kind of value"},
	} {
		var args [][]byte
		for _, a := range step.args {
			args = append(args, []byte(a))
		}
		err := c.do(step.run, step.write, args)
		got := string(c.Out)
		if err != nil {
			got = "-" + err.Error()
		}
		if got != step.want {
			t.Errorf("%q: got %q, want %q", step.args, got, step.want)
		}
	}
}

// TestCommandsThatAreFrequentDoNotAllocate is about GET and SET of keys that are there.
func TestCommandsThatAreFrequentDoNotAllocate(t *testing.T) {
	c := newClient(t)
	set, get := [][]byte{[]byte("SET"), []byte("key"), []byte("value")}, [][]byte{[]byte("GET"), []byte("key")}
	for name, run := range map[string]func() error{
		"SET": func() error { return c.do(Set, true, set) },
		"GET": func() error { return c.do(Get, false, get) },
	} {
		n := testing.AllocsPerRun(1000, func() {
			if err := run(); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}
