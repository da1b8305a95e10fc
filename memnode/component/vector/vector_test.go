package vector

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"polder/internal/offload"
	"polder/memnode/component"
)

func newVector(t testing.TB, env *component.Env, kind offload.Kind) *vector {
	t.Helper()
	o, err := New(env, live(), []byte{byte(kind)})
	if err != nil {
		t.Fatal(err)
	}
	return o.(*vector)
}

// live is a call that does not expire.
func live(others ...component.Object) *component.Call {
	c := component.NewCall(time.Now().Add(time.Hour))
	copy(c.Others[:], others)
	return c
}

func index(i uint64) []byte { return binary.LittleEndian.AppendUint64(nil, i) }

func stretch(i uint64, n int) []byte { return binary.LittleEndian.AppendUint32(index(i), uint32(n)) }

func ints(vs ...int32) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func TestAVectorDoesWhatASliceDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	v := newVector(t, component.NewEnv(64<<20), offload.Int32)
	var model []int32
	for step := range 1500 {
		switch r.IntN(6) {
		case 0, 1, 2: // write, often beyond the end and over a block's
			first := r.IntN(len(model) + 1)
			if r.IntN(2) == 0 {
				first = len(model)
			}
			data := make([]int32, r.IntN(10_000))
			for i := range data {
				data[i] = int32(r.Uint32())
			}
			model = append(model, make([]int32, max(0, first+len(data)-len(model)))...)
			copy(model[first:], data)
			if err := v.Write(live(), index(uint64(first)), ints(data...)); err != nil {
				t.Fatal(err)
			}
		case 3:
			n := len(model) - r.IntN(len(model)/16+1)*r.IntN(2)
			model = model[:n]
			if err := v.Delete(live(), index(uint64(n))); err != nil {
				t.Fatal(err)
			}
		case 4:
			n := len(model) + r.IntN(1000)
			model = append(model, make([]int32, n-len(model))...)
			if _, err := v.Compute(live(), offload.VectorResize, index(uint64(n)), make([]byte, 0, 64)); err != nil {
				t.Fatal(err)
			}
		default:
			first, n := r.IntN(len(model)+1), r.IntN(20_000)
			want := ints(model[first:min(len(model), first+n)]...)
			got, err := v.Read(live(), stretch(uint64(first), n), make([]byte, 0, 80_000))
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("step %d: %d elements from %d: got %d bytes, %v, want %d", step, n, first, len(got), err, len(want))
			}
		}
		if v.len != uint64(len(model)) {
			t.Fatalf("step %d: %d elements, want %d", step, v.len, len(model))
		}
	}
	if len(model)*4 < blockSize {
		t.Errorf("the vector had %d bytes at the end: the test means several blocks", len(model)*4)
	}
	q := offload.Query{End: math.MaxUint64, Compare: offload.Less}
	out, err := v.Compute(live(), offload.VectorAggregate, q.Append(nil), make([]byte, 0, 64))
	var a offload.Aggregate
	if err != nil || !a.Decode(out) {
		t.Fatal(out, err)
	}
	var sum, count int64
	least, greatest := int32(0), int32(math.MinInt32)
	var want []uint64
	for i, x := range model {
		if x < 0 {
			sum, count, least, greatest = sum+int64(x), count+1, min(least, x), max(greatest, x)
			want = append(want, uint64(i))
		}
	}
	if int64(a.Sum) != sum || int64(a.Count) != count || !bytes.Equal(a.Least[:4], ints(least)) || !bytes.Equal(a.Greatest[:4], ints(greatest)) {
		t.Fatalf("got %+v, want sum %d, count %d, %d to %d", a, sum, count, least, greatest)
	}
	var got []uint64
	for q.First < uint64(len(model)) {
		out, err := v.Compute(live(), offload.VectorFilter, q.Append(nil), make([]byte, 0, 4096))
		if err != nil {
			t.Fatal(err)
		}
		next := binary.LittleEndian.Uint64(out)
		if next <= q.First {
			t.Fatalf("the filter goes on at %d after %d", next, q.First)
		}
		for q.First, out = next, out[8:]; len(out) > 0; out = out[8:] {
			got = append(got, binary.LittleEndian.Uint64(out))
		}
	}
	if len(got) != len(want) {
		t.Fatalf("got %d matches, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("match %d: got %d, want %d", i, got[i], want[i])
		}
	}
}

func TestCopyAndShuffle(t *testing.T) {
	env := component.NewEnv(32 << 20)
	src, order := newVector(t, env, offload.Int32), newVector(t, env, offload.Uint64)
	const n = 600_000 // of 4 bytes: three blocks
	r := rand.New(rand.NewPCG(3, 4))
	perm := r.Perm(n)
	var rows []byte
	values := make([]int32, n)
	for i := range n {
		values[i] = int32(r.Uint32())
		rows = binary.LittleEndian.AppendUint64(rows, uint64(perm[i]))
	}
	if err := src.Write(live(), index(0), ints(values...)); err != nil {
		t.Fatal(err)
	}
	if err := order.Write(live(), index(0), rows); err != nil {
		t.Fatal(err)
	}
	dst := newVector(t, env, offload.Int32)
	if _, err := dst.Compute(live(src, order), offload.VectorShuffle, nil, make([]byte, 0, 64)); err != nil {
		t.Fatal(err)
	}
	shuffled := make([]int32, n)
	for i, row := range perm {
		shuffled[i] = values[row]
	}
	if got, err := dst.Read(live(), stretch(0, n), make([]byte, 0, 4*n)); err != nil || !bytes.Equal(got, ints(shuffled...)) {
		t.Fatalf("shuffled wrongly (%d bytes, %v)", len(got), err)
	}
	if _, err := dst.Compute(live(src), offload.VectorCopy, append(index(1001), index(500_000)...), make([]byte, 0, 64)); err != nil {
		t.Fatal(err)
	}
	if got, err := dst.Read(live(), stretch(0, n), make([]byte, 0, 4*n)); err != nil || !bytes.Equal(got, ints(values[1001:500_000]...)) {
		t.Fatalf("copied wrongly (%d bytes, %v)", len(got), err)
	}

	if err := order.Write(live(), index(7), index(n)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*component.Call{
		"a row that does not exist":    live(src, order),
		"no order":                     live(src),
		"itself":                       live(dst, order),
		"an order that is no numbers":  live(src, src),
		"elements of a different kind": live(order, order),
	} {
		if _, err := dst.Compute(c, offload.VectorShuffle, nil, make([]byte, 0, 64)); err == nil {
			t.Errorf("shuffled with %s", name)
		}
	}
}

func TestFloatsAreAddedAndCompared(t *testing.T) {
	v := newVector(t, component.NewEnv(4<<20), offload.Float64)
	var data []byte
	for _, x := range []float64{math.NaN(), 2.5, -1, math.NaN(), 7} {
		data = binary.LittleEndian.AppendUint64(data, math.Float64bits(x))
	}
	if err := v.Write(live(), index(0), data); err != nil {
		t.Fatal(err)
	}
	q := offload.Query{First: 1, End: 3}
	for _, want := range []struct{ count, sum, least, greatest float64 }{{2, 1.5, -1, 2.5}, {5, math.NaN(), -1, 7}} {
		out, err := v.Compute(live(), offload.VectorAggregate, q.Append(nil), make([]byte, 0, 64))
		var a offload.Aggregate
		if err != nil || !a.Decode(out) {
			t.Fatal(out, err)
		}
		sum := math.Float64frombits(a.Sum)
		least, greatest := math.Float64frombits(binary.LittleEndian.Uint64(a.Least[:])), math.Float64frombits(binary.LittleEndian.Uint64(a.Greatest[:]))
		if float64(a.Count) != want.count || least != want.least || greatest != want.greatest || sum != want.sum && !(math.IsNaN(sum) && math.IsNaN(want.sum)) {
			t.Errorf("got %v elements, sum %v, %v to %v, want %v", a.Count, sum, least, greatest, want)
		}
		q = offload.Query{End: 9}
	}
}

func TestAVectorRefusesWhatIsWrong(t *testing.T) {
	env := component.NewEnv(4 << 20)
	for _, params := range [][]byte{nil, {0}, {11}, {1, 1}} {
		if _, err := New(env, live(), params); err == nil {
			t.Errorf("a vector was made of parameters %x", params)
		}
	}
	v := newVector(t, env, offload.Int32)
	if err := v.Write(live(), index(0), ints(1, 2, 3)); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 0, 64)
	wrong := map[string]error{
		"a hole":             v.Write(live(), index(4), ints(1)),
		"half an element":    v.Write(live(), index(0), []byte{1, 2}),
		"a long key":         v.Write(live(), stretch(0, 1), ints(1)),
		"a far index":        v.Write(live(), index(math.MaxUint64), ints(1)),
		"cutting to more":    v.Delete(live(), index(4)),
		"cutting by nothing": v.Delete(live(), nil),
	}
	for _, key := range [][]byte{nil, index(0), stretch(4, 1), stretch(math.MaxUint64, 1)} {
		_, wrong["reading "+string(key)] = v.Read(live(), key, out)
	}
	for op := range uint16(12) {
		_, wrong["an operation with garbage"] = v.Compute(live(), op, []byte{1, 2, 3}, out)
		if wrong["an operation with garbage"] == nil {
			t.Errorf("operation %d took garbage", op)
		}
	}
	for name, err := range wrong {
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	for _, n := range []uint64{2 << 20, 1 << 40, math.MaxUint64} {
		if _, err := v.Compute(live(), offload.VectorResize, index(n), out); !errors.Is(err, component.ErrNoMemory) {
			t.Errorf("%d elements: got %v, want %v", n, err, component.ErrNoMemory)
		}
	}
	if v.len != 3 {
		t.Errorf("the vector has %d elements, want 3 as before", v.len)
	}
	if _, err := v.Read(live(), stretch(0, 3), make([]byte, 0, 11)); !errors.Is(err, component.ErrTooLarge) {
		t.Errorf("got %v, want %v", err, component.ErrTooLarge)
	}
	if _, err := v.Read(component.NewCall(time.Now().Add(-1)), stretch(0, 3), out); !errors.Is(err, component.ErrExpired) {
		t.Errorf("got %v, want %v", err, component.ErrExpired)
	}
}

func FuzzCompute(f *testing.F) {
	q := offload.Query{End: 10, Compare: offload.Greater}
	f.Add(uint16(offload.VectorAggregate), q.Append(nil))
	f.Add(uint16(offload.VectorFilter), q.Append(nil))
	f.Add(uint16(offload.VectorResize), index(1<<40))
	f.Add(uint16(offload.VectorCopy), append(index(2), index(1)...))
	f.Fuzz(func(t *testing.T, op uint16, in []byte) {
		env := component.NewEnv(4 << 20)
		v, src := newVector(t, env, offload.Int32), newVector(t, env, offload.Int32)
		for _, w := range []*vector{v, src} {
			if err := w.Write(live(), index(0), ints(5, 1, 4)); err != nil {
				t.Fatal(err)
			}
		}
		out, err := v.Compute(live(src), op, in, make([]byte, 0, 256))
		if err == nil && len(out) > 256 {
			t.Fatalf("operation %d gives %d bytes of 256", op, len(out))
		}
		v.shrink(0)
		src.shrink(0)
		if env.Used() != 0 {
			t.Fatalf("operation %d leaves %d bytes allocated", op, env.Used())
		}
	})
}

func BenchmarkAggregate(b *testing.B) {
	v := newVector(b, component.NewEnv(64<<20), offload.Int64)
	out := make([]byte, 0, 64)
	if _, err := v.Compute(live(), offload.VectorResize, index(1<<20), out); err != nil {
		b.Fatal(err)
	}
	for _, k := range []struct {
		name string
		q    offload.Query
	}{{"all", offload.Query{End: 1 << 20}}, {"less", offload.Query{End: 1 << 20, Compare: offload.Less, Operand: [8]byte{1}}}} {
		b.Run(k.name, func(b *testing.B) {
			in := k.q.Append(nil)
			b.SetBytes(8 << 20)
			b.ReportAllocs()
			call := live()
			for b.Loop() {
				if _, err := v.Compute(call, offload.VectorAggregate, in, out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
