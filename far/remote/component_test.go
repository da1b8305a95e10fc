package remote

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"polder/far"
	"polder/internal/linear"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/pool/pooltest"
)

// newDevice starts a node with components, and returns a pool's.
func newDevice(t *testing.T, s pooltest.Setup) (far.Device, *pooltest.Cluster) {
	t.Helper()
	c := pooltest.NewCluster(t, s, memnode.Config{
		Lend: 64 << 20, ChunkSize: 1 << 20, Components: component.Config{Memory: 48 << 20, ClientMemory: 24 << 20, Time: 10 * time.Second},
	})
	return NewDevice(c.Open(pool.Config{}).Pool), c
}

func overDrivers(t *testing.T, f func(t *testing.T, s pooltest.Setup)) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP, pooltest.SHM} {
		t.Run("over "+s.Name, func(t *testing.T) { f(t, s) })
	}
}

func TestARemoteTableIsAMap(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		d, _ := newDevice(t, s)
		table, err := far.NewRemoteTable(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(5, 6))
		model := make(map[string][]byte)
		for step := range 3000 {
			key := fmt.Append(nil, r.IntN(200))
			want, found := model[string(key)]
			switch r.IntN(4) {
			case 0:
				value := bytes.Repeat([]byte{byte(step)}, r.IntN(1000))
				if err := table.Put(t.Context(), key, value); err != nil {
					t.Fatal(err)
				}
				model[string(key)] = value
			case 1:
				delete(model, string(key))
				if err := table.Delete(t.Context(), key); found != (err == nil) || !found && !errors.Is(err, far.ErrNotFound) {
					t.Fatalf("step %d: delete gives %v, found in the model: %v", step, err, found)
				}
			default:
				got, err := table.Get(t.Context(), key, nil)
				if found && (err != nil || !bytes.Equal(got, want)) || !found && !errors.Is(err, far.ErrNotFound) {
					t.Fatalf("step %d: got %d bytes, %v, want %d, %v", step, len(got), err, len(want), found)
				}
			}
		}
		if n, err := table.Len(t.Context()); n != len(model) || err != nil {
			t.Fatalf("got %d keys, %v, want %d", n, err, len(model))
		}
		if err := table.Clear(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, err := table.Len(t.Context()); n != 0 || err != nil {
			t.Fatalf("got %d keys after Clear, %v", n, err)
		}
		if err := table.Put(t.Context(), make([]byte, far.MaxTableKey+1), nil); !errors.Is(err, far.ErrTooLarge) {
			t.Fatalf("got %v, want %v", err, far.ErrTooLarge)
		}
		if err := table.Put(t.Context(), make([]byte, far.MaxTableKey), make([]byte, far.MaxTableValue)); err != nil {
			t.Fatal(err)
		}
		if err := table.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		var lost *far.LostError
		if _, err := table.Get(t.Context(), []byte("k"), nil); !errors.As(err, &lost) {
			t.Fatalf("got %v, want a LostError", err)
		}
	})
}

func TestALostTableSaysSo(t *testing.T) {
	d, c := newDevice(t, pooltest.Inproc)
	table, err := far.NewRemoteTable(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Put(t.Context(), []byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	c.Nodes[0].Crash()
	c.Nodes[0].Start()
	pooltest.Eventually(t, "the table is lost", func() bool {
		_, err := table.Get(t.Context(), []byte("k"), nil)
		var lost *far.LostError
		return errors.As(err, &lost)
	})
	if err := table.Close(t.Context()); err != nil {
		t.Fatalf("closing a lost table: %v", err)
	}
}

// vectorDoes runs everything that a vector does with elements of type T.
func vectorDoes[T far.Number](t *testing.T, d far.Device, random func(*rand.Rand) T) {
	ctx := t.Context()
	v, err := far.NewRemoteVector[T](ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(7, 8))
	model := make([]T, 50_000)
	for i := range model {
		model[i] = random(r)
	}
	if err := v.Write(ctx, 0, model[:30_000]); err != nil {
		t.Fatal(err)
	}
	if err := v.Write(ctx, 20_000, model[20_000:]); err != nil {
		t.Fatal(err)
	}
	if n, err := v.Len(ctx); n != len(model) || err != nil {
		t.Fatalf("got %d elements, %v, want %d", n, err, len(model))
	}
	got := make([]T, len(model)+10)
	if n, err := v.Read(ctx, 1000, got); err != nil || !slices.Equal(got[:n], model[1000:]) {
		t.Fatalf("got %d elements, %v, want %d", n, err, len(model)-1000)
	}
	pivot := model[17]
	for op, matches := range map[far.Comparison]func(int) bool{
		far.IfAll: func(int) bool { return true }, far.IfEqual: func(c int) bool { return c == 0 },
		far.IfNotEqual: func(c int) bool { return c != 0 }, far.IfLess: func(c int) bool { return c < 0 },
		far.IfLessOrEqual: func(c int) bool { return c <= 0 }, far.IfGreater: func(c int) bool { return c > 0 },
		far.IfGreaterOrEqual: func(c int) bool { return c >= 0 },
	} {
		where := far.Where[T]{First: 5, End: 45_000, If: op, Operand: pivot}
		var want far.Summary[T]
		var indices []int
		for i := where.First; i < where.End; i++ {
			x := model[i]
			if !matches(cmp.Compare(x, pivot)) {
				continue
			}
			indices = append(indices, i)
			if want.Count == 0 {
				want.Min, want.Max = x, x
			}
			want.Min, want.Max, want.Count = min(want.Min, x), max(want.Max, x), want.Count+1
			switch any(x).(type) {
			case float32, float64:
				want.SumFloat += float64(x)
			case int8, int16, int32, int64:
				want.SumInt += int64(x)
			default:
				want.SumUint += uint64(x)
			}
		}
		if got, err := v.Aggregate(ctx, where); err != nil || got != want {
			t.Fatalf("comparison %d: got %+v, %v, want %+v", op, got, err, want)
		}
		var found []int
		for i, err := range v.Filter(ctx, where) {
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, i)
		}
		if !slices.Equal(found, indices) {
			t.Fatalf("comparison %d: got %d indices, want %d", op, len(found), len(indices))
		}
	}

	order, err := far.RemoteVectorBeside[uint32](ctx, v)
	if err != nil {
		t.Fatal(err)
	}
	rows := make([]uint32, 10_000)
	want := make([]T, len(rows))
	for i := range rows {
		rows[i] = r.Uint32N(uint32(len(model)))
		want[i] = model[rows[i]]
	}
	if err := order.Write(ctx, 0, rows); err != nil {
		t.Fatal(err)
	}
	shuffled, err := far.Shuffle(ctx, v, order)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := shuffled.Read(ctx, 0, got); err != nil || !slices.Equal(got[:n], want) {
		t.Fatalf("shuffled: got %d elements, %v, want %d others", n, err, len(want))
	}
	copied, err := v.Copy(ctx, 7, 45_000)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := copied.Read(ctx, 0, got); err != nil || !slices.Equal(got[:n], model[7:45_000]) {
		t.Fatalf("copied: got %d elements, %v, want %d others", n, err, 45_000-7)
	}
	if err := copied.Resize(ctx, 10); err != nil {
		t.Fatal(err)
	}
	if err := copied.Resize(ctx, 11); err != nil {
		t.Fatal(err)
	}
	if n, err := copied.Read(ctx, 9, got); err != nil || n != 2 || got[0] != model[16] || got[1] != 0 {
		t.Fatalf("resized: got %v, %v", got[:n], err)
	}
	for i, x := range []interface{ Close(context.Context) error }{v, order, shuffled, copied} {
		if err := x.Close(ctx); err != nil {
			t.Fatalf("vector %d: %v", i, err)
		}
	}
}

func TestARemoteVectorIsASlice(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		d, c := newDevice(t, s)
		vectorDoes(t, d, func(r *rand.Rand) int8 { return int8(r.Uint32()) })
		vectorDoes(t, d, func(r *rand.Rand) int16 { return int16(r.Uint32()) })
		vectorDoes(t, d, func(r *rand.Rand) int32 { return int32(r.Uint32()) })
		vectorDoes(t, d, func(r *rand.Rand) int64 { return int64(r.Uint64()) })
		vectorDoes(t, d, func(r *rand.Rand) uint8 { return uint8(r.Uint32()) })
		vectorDoes(t, d, func(r *rand.Rand) uint16 { return uint16(r.Uint32()) })
		vectorDoes(t, d, (*rand.Rand).Uint32)
		vectorDoes(t, d, (*rand.Rand).Uint64)
		// Numbers whose sums are exact in whatever order.
		vectorDoes(t, d, func(r *rand.Rand) float32 { return float32(r.IntN(2000)-1000) / 4 })
		vectorDoes(t, d, func(r *rand.Rand) float64 { return float64(r.IntN(2000)-1000) / 4 })
		if st := c.Nodes[0].Stats().Components; st.Objects != 0 || st.Deaths != 0 {
			t.Errorf("at the end: %+v", st)
		}
	})
}

func TestVectorsRefuseWhatIsWrong(t *testing.T) {
	d, _ := newDevice(t, pooltest.Inproc)
	ctx := t.Context()
	v, err := far.NewRemoteVector[float64](ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Write(ctx, 1, []float64{1}); !errors.Is(err, far.ErrRefused) {
		t.Errorf("a hole: got %v, want %v", err, far.ErrRefused)
	}
	if err := v.Resize(ctx, math.MaxInt64); !errors.Is(err, far.ErrStoreFull) {
		t.Errorf("got %v, want %v", err, far.ErrStoreFull)
	}
	if _, err := v.Aggregate(ctx, far.Where[float64]{First: -1}); err == nil {
		t.Error("a negative index was accepted")
	}
	if _, err := v.Copy(ctx, 3, 2); err == nil {
		t.Error("a backward range was accepted")
	}
	other, _ := newDevice(t, pooltest.Inproc)
	order, err := far.NewRemoteVector[uint32](ctx, other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := far.Shuffle(ctx, v, order); err == nil {
		t.Error("a vector was shuffled by one of another node")
	}
	s, err := v.Aggregate(ctx, far.Where[float64]{})
	if err != nil || s != (far.Summary[float64]{}) {
		t.Errorf("of nothing: got %+v, %v", s, err)
	}
}

// tableOp is an operation on one key of a table, for the check of
// linearizability.
type tableOp struct {
	kind  byte // g, p, d
	key   int
	value string
}

type tableResult struct {
	value string // "" if there is none
	known bool   // it is known to have happened
}

var tableModel = porcupine.Model{
	Partition: linear.By(func(in tableOp) int { return in.key }),
	Init:      func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(tableOp), output.(tableResult)
		switch in.kind {
		case 'p':
			return true, in.value
		case 'd':
			return !out.known || (out.value != "") == (state != ""), ""
		}
		return out.value == state, state
	},
}

// Goroutines of a client put, get and delete few keys at once, while connections
// break: the history is linearizable.
func TestATableIsLinearizable(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, memnode.Config{
			Lend: 32 << 20, ChunkSize: 1 << 20, Components: component.Config{Memory: 16 << 20, Time: 10 * time.Second},
		})
		k := c.Open(pool.Config{})
		table, err := far.NewRemoteTable(t.Context(), NewDevice(k.Pool))
		if err != nil {
			t.Fatal(err)
		}
		const clients, keys, steps = 6, 3, 150
		begin := time.Now()
		var mu sync.Mutex
		var history []porcupine.Operation
		unknown := 0
		var wg sync.WaitGroup
		for id := range clients {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(id), 9))
				for step := range steps {
					if id == 0 && step%50 == 25 {
						k.Cut(c.Nodes[0])
					}
					op := tableOp{kind: "gpd"[r.IntN(3)], key: r.IntN(keys), value: fmt.Sprintf("%d.%d", id, step)}
					key := fmt.Append(nil, op.key)
					call := time.Since(begin)
					var out []byte
					var err error
					switch op.kind {
					case 'g':
						out, err = table.Get(context.Background(), key, nil)
					case 'p':
						err = table.Put(context.Background(), key, []byte(op.value))
					default:
						err = table.Delete(context.Background(), key)
						out = []byte("it was there")
					}
					back := time.Since(begin)
					res := tableResult{value: string(out), known: true}
					switch {
					case errors.Is(err, far.ErrNotFound):
						res.value = ""
					case errors.Is(err, pool.ErrOutcomeUnknown) && op.kind != 'g':
						// It may happen at any time from now on, or never.
						res.known, back = false, math.MaxInt64
					case err != nil:
						t.Errorf("%c %d: %v", op.kind, op.key, err)
						return
					}
					mu.Lock()
					if !res.known {
						unknown++
					}
					history = append(history, porcupine.Operation{
						ClientId: id, Input: op, Output: res, Call: int64(call), Return: int64(back),
					})
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if res := porcupine.CheckOperationsTimeout(tableModel, history, 30*time.Second); res != porcupine.Ok {
			t.Fatalf("the history of %d operations, %d with unknown outcome, is not linearizable: %v", len(history), unknown, res)
		}
	})
}
