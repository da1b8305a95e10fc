package component_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/internal/arena"
	"polder/internal/offload"
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
	p, err := component.NewPlace(fd, component.Set{offload.Table: hashtable.Component, "wicked": {New: newWicked, SharedReads: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// ask carries out a request to o.
func ask(p *component.Place, o component.Placed, r wire.Request) (string, error) {
	data, err := p.Do(o, &r, time.Time{}, 10*time.Second, nil)
	return string(data), err
}

func tryConstruct(p *component.Place, kind string) (component.Placed, error) {
	return p.Construct(&wire.Request{Verb: wire.Construct, Key: []byte(kind)}, time.Now().Add(10*time.Second))
}

func constructIn(t *testing.T, p *component.Place, kind string) component.Placed {
	t.Helper()
	o, err := tryConstruct(p, kind)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// What a component in a place does harms the object that was asked, at most.
func TestWhatAComponentInAPlaceDoesHarmsOnlyItsObject(t *testing.T) {
	p := newPlace(t, 8<<20)
	table := constructIn(t, p, offload.Table)
	if _, err := ask(p, table, wire.Request{Verb: wire.Write, Key: []byte("key"), Data: []byte("value")}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ask  wire.Request
		want wire.Status
		lost bool
	}{
		{"panics", wire.Request{Verb: wire.Compute, Op: opPanic}, wire.Panicked, true},
		{"panics in write", wire.Request{Verb: wire.Write}, wire.Panicked, true},
		{"panics beside other readers", wire.Request{Verb: wire.Read, Key: []byte("panic")}, wire.Panicked, true},
		{"gives too much", wire.Request{Verb: wire.Compute, Op: opOverflow}, wire.TooLarge, false},
		{"finds nothing", wire.Request{Verb: wire.Delete}, wire.NotFound, false},
		{"is asked of what is not there", wire.Request{Verb: wire.Compute, Op: opEcho, Others: [2]uint64{1000}}, wire.NoObject, false},
		{"takes all of the memory", wire.Request{Verb: wire.Compute, Op: opMemory}, wire.OK, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			evil, neighbour := constructIn(t, p, "wicked"), constructIn(t, p, "wicked")
			if _, err := ask(p, evil, tt.ask); component.StatusOf(err) != tt.want {
				t.Fatalf("the call: got %v, want %q", err, tt.want)
			}
			out, err := ask(p, evil, wire.Request{Verb: wire.Read, Key: []byte("still there")})
			if tt.lost != (component.StatusOf(err) == wire.Lost) || !tt.lost && out != "still there" {
				t.Fatalf("the object: got %q, %v, lost: want %v", out, err, tt.lost)
			}
			for o, key := range map[component.Placed]string{neighbour: "value", table: "key"} {
				if out, err := ask(p, o, wire.Request{Verb: wire.Read, Key: []byte(key)}); err != nil || out != "value" {
					t.Fatalf("another object: got %q, %v", out, err)
				}
			}
			for _, o := range []component.Placed{evil, neighbour} {
				if _, err := ask(p, o, wire.Request{Verb: wire.Destruct}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	again := constructIn(t, p, "wicked")
	if out, err := ask(p, again, wire.Request{Verb: wire.Compute, Op: opMemory}); err != nil || binary.LittleEndian.Uint64([]byte(out)) < 6 {
		t.Fatalf("what was given back is not to be had: %x MiB, %v", out, err)
	}
	_, err := tryConstruct(p, offload.Table)
	if !errors.Is(err, component.ErrNoMemory) {
		t.Fatalf("a place that is full: got %v, want %v", err, component.ErrNoMemory)
	}
	if _, err := tryConstruct(p, "nothing"); component.StatusOf(err) != wire.Unknown {
		t.Fatalf("got %v, want no such component", err)
	}
}

// A table that grows and shrinks in a place, under many callers, is a map.
func TestATableInAPlace(t *testing.T) {
	p := newPlace(t, 16<<20)
	table := constructIn(t, p, offload.Table)
	var wg sync.WaitGroup
	for id := range 8 {
		wg.Go(func() {
			for i := range 3000 {
				key := fmt.Append(nil, id, i%1000)
				want := strings.Repeat(string(key), 1+i%20)
				if _, err := ask(p, table, wire.Request{Verb: wire.Write, Key: key, Data: []byte(want)}); err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				if got, err := ask(p, table, wire.Request{Verb: wire.Read, Key: key}); err != nil || got != want {
					t.Errorf("%s: got %q, %v, want %q", key, got, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
	out, err := ask(p, table, wire.Request{Verb: wire.Compute, Op: offload.TableLen})
	if err != nil || binary.LittleEndian.Uint64([]byte(out)) != 8000 {
		t.Fatalf("got %x keys, %v, want 8000", out, err)
	}
}

func TestAskingAPlaceDoesNotAllocate(t *testing.T) {
	p := newPlace(t, 8<<20)
	table := constructIn(t, p, offload.Table)
	if _, err := ask(p, table, wire.Request{Verb: wire.Write, Key: []byte("key"), Data: []byte("value")}); err != nil {
		t.Fatal(err)
	}
	r := wire.Request{Verb: wire.Read, Key: []byte("key")}
	out := make([]byte, 0, 100)
	if n := testing.AllocsPerRun(1000, func() {
		if data, err := p.Do(table, &r, time.Time{}, time.Second, out); err != nil || len(data) != 5 {
			t.Fatalf("got %q, %v", data, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
