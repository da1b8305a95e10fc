package pooltest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"polder/memnode"
	"polder/pool"
)

// model plays random operations of two clients, with cuts in between, and
// compares every result with what plain memory would give.
func model(t *testing.T, s Setup) {
	const size, chunks, budget = 4096, 6, 4
	cl := NewCluster(t, s, memnode.Config{Lend: chunks * size, ChunkSize: size, ClientBudget: budget * size, Grace: time.Minute})
	clients := []*Client{cl.Open(pool.Config{}), cl.Open(pool.Config{})}
	type held struct {
		c    *pool.Chunk
		data []byte
	}
	rapid.Check(t, func(t *rapid.T) {
		owned := make([][]held, len(clients))
		names := make(map[string]bool)
		defer func() {
			for _, chunks := range owned {
				for _, h := range chunks {
					if err := h.c.Free(cl.T.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
		}()
		who := func(t *rapid.T) int { return rapid.IntRange(0, len(clients)-1).Draw(t, "client") }
		pick := func(t *rapid.T) *held {
			i := who(t)
			if len(owned[i]) == 0 {
				t.Skip("no chunk")
			}
			return &owned[i][rapid.IntRange(0, len(owned[i])-1).Draw(t, "chunk")]
		}
		word := func(t *rapid.T) int64 { return 8 * rapid.Int64Range(0, size/8-1).Draw(t, "word") }
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				i := who(t)
				c, err := clients[i].AllocOne(cl.T.Context())
				full := len(owned[i]) == budget || len(owned[0])+len(owned[1]) == chunks
				if (err != nil) != full {
					t.Fatalf("client %d has %d chunks, the other %d, and gets %v", i, len(owned[i]), len(owned[1-i]), err)
				}
				if err != nil {
					return
				}
				if names[c.Name()] {
					t.Fatalf("%s was handed out twice", c.Name())
				}
				names[c.Name()] = true
				owned[i] = append(owned[i], held{c, make([]byte, size)})
			},
			"free": func(t *rapid.T) {
				i := who(t)
				if len(owned[i]) == 0 {
					t.Skip("no chunk")
				}
				k := rapid.IntRange(0, len(owned[i])-1).Draw(t, "chunk")
				c := owned[i][k].c
				if err := c.Free(cl.T.Context()); err != nil {
					t.Fatal(err)
				}
				delete(names, c.Name())
				owned[i] = append(owned[i][:k], owned[i][k+1:]...)
			},
			"write": func(t *rapid.T) {
				h := pick(t)
				off := rapid.IntRange(0, size-1).Draw(t, "offset")
				p := rapid.SliceOfN(rapid.Byte(), 1, size-off).Draw(t, "bytes")
				var err error
				if rapid.Bool().Draw(t, "bulk") {
					err = h.c.WriteBulk(cl.T.Context(), p, int64(off))
				} else {
					_, err = h.c.WriteAt(p, int64(off))
				}
				if err != nil {
					t.Fatal(err)
				}
				copy(h.data[off:], p)
			},
			"read": func(t *rapid.T) {
				h := pick(t)
				got := make([]byte, size)
				if _, err := h.c.ReadAt(got, 0); err != nil || !bytes.Equal(got, h.data) {
					t.Fatalf("%s does not hold what was written (%v)", h.c.Name(), err)
				}
			},
			"fetch-add": func(t *rapid.T) {
				h, off, delta := pick(t), word(t), rapid.Uint64().Draw(t, "delta")
				want := binary.LittleEndian.Uint64(h.data[off:])
				got, err := h.c.FetchAdd(cl.T.Context(), off, delta)
				if err != nil || got != want {
					t.Fatalf("got %d, %v, want %d", got, err, want)
				}
				binary.LittleEndian.PutUint64(h.data[off:], want+delta)
			},
			"compare-and-swap": func(t *rapid.T) {
				h, off, new := pick(t), word(t), rapid.Uint64().Draw(t, "new")
				want := binary.LittleEndian.Uint64(h.data[off:])
				old := want + rapid.Uint64Range(0, 1).Draw(t, "miss")
				got, swapped, err := h.c.CompareAndSwap(cl.T.Context(), off, old, new)
				if err != nil || got != want || swapped != (old == want) {
					t.Fatalf("got %d, %v, %v, want %d", got, swapped, err, want)
				}
				if swapped {
					binary.LittleEndian.PutUint64(h.data[off:], new)
				}
			},
			"cut": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") > 0 {
					t.Skip("not now")
				}
				k := clients[who(t)]
				before := k.Stats().Nodes[0].Reconnects
				k.Cut(cl.Nodes[0])
				Eventually(cl.T, "the cut is noticed", func() bool {
					st := k.Stats().Nodes[0]
					return st.Reconnects > before && st.State == "up"
				})
			},
		})
	})
}

// register is an operation on a 64-bit word, in porcupine's model of it.
type register struct {
	kind     pool.OpKind
	old, new uint64
}

// unknown is the output of an operation that may have happened, or may yet.
type unknown struct{}

var registerModel = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		v, in := state.(uint64), input.(register)
		if prev, known := output.(uint64); known && prev != v {
			return false, v
		}
		switch {
		case in.kind == pool.OpFetchAdd:
			v += in.new
		case in.old == v:
			v = in.new
		}
		return true, v
	},
}

// linearizable has several callers work on one word, while the connection is
// cut now and then. Values are drawn from all 64 bits, so that what an
// operation saw tells which one came before it, and cuts are few, since every
// operation of unknown outcome doubles what the checker has to try.
func linearizable(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(2))
	k := cl.Open(pool.Config{})
	c := k.MustAlloc(t)
	const callers, rounds = 4, 80
	var mu sync.Mutex
	var history []porcupine.Operation
	var clock, ops atomic.Int64
	var wg sync.WaitGroup
	for id := range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(id), 2))
			var seen uint64
			for range rounds {
				in := register{kind: pool.OpFetchAdd, new: r.Uint64()}
				if r.IntN(2) == 0 {
					in = register{kind: pool.OpCompareAndSwap, old: seen, new: r.Uint64()}
				}
				op := porcupine.Operation{ClientId: id, Input: in, Call: clock.Add(1)}
				var prev uint64
				var err error
				if in.kind == pool.OpFetchAdd {
					prev, err = c.FetchAdd(t.Context(), 8, in.new)
				} else {
					prev, _, err = c.CompareAndSwap(t.Context(), 8, in.old, in.new)
				}
				op.Return, op.Output = clock.Add(1), prev
				switch {
				case err == nil:
					seen = prev
				case errors.Is(err, pool.ErrOutcomeUnknown):
					// If it did not happen, it might as well have
					// happened after everything else.
					op.Return, op.Output = math.MaxInt64, unknown{}
				default:
					t.Error(err)
					return
				}
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
				ops.Add(1)
			}
		})
	}
	for range 2 {
		done := ops.Load()
		Eventually(t, "the callers go on", func() bool {
			return ops.Load() > done+40 || ops.Load() == callers*rounds || t.Failed()
		})
		k.Cut(cl.Nodes[0])
	}
	wg.Wait()
	if res := porcupine.CheckOperationsTimeout(registerModel, history, 30*time.Second); res != porcupine.Ok {
		t.Fatalf("%d operations on one word are not linearizable: %v", len(history), res)
	}
}

// Script plays a fixed pseudo-random script of one client and returns a digest
// of everything that it could observe. It must be the same over every driver
// and manager.
func Script(t testing.TB, s Setup, seed uint64) string {
	const size = 8192
	cl := NewCluster(t, s, memnode.Config{Lend: 5 * size, ChunkSize: size}, memnode.Config{Lend: 3 * size, ChunkSize: size})
	k := cl.Open(pool.Config{})
	r := rand.New(rand.NewPCG(seed, 3))
	h := fnv.New64a()
	var chunks []*pool.Chunk
	for range 400 {
		switch n := r.IntN(10); {
		case n == 0:
			c, err := k.AllocOne(t.Context())
			fmt.Fprintf(h, "alloc %v\n", err != nil)
			if err == nil {
				chunks = append(chunks, c)
			}
		case n == 1 && len(chunks) > 0:
			i := r.IntN(len(chunks))
			fmt.Fprintf(h, "free %v\n", chunks[i].Free(t.Context()))
			chunks = append(chunks[:i], chunks[i+1:]...)
		case len(chunks) > 0:
			var ops []pool.Op
			for range 1 + r.IntN(6) {
				// One chunk an operation: a batch has no order of its own.
				i := len(ops)
				if i >= len(chunks) {
					break
				}
				op := pool.Op{Kind: pool.OpKind(1 + r.IntN(4)), Chunk: chunks[i], Off: int64(r.IntN(size)) &^ 7, Old: r.Uint64N(2), New: r.Uint64N(4), Bulk: r.IntN(2) == 0}
				if op.Kind == pool.OpRead || op.Kind == pool.OpWrite {
					op.Off += int64(r.IntN(8))
					op.Buf = pattern(r.Uint64(), r.IntN(size))
				}
				ops = append(ops, op)
			}
			k.Do(t.Context(), ops)
			for _, op := range ops {
				fmt.Fprintf(h, "%v %d %d %x %v\n", op.Kind, op.Off, op.Prev, op.Buf, op.Err != nil)
			}
		}
	}
	return fmt.Sprintf("%016x", h.Sum64())
}
