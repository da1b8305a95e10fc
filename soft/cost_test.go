package soft

import (
	"fmt"
	"hash/maphash"
	"testing"
	"time"
)

func TestAMissCostsTheTimeUntilItsKeyIsStored(t *testing.T) {
	key := func(i int) []byte { return fmt.Append(nil, "key:", i) }
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		do   func(m *Misses) time.Duration
		want time.Duration
	}{
		"a key that was missed": {func(m *Misses) time.Duration {
			m.Missed(key(1), 5*ms)
			return m.Stored(key(1), 12*ms)
		}, 7 * ms},
		"a key that was not missed": {func(m *Misses) time.Duration {
			m.Missed(key(1), 5*ms)
			return m.Stored(key(2), 12*ms)
		}, 0},
		"a key that is stored again": {func(m *Misses) time.Duration {
			m.Missed(key(1), 5*ms)
			m.Stored(key(1), 6*ms)
			return m.Stored(key(1), 12*ms)
		}, 0},
		"a key that was missed twice": {func(m *Misses) time.Duration {
			m.Missed(key(1), 1*ms)
			m.Missed(key(1), 5*ms)
			return m.Stored(key(1), 12*ms)
		}, 7 * ms},
		"a key that is stored without waiting for the answer": {func(m *Misses) time.Duration {
			m.Missed(key(1), 5*ms)
			return m.Stored(key(1), 5*ms)
		}, 0},
		"one of four that were missed together": {func(m *Misses) time.Duration {
			for i := range 4 {
				m.Missed(key(i), 5*ms)
			}
			return m.Stored(key(0), 13*ms)
		}, 2 * ms},
		"one of four that were missed together, before another": {func(m *Misses) time.Duration {
			for i := range 4 {
				m.Missed(key(i), 5*ms)
			}
			m.Missed(key(7), 6*ms)
			return m.Stored(key(0), 13*ms)
		}, 2 * ms},
		"one of a thousand that were missed together": {func(m *Misses) (took time.Duration) {
			for i := range 1000 {
				m.Missed(key(i), 0)
			}
			for i := range 1000 {
				took = max(took, m.Stored(key(i), time.Second))
			}
			return took
		}, ms},
		"a key that was missed too long ago": {func(m *Misses) time.Duration {
			m.Missed(key(1), 5*ms)
			return m.Stored(key(1), 6*ms+MaxRebuild)
		}, 0},
		"a key that was missed after others of which none is stored": {func(m *Misses) time.Duration {
			for i := range 10000 {
				m.Missed(key(i), time.Duration(i))
			}
			m.Missed(key(-1), 2*MaxRebuild)
			return m.Stored(key(-1), 2*MaxRebuild+3*ms)
		}, 3 * ms},
		"a key that was missed before more than are remembered": {func(m *Misses) time.Duration {
			for i := range 10000 {
				m.Missed(key(i), time.Duration(i))
			}
			return m.Stored(key(0), 3*ms)
		}, 3 * ms},
	} {
		if got := c.do(new(Misses)); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// costOf asks what a ByteMap takes a value to cost.
func costOf(t *testing.T, h *Heap, m *ByteMap, key string, took time.Duration) time.Duration {
	t.Helper()
	if err := m.Set([]byte(key), Item{Took: took}); err != nil {
		t.Fatal(err)
	}
	_, hd, _, f := m.t.get(m.hash([]byte(key)), []byte(key), nil)
	if f != present {
		t.Fatalf("%s is not there", key)
	}
	return time.Duration(h.curve.seconds(hd.cost) * 1e9)
}

func TestAValueCostsWhatOthersOfItsClassDo(t *testing.T) {
	h, m := newByteMap(t)
	place := func(class string) uint64 { return m.place([]byte(class + ":")) }
	for place("page") == place("user") || place("page") == place("report") || place("user") == place("report") {
		m.seed = maphash.MakeSeed() // classes that share a place share what is known
	}
	about := func(key string, took, want time.Duration) {
		t.Helper()
		if got := costOf(t, h, m, key, took); got < want*85/100 || got > want*115/100 {
			t.Errorf("%s, which took %v: got a cost of %v, want about %v", key, took, got, want)
		}
	}
	about("page:1", 0, time.Millisecond) // nobody has said anything
	for i := range 50 {
		about(fmt.Sprint("user:", i), 2*time.Millisecond, 2*time.Millisecond)
		about(fmt.Sprint("report/", i), 400*time.Millisecond, 400*time.Millisecond)
	}
	about("user:77", 0, 2*time.Millisecond)
	about("report/x", 0, 400*time.Millisecond)
	if s := h.Stats(); s.Rebuilds != 100 || s.RebuildTime != 50*402*time.Millisecond {
		t.Errorf("got %d rebuilds in %v, want 100 in %v", s.Rebuilds, s.RebuildTime, 50*402*time.Millisecond)
	}
	about("page:1", 0, 201*time.Millisecond) // of its class nobody has: the mean of all
	// A client that was stopped between its miss and its set.
	about("user:5", 9*time.Second, 32*time.Millisecond)
	about("user:6", 0, 4*time.Millisecond)
	for i := range 100 {
		about(fmt.Sprint("user:", i), 2*time.Millisecond, 2*time.Millisecond)
	}
	about("user:6", 0, 2*time.Millisecond)
}

func TestTheClassOfAKeyIsHowItBegins(t *testing.T) {
	for key, want := range map[string]string{
		"user:17": "user", "user17": "user", "user/17/feed": "user", "a.b": "a", "17": "", "": "", "greeting": "", ":x": "",
		"0123456789012345678901234567890123456789:": "", "abcdefghijklmnopqrstuvwxyzabcdefghijkl:1": "",
	} {
		if got := string(classOf([]byte(key))); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	}
}

// TestAHeapKnowsWhetherItsCostsAreAssumed: it is told of some of them by a map that
// takes costs, and by reconstructors.
func TestAHeapKnowsWhetherItsCostsAreAssumed(t *testing.T) {
	for name, tell := range map[string]func(h *Heap){
		"a map": func(h *Heap) {
			if err := newMap[int, int](t, h).SetCost(1, 1, time.Second); err != nil {
				t.Fatal(err)
			}
		},
		"the program": func(h *Heap) { h.Rebuilt(time.Second) },
	} {
		h := open(t, 16)
		h.curve.init(256 << 20)
		if err := newMap[int, int](t, h).Set(1, 1); err != nil {
			t.Fatal(err)
		}
		if !h.curve.assumed() {
			t.Errorf("%s has not said anything yet, and costs are known", name)
		}
		if tell(h); h.curve.assumed() {
			t.Errorf("%s has said what values cost, and costs are assumed", name)
		}
	}
}
