package soft

import (
	"encoding/binary"
	"flag"
	"hash/crc32"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/codec"
)

var (
	tortureTime = flag.Duration("torture", 3*time.Second, "how long the torture test runs")
	torturePace = flag.Uint64("torture.pace", 16, "how many reads there are between revocations in the torture test")
)

// record carries its own checksum: no torn, zeroed, stale or foreign bytes
// pass for one.
type record [8]uint64

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func makeRecord(key, salt uint64) (r record) {
	r[0], r[1] = key, salt
	for i := 2; i < 7; i++ {
		r[i] = mix(salt + uint64(i))
	}
	r[7] = uint64(crc32.Checksum(codec.Bytes(&r)[:56], castagnoli))
	return r
}

func (r *record) right(key uint64) bool {
	return r[0] == key && r[7] == uint64(crc32.Checksum(codec.Bytes(r)[:56], castagnoli))
}

// page is the largest value that is overwritten in place.
type page [maxInPlace / 64]record

func makePage(key, salt uint64) (p page) {
	for i := range p {
		p[i] = makeRecord(key, salt+uint64(i))
	}
	return p
}

// right reports whether every record is of the same write.
func (p *page) right(key uint64) bool {
	for i := range p {
		if !p[i].right(key) || p[i][1] != p[0][1]+uint64(i) {
			return false
		}
	}
	return true
}

func makeBytes(key uint64, n int) []byte {
	b := make([]byte, n)
	binary.LittleEndian.PutUint64(b, key)
	for i := 8; i < n-4; i++ {
		b[i] = byte(key) ^ byte(i)*31
	}
	binary.LittleEndian.PutUint32(b[n-4:], crc32.Checksum(b[:n-4], castagnoli))
	return b
}

func rightBytes(b []byte, key uint64) bool {
	return len(b) >= 12 && binary.LittleEndian.Uint64(b) == key &&
		binary.LittleEndian.Uint32(b[len(b)-4:]) == crc32.Checksum(b[:len(b)-4], castagnoli)
}

// TestNoWrongByteUnderRevocation has 16 goroutines read and write values that
// carry their own checksum, in containers of every kind, while segments are
// revoked at random and punched, and granted again, as a coordinator does it:
// through another mapping's generations and without a word to the client.
func TestNoWrongByteUnderRevocation(t *testing.T) {
	const segments, keys, workers = 128, 20000, 16
	h := openShared(t, segments)
	s := h.store
	m := newMap[uint64, record](t, h)
	big := newMap[uint64, []byte](t, h)
	pool := newPointers[record](t, h, nil)
	ptrs := make([]Ptr[record], 1000)
	for i := range ptrs {
		if err := pool.Init(&ptrs[i], makeRecord(uint64(i), 1)); err != nil {
			t.Fatal(err)
		}
	}
	pagePool := newPointers[page](t, h, nil)
	pages := make([]Ptr[page], 16) // few: readers and writers of one value meet
	for i := range pages {
		if err := pagePool.Init(&pages[i], makePage(uint64(i), 1)); err != nil {
			t.Fatal(err)
		}
	}
	a, err := NewArray[record](h, 5000, nil)
	if err != nil {
		t.Fatal(err)
	}

	var stop atomic.Bool
	var reads, hits, wrong, revocations atomic.Uint64
	var wg sync.WaitGroup
	check := func(ok, right bool, what string, key uint64) {
		reads.Add(1)
		if ok {
			hits.Add(1)
			if !right {
				wrong.Add(1)
				t.Errorf("%s %d: wrong bytes", what, key)
				stop.Store(true)
			}
		}
	}
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 99))
			for n := 0; !stop.Load(); n++ {
				if n%16 == 0 {
					runtime.Gosched() // or the coordinator's turn comes every 10 ms
				}
				k := r.Uint64N(keys)
				switch op := r.IntN(20); {
				case op < 6:
					v, ok := m.Get(k)
					check(ok, v.right(k), "map", k)
				case op < 9:
					_ = m.Set(k, makeRecord(k, r.Uint64()))
				case op < 10:
					m.Delete(k)
				case op < 13:
					i := k % uint64(len(ptrs))
					var v record
					ok := ptrs[i].Load(&v)
					check(ok, v.right(i), "pointer", i)
				case op < 14:
					i := k % uint64(len(ptrs))
					_ = ptrs[i].Store(makeRecord(i, r.Uint64()))
				case op < 15:
					i := k % uint64(len(pages))
					switch r.IntN(8) {
					case 0:
						_ = pages[i].Store(makePage(i, r.Uint64()))
					case 1:
						_, _ = pages[i].CompareAndSwap(makePage(i, 1), makePage(i, 2))
					case 2:
						_, _ = pages[i].CompareAndSwap(makePage(i, 2), makePage(i, 1))
					default:
						var v page
						ok := pages[i].Load(&v)
						check(ok, v.right(i), "page", i)
					}
				case op < 17:
					i := k % uint64(a.Len())
					var v record
					ok := a.Load(int(i), &v)
					check(ok, v.right(i), "array", i)
				case op < 18:
					i := k % uint64(a.Len())
					_ = a.Store(int(i), makeRecord(i, r.Uint64()))
				case r.IntN(10) > 0:
				case r.IntN(4) > 0:
					v, ok := big.Get(k % 4)
					check(ok, rightBytes(v, k%4), "large value", k%4)
				default:
					_ = big.Set(k%4, makeBytes(k%4, 257<<10+r.IntN(400<<10)))
				}
			}
		})
	}
	wg.Go(func() { // the coordinator
		r := rand.New(rand.NewPCG(7, 7))
		for !stop.Load() {
			seg := r.Uint32N(segments)
			if s.ctl.Revoke(seg) {
				revocations.Add(1)
				if r.IntN(8) == 0 { // the pages too: the others hold what they held, which is worse
					if err := s.discard(seg); err != nil {
						t.Error(err)
						return
					}
				}
				s.ctl.Grant(seg)
			}
			runtime.Gosched()
			for next := reads.Load() + *torturePace; reads.Load() < next && !stop.Load(); {
				runtime.Gosched() // so that there is something to take
			}
		}
	})
	time.AfterFunc(*tortureTime, func() { stop.Store(true) })
	wg.Wait()
	t.Logf("%d reads, %d of them found their value, %d revocations, %d wrong", reads.Load(), hits.Load(), revocations.Load(), wrong.Load())
	if hits.Load() == 0 || revocations.Load() == 0 {
		t.Error("nothing was tortured")
	}

	// Exact accounting: what the accounts hold is what the slots name.
	h.evac.notice()
	h.evac.notice()
	checkAccounts(t, h, func() int {
		n := m.Len() + big.Len()
		cellOf := func(c *cell) {
			if _, ok := h.headerOf(word(c.Load())); ok {
				n++
			}
		}
		pool.table.each(func(_ uint64, c *cell) { cellOf(c) })
		pagePool.table.each(func(_ uint64, c *cell) { cellOf(c) })
		for i := range a.cells.list {
			cellOf(&a.cells.list[i])
		}
		for _, l := range h.larges.values {
			for i := range l.pieces {
				cellOf(&l.pieces[i].word)
			}
		}
		return n
	})
	m.Close()
	big.Close()
	pool.Close()
	pagePool.Close()
	a.Close()
	h.evac.notice()
	h.evac.mu.Lock()
	defer h.evac.mu.Unlock()
	if st := h.Stats(); st.Objects != 0 || st.Live != 0 {
		t.Errorf("with everything closed, %d objects of %d bytes are left", st.Objects, st.Live)
	}
}

// TestALongCopyIsCheckedAfterwards has segments revoked and punched while values
// are being copied out of them that take long: a copy that began in time and
// ended too late must not count.
func TestALongCopyIsCheckedAfterwards(t *testing.T) {
	type long [16 << 10]uint64 // its number, over and over; never 0
	const segments, values = 8, 12
	h := openShared(t, segments)
	a, err := NewArray[long](h, values, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	m := newMap[int, []byte](t, h)
	defer m.Close()
	for _, c := range []struct {
		name  string
		load  func(i int, v *long) bool
		store func(i int, v *long) error
	}{
		{"array", a.Load, func(i int, v *long) error { return a.Store(i, *v) }},
		{"map", func(i int, v *long) bool {
			b, ok := m.Get(i)
			copy(codec.Bytes(v), b)
			return ok
		}, func(i int, v *long) error { return m.Set(i, codec.Bytes(v)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stop atomic.Bool
			var hits, revocations atomic.Uint64
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					v := new(long)
					for i := 0; !stop.Load(); i = (i + 1) % values {
						if !c.load(i, v) {
							continue
						}
						hits.Add(1)
						for k := 0; k < len(v); k += 256 { // twice a page
							if v[k] != uint64(i+1) {
								t.Errorf("value %d: word %d is %d, want %d", i, k, v[k], i+1)
								stop.Store(true)
								return
							}
						}
					}
				})
			}
			wg.Go(func() { // the program, and the coordinator
				v := new(long)
				for next := uint64(4); !stop.Load(); {
					for i := range values {
						for k := range v {
							v[k] = uint64(i + 1)
						}
						_ = c.store(i, v) // it is refused now and then, for lack of room
					}
					if hits.Load() < next {
						runtime.Gosched()
						continue
					}
					next = hits.Load() + 4
					for seg := range uint32(segments) {
						if h.store.ctl.Revoke(seg) {
							revocations.Add(1)
							if err := h.store.discard(seg); err != nil {
								t.Error(err)
								stop.Store(true)
								return
							}
							h.store.ctl.Grant(seg)
						}
					}
				}
			})
			began := time.Now()
			for !stop.Load() && (time.Since(began) < 500*time.Millisecond || revocations.Load() == 0 && time.Since(began) < time.Minute) {
				time.Sleep(10 * time.Millisecond)
			}
			stop.Store(true)
			wg.Wait()
			if hits.Load() == 0 || revocations.Load() == 0 {
				t.Errorf("%d values found, %d revocations: the test has tested nothing", hits.Load(), revocations.Load())
			}
			t.Logf("%d values found, %d revocations", hits.Load(), revocations.Load())
		})
	}
}
