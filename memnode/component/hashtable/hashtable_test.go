package hashtable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"polder/internal/offload"
	"polder/memnode/component"
)

func TestATableDoesWhatAMapDoes(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		env := component.NewEnv(4 << 20)
		object, err := New(env, &component.Call{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		model := make(map[string][]byte)
		full := 0
		call := new(component.Call)
		for step := range 30_000 {
			key := fmt.Appendf(nil, "key %d", r.IntN(2000))
			switch r.IntN(10) {
			case 0, 1, 2, 3, 4:
				value := bytes.Repeat([]byte{byte(step)}, r.IntN(7000))
				switch err := object.Write(call, key, value); {
				case errors.Is(err, component.ErrNoMemory):
					full++
				case err != nil:
					t.Fatal(err)
				default:
					model[string(key)] = value
				}
			case 5, 6:
				_, want := model[string(key)]
				delete(model, string(key))
				if err := object.Delete(call, key); (err == nil) != want || err != nil && !errors.Is(err, component.ErrNotFound) {
					t.Fatalf("step %d: delete gives %v, in the model: %v", step, err, want)
				}
			case 7:
				if r.IntN(3000) == 0 {
					clear(model)
					if _, err := object.Compute(call, offload.TableClear, nil, nil); err != nil {
						t.Fatal(err)
					}
				}
			default:
				want, found := model[string(key)]
				got, err := object.Read(call, key, make([]byte, 0, 7000))
				if found && (err != nil || !bytes.Equal(got, want)) || !found && !errors.Is(err, component.ErrNotFound) {
					t.Fatalf("step %d: got %d bytes, %v, want %d, %v", step, len(got), err, len(want), found)
				}
			}
			if n := env.Used(); n > 4<<20 {
				t.Fatalf("step %d: the table uses %d bytes of %d", step, n, 4<<20)
			}
		}
		out, err := object.Compute(call, offload.TableLen, nil, make([]byte, 0, 8))
		if err != nil || binary.LittleEndian.Uint64(out) != uint64(len(model)) {
			t.Fatalf("got %d entries, %v, want %d", out, err, len(model))
		}
		if full == 0 || full > 10_000 {
			t.Errorf("%d of 15000 puts found no memory: the test means some to, and most not", full)
		}
		for key, want := range model {
			if got, err := object.Read(call, []byte(key), make([]byte, 0, 7000)); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%q: got %d bytes, %v, want %d", key, len(got), err, len(want))
			}
		}
	}
}

// A table is cleared even if there is no memory left for anything.
func TestATableIsClearedWithoutMemory(t *testing.T) {
	env := component.NewEnv(4 << 20)
	call := new(component.Call)
	object, err := New(env, call, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := object.Write(call, []byte("key"), []byte("value")); err != nil {
		t.Fatal(err)
	}
	if _, err := env.Alloc(int(env.Left())); err != nil {
		t.Fatal(err)
	}
	if _, err := object.Compute(call, offload.TableClear, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := object.Read(call, []byte("key"), make([]byte, 0, 100)); !errors.Is(err, component.ErrNotFound) {
		t.Errorf("after that: got %q, %v, want %v", got, err, component.ErrNotFound)
	}
	if err := object.Write(call, []byte("key"), []byte("value")); err != nil {
		t.Errorf("a cleared table is full: %v", err)
	}
}

func TestATableRefusesWhatIsWrong(t *testing.T) {
	env := component.NewEnv(4 << 20)
	object, err := New(env, &component.Call{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	call := new(component.Call)
	if _, err := New(env, call, []byte{1}); err == nil {
		t.Error("parameters were accepted")
	}
	if err := object.Write(call, make([]byte, offload.MaxKey+1), nil); err == nil {
		t.Error("a key that is too long was accepted")
	}
	if err := object.Write(call, []byte("k"), make([]byte, offload.MaxValue+1)); err == nil {
		t.Error("a value that is too large was accepted")
	}
	if err := object.Write(call, []byte("k"), make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, err := object.Read(call, []byte("k"), make([]byte, 0, 99)); !errors.Is(err, component.ErrTooLarge) {
		t.Errorf("got %v, want %v", err, component.ErrTooLarge)
	}
	if _, err := object.Compute(call, 99, nil, nil); err == nil {
		t.Error("an unknown operation was accepted")
	}
	if _, err := New(component.NewEnv(1000), call, nil); !errors.Is(err, component.ErrNoMemory) {
		t.Errorf("got %v, want %v", err, component.ErrNoMemory)
	}
}

func BenchmarkGet(b *testing.B) {
	object, err := New(component.NewEnv(1<<30), &component.Call{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	call := new(component.Call)
	const n = 100_000
	for i := range n {
		if err := object.Write(call, binary.LittleEndian.AppendUint64(nil, uint64(i)), make([]byte, 64)); err != nil {
			b.Fatal(err)
		}
	}
	var key [8]byte
	out := make([]byte, 0, 64)
	b.ReportAllocs()
	i := uint64(0)
	for b.Loop() {
		i = i*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(key[:], i>>33%n)
		if _, err := object.Read(call, key[:], out); err != nil {
			b.Fatal(err)
		}
	}
}
