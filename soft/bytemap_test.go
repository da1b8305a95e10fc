package soft

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func newByteMap(t testing.TB) (*Heap, *ByteMap) {
	t.Helper()
	h := open(t, 32)
	m, err := NewByteMap(h, 0)
	if err != nil {
		t.Fatal(err)
	}
	return h, m
}

func TestAByteMapKeepsWhatIsBesideAValue(t *testing.T) {
	_, m := newByteMap(t)
	later := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	for i, size := range []int{0, 1, 100, maxInline - 100, maxInline, maxInline + 1, 3 << 20} {
		key := []byte(strconv.Itoa(i))
		want := Item{Value: bytes.Repeat([]byte{byte(i + 1)}, size), Tag: uint8(i % (MaxTag + 1))}
		if i%2 == 1 {
			want.Expire = later
		}
		if err := m.Set(key, want); err != nil {
			t.Fatal(err)
		}
		got, ok := m.Get(key, []byte("prefix"))
		if !ok || string(got.Value) != "prefix"+string(want.Value) || got.Tag != want.Tag || !got.Expire.Equal(want.Expire) {
			t.Errorf("%d bytes: got %d bytes with tag %d until %v, %v, want tag %d until %v", size, len(got.Value)-6, got.Tag, got.Expire, ok, want.Tag, want.Expire)
		}
		stat, n, ok := m.Stat(key)
		if !ok || n != size || stat.Tag != want.Tag || !stat.Expire.Equal(want.Expire) || stat.Value != nil {
			t.Errorf("%d bytes: Stat got %d bytes with tag %d until %v, %v", size, n, stat.Tag, stat.Expire, ok)
		}
	}
	if n := m.Len(); n != 7 {
		t.Errorf("got %d keys, want 7", n)
	}
	if err := m.Set([]byte("k"), Item{Tag: MaxTag + 1}); err == nil {
		t.Error("a tag that is too large was stored")
	}
	if !m.Delete([]byte("0")) || m.Delete([]byte("0")) {
		t.Error("a key is deleted once")
	}
	m.Clear()
	if _, ok := m.Random(nil); ok || m.Len() != 0 {
		t.Errorf("a cleared map has %d keys, and some: %v", m.Len(), ok)
	}
}

func TestWhatHasExpiredIsNotInAByteMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, m := newByteMap(t)
		for _, key := range []string{"got", "statted", "deleted", "walked"} {
			if err := m.Set([]byte(key), Item{Expire: time.Now().Add(time.Second)}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // of the bubble's clock
		walk(m, 0, func(key string) { t.Errorf("a walk finds %s", key) })
		if _, ok := m.Get([]byte("got"), nil); ok {
			t.Error("Get finds it")
		}
		if _, _, ok := m.Stat([]byte("statted")); ok {
			t.Error("Stat finds it")
		}
		if m.Delete([]byte("deleted")) {
			t.Error("Delete finds it")
		}
		if n := m.Len(); n != 1 {
			t.Errorf("%d keys are left, want 1: the others were looked up", n)
		}
	})
}

// walk scans a map to its end, from a cursor on.
func walk(m *ByteMap, cursor uint64, visit func(key string)) {
	for {
		cursor = m.Scan(cursor, func(key []byte, _ Item) { visit(string(key)) })
		if cursor == 0 {
			return
		}
	}
}

func TestAWalkMissesNothingWhileAMapGrows(t *testing.T) {
	_, m := newByteMap(t)
	for i := range 500 {
		if err := m.Set(fmt.Append(nil, "stay", i), Item{}); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[string]int)
	more := 0
	for cursor := uint64(0); ; {
		cursor = m.Scan(cursor, func(key []byte, _ Item) { seen[string(key)]++ })
		if cursor == 0 {
			break
		}
		for range 20 {
			if more++; more < 50_000 {
				if err := m.Set(fmt.Append(nil, "more", more), Item{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for i := range 500 {
		if seen[fmt.Sprint("stay", i)] == 0 {
			t.Errorf("stay%d was missed", i)
		}
	}
}

func TestAnyCursorIsAnswered(t *testing.T) {
	_, m := newByteMap(t)
	for i := range 1000 {
		if err := m.Set(strconv.AppendInt(nil, int64(i), 10), Item{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 10_000 {
		n := 0
		m.Scan(rand.Uint64()>>rand.IntN(64), func([]byte, Item) { n++ })
		if n > 8 {
			t.Fatalf("a step visited %d keys", n)
		}
	}
}

func TestRandomFindsEveryKey(t *testing.T) {
	_, m := newByteMap(t)
	for i := range 20 {
		if err := m.Set([]byte{byte(i)}, Item{}); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[byte]bool)
	for range 100_000 {
		key, ok := m.Random(nil)
		if !ok || len(key) != 1 {
			t.Fatalf("got %q, %v", key, ok)
		}
		if seen[key[0]] = true; len(seen) == 20 {
			return
		}
	}
	t.Errorf("only %d of 20 keys came up", len(seen))
}

func TestReadingAByteMapDoesNotAllocate(t *testing.T) {
	_, m := newByteMap(t)
	key, dst := bytes.Repeat([]byte("k"), 100), make([]byte, 0, 4096)
	if err := m.Set(key, Item{Value: make([]byte, 4000)}); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { m.Get(key, dst) }); n != 0 {
		t.Errorf("Get allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() { m.Stat(key) }); n != 0 {
		t.Errorf("Stat allocates %v times", n)
	}
}
