package component_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/internal/active"
	"polder/internal/arena"
	"polder/memnode/component"
	"polder/memnode/component/hashtable"
	"polder/memnode/component/wire"
)

// newPlace makes a place of so many bytes.
func newPlace(t *testing.T, size int) *component.Place {
	t.Helper()
	fd, err := arena.NewMemfd("test", size)
	if err != nil {
		t.Fatal(err)
	}
	p, err := component.NewPlace(fd, component.Set{active.Table: hashtable.Component, "wicked": {New: newWicked}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// ask carries out a request in p.
func ask(p *component.Place, r wire.Request) (uint64, string, error) {
	object, data, err := p.Do(&r, time.Now().Add(10*time.Second), make([]byte, 0, 1<<16))
	return object, string(data), err
}

func constructIn(t *testing.T, p *component.Place, kind string) uint64 {
	t.Helper()
	o, _, err := ask(p, wire.Request{Verb: wire.Construct, Key: []byte(kind)})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// What a component in a place does harms the object that was asked, at most.
func TestWhatAComponentInAPlaceDoesHarmsOnlyItsObject(t *testing.T) {
	p := newPlace(t, 8<<20)
	table := constructIn(t, p, active.Table)
	if _, _, err := ask(p, wire.Request{Verb: wire.Write, Object: table, Key: []byte("key"), Data: []byte("value")}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ask  func(o uint64) wire.Request
		want wire.Status
		lost bool
	}{
		{"panics", func(o uint64) wire.Request { return wire.Request{Verb: wire.Compute, Op: opPanic, Object: o} }, wire.Panicked, true},
		{"panics in write", func(o uint64) wire.Request { return wire.Request{Verb: wire.Write, Object: o} }, wire.Panicked, true},
		{"gives too much", func(o uint64) wire.Request { return wire.Request{Verb: wire.Compute, Op: opOverflow, Object: o} }, wire.TooLarge, false},
		{"finds nothing", func(o uint64) wire.Request { return wire.Request{Verb: wire.Delete, Object: o} }, wire.NotFound, false},
		{"is asked of what is not there", func(o uint64) wire.Request {
			return wire.Request{Verb: wire.Compute, Op: opEcho, Object: o, Others: [2]uint64{o + 1000}}
		}, wire.NoObject, false},
		{"takes all of the memory", func(o uint64) wire.Request { return wire.Request{Verb: wire.Compute, Op: opMemory, Object: o} }, wire.OK, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			evil, neighbour := constructIn(t, p, "wicked"), constructIn(t, p, "wicked")
			if _, _, err := ask(p, tt.ask(evil)); component.StatusOf(err) != tt.want {
				t.Fatalf("the call: got %v, want %q", err, tt.want)
			}
			_, out, err := ask(p, wire.Request{Verb: wire.Read, Object: evil, Key: []byte("still there")})
			if tt.lost != (component.StatusOf(err) == wire.Lost) || !tt.lost && out != "still there" {
				t.Fatalf("the object: got %q, %v, lost: want %v", out, err, tt.lost)
			}
			for o, key := range map[uint64]string{neighbour: "value", table: "key"} {
				if _, out, err := ask(p, wire.Request{Verb: wire.Read, Object: o, Key: []byte(key)}); err != nil || out != "value" {
					t.Fatalf("another object: got %q, %v", out, err)
				}
			}
			for _, o := range []uint64{evil, neighbour} {
				if _, _, err := ask(p, wire.Request{Verb: wire.Destruct, Object: o}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	again := constructIn(t, p, "wicked")
	if _, out, err := ask(p, wire.Request{Verb: wire.Compute, Op: opMemory, Object: again}); err != nil || binary.LittleEndian.Uint64([]byte(out)) < 6 {
		t.Fatalf("what was given back is not to be had: %x MiB, %v", out, err)
	}
	_, _, err := ask(p, wire.Request{Verb: wire.Construct, Key: []byte(active.Table)})
	if !errors.Is(err, component.ErrNoMemory) {
		t.Fatalf("a place that is full: got %v, want %v", err, component.ErrNoMemory)
	}
	if _, _, err := ask(p, wire.Request{Verb: wire.Construct, Key: []byte("nothing")}); component.StatusOf(err) != wire.Unknown {
		t.Fatalf("got %v, want no such component", err)
	}
}

// A table that grows and shrinks in a place, under many callers, is a map.
func TestATableInAPlace(t *testing.T) {
	p := newPlace(t, 16<<20)
	table := constructIn(t, p, active.Table)
	var wg sync.WaitGroup
	for id := range 8 {
		wg.Go(func() {
			for i := range 3000 {
				key := fmt.Append(nil, id, i%1000)
				want := strings.Repeat(string(key), 1+i%20)
				if _, _, err := ask(p, wire.Request{Verb: wire.Write, Object: table, Key: key, Data: []byte(want)}); err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				if _, got, err := ask(p, wire.Request{Verb: wire.Read, Object: table, Key: key}); err != nil || got != want {
					t.Errorf("%s: got %q, %v, want %q", key, got, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
	_, out, err := ask(p, wire.Request{Verb: wire.Compute, Op: active.TableLen, Object: table})
	if err != nil || binary.LittleEndian.Uint64([]byte(out)) != 8000 {
		t.Fatalf("got %x keys, %v, want 8000", out, err)
	}
}

func TestAskingAPlaceDoesNotAllocate(t *testing.T) {
	p := newPlace(t, 8<<20)
	table := constructIn(t, p, active.Table)
	if _, _, err := ask(p, wire.Request{Verb: wire.Write, Object: table, Key: []byte("key"), Data: []byte("value")}); err != nil {
		t.Fatal(err)
	}
	r := wire.Request{Verb: wire.Read, Object: table, Key: []byte("key")}
	deadline, out := time.Now().Add(time.Hour), make([]byte, 0, 100)
	if n := testing.AllocsPerRun(1000, func() {
		if _, data, err := p.Do(&r, deadline, out); err != nil || len(data) != 5 {
			t.Fatalf("got %q, %v", data, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
