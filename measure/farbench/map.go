package farbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"time"

	"polder/far"
	"polder/internal/child"
	"polder/internal/load"
	"polder/measure/benchout"
)

const (
	// entryBytes is what an entry of keySize and valueSize bytes takes in far
	// memory, with its header: what a miss has to read.
	entryBytes = 112
	keySize    = load.KeySize
	valueSize  = 64
	// indexBytes is how much local memory the index takes at most for an entry of a far map, wherever the entry is:
	// words of 8 bytes in buckets that are half full when they split.
	indexBytes = 16
)

// mapScale is how large a run of far map is.
type mapScale struct {
	entries int
	skews   []float64
	rounds  int
	span    time.Duration // of a round
	settle  time.Duration // of reads before the rounds, with every new skew
	gc      time.Duration // of the measurement of garbage collection
}

const (
	// mapWorkers is how many goroutines read, and mapBatch how many misses each of them gathers before it reads them
	// together. The bound is made of raw reads by as many goroutines, in batches of the same length, of the same
	// size; they look nothing up.
	mapWorkers = 8
	mapBatch   = 64
)

// RunMap measures how many gets a far map answers in a second, for keys of more
// and less skewed popularity, with a fifth and a half of the data local; beside
// Go's map, a redis-server, and what the raw reads of the same run allow.
func RunMap(ctx context.Context, o Options) error {
	sc := mapScale{
		entries: 1 << 20, skews: []float64{0, 0.2, 0.4, 0.6, 0.8, 0.99, 1.2, 1.35},
		rounds: 5, span: 300 * time.Millisecond, settle: 1500 * time.Millisecond, gc: 8 * time.Second,
	}
	if o.Short {
		sc = mapScale{
			entries: 1 << 18, skews: []float64{0, 0.8, 1.2, 1.35},
			rounds: 3, span: 100 * time.Millisecond, settle: 400 * time.Millisecond, gc: 3 * time.Second,
		}
	}
	if err := runMap(ctx, o, sc); err != nil {
		return fmt.Errorf("cannot run the benchmark of far maps: %w", err)
	}
	return nil
}

// mapBench is a run of far map.
type mapBench struct {
	scale mapScale
	out   benchout.Printer
	note  func(string)

	plain map[string][]byte
	lock  *lockedMap   // the same behind locks
	redis *child.Redis // nil if there is no redis-server
	local *farMap      // with everything local
	far   []*farMap
	raw   []*rawReader // of fabrics
}

func runMap(ctx context.Context, o Options, sc mapScale) (err error) {
	b := &mapBench{scale: sc, out: o.Out, note: o.note}
	data := int64(sc.entries) * (entryBytes + indexBytes)
	var closers []func() error
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
	}()

	b.plain, b.lock = make(map[string][]byte, sc.entries), newLockedMap(2*data+(32<<20))
	for k := range sc.entries {
		b.plain[string(load.Key(uint32(k)))] = load.Value(uint32(k), valueSize)
		b.lock.add(string(load.Key(uint32(k))), load.Value(uint32(k), valueSize))
	}
	if b.local, err = openFarMap(ctx, "", far.NewMemStore(1<<20, 64), 2*data+(32<<20), sc.entries); err != nil {
		return err
	}
	closers = append(closers, b.local.heap.Close)
	for _, fabric := range fabrics {
		l, err := startLender(ctx, o.Polder, fabric, 6*data+(256<<20))
		if err != nil {
			return err
		}
		closers = append(closers, l.close)
		raw, err := newRawReader(ctx, l.pool, int64(sc.entries)*entryBytes, entryBytes)
		if err != nil {
			return err
		}
		b.raw = append(b.raw, raw)
		for _, percent := range []int64{20, 50} {
			name := fmt.Sprintf("%s, %d%% local", fabric, percent)
			budget := int64(sc.entries)*(entryBytes*percent/100+indexBytes) + (2 << 20)
			m, err := openFarMap(ctx, name, l.store(), max(budget, far.MinLocal), sc.entries)
			if err != nil {
				return err
			}
			m.raw = raw
			b.far = append(b.far, m)
			closers = append(closers, m.heap.Close)
		}
	}
	if b.redis, err = b.startRedis(ctx); err != nil {
		return err
	}
	if b.redis != nil {
		closers = append(closers, b.redis.Close)
	}
	for _, s := range sc.skews {
		if err := b.measure(ctx, s); err != nil {
			return err
		}
	}
	return b.collections(ctx)
}

// startRedis starts a redis-server that holds everything, if there is one.
func (b *mapBench) startRedis(ctx context.Context) (*child.Redis, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		b.note("redis-server is not installed: the comparison with it is left out")
		return nil, nil
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	r, err := child.StartRedis(starting)
	if err != nil {
		return nil, err
	}
	seq := load.Ascending(b.scale.entries)
	if _, err := load.Run(ctx, load.Config{Addr: r.Addr, Conns: 4, Pipeline: 64, Op: load.Set, ValueSize: valueSize, Sequence: seq, Count: len(seq)}); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// farMap is a map on a heap of its own.
type farMap struct {
	name string
	heap *far.Heap
	m    *far.ByteMap
	raw  *rawReader // of the node that its heap evacuates to
	turn int        // where the goroutines of waits begin
}

func openFarMap(ctx context.Context, name string, store far.Store, budget int64, entries int) (*farMap, error) {
	heap, err := far.NewHeap(store, far.Config{Local: budget})
	if err != nil {
		return nil, err
	}
	f := &farMap{name: name, heap: heap, m: heap.NewByteMap("bench")}
	for k := range entries {
		if k%1024 == 0 && ctx.Err() != nil {
			return nil, errors.Join(context.Cause(ctx), heap.Close())
		}
		if err := f.m.Set(ctx, load.Key(uint32(k)), far.Entry{Value: load.Value(uint32(k), valueSize)}); err != nil {
			return nil, errors.Join(err, heap.Close())
		}
	}
	return f, nil
}

// reader reads keys of a sequence, each goroutine from a place of its own, and
// goes on where it was in the next round.
type reader struct {
	seq []uint32
	at  [mapWorkers]int
}

func newReader(seq []uint32) *reader {
	r := &reader{seq: seq}
	for i := range r.at {
		r.at[i] = i * len(seq) / mapWorkers
	}
	return r
}

// round lets the workers call get with key after key.
func (r *reader) round(span time.Duration, worker func(next func() uint32, over func() bool) (int, error)) (float64, error) {
	return crowd(mapWorkers, span, func(id int, over func() bool) (int, error) {
		at := r.at[id]
		n, err := worker(func() uint32 {
			if at++; at >= len(r.seq) {
				at = 0
			}
			return r.seq[at]
		}, over)
		r.at[id] = at
		return n, err
	})
}

// lookEvery is how many gets there are between two looks at the time.
const lookEvery = 64

// plainGets reads Go's map.
func (b *mapBench) plainGets(r *reader, span time.Duration, fresh bool) (float64, error) {
	return r.round(span, func(next func() uint32, over func() bool) (int, error) {
		var key [keySize]byte
		var buf []byte
		n := 0
		for ; n%lookEvery != 0 || !over(); n++ {
			k := next()
			v := b.plain[string(putKey(&key, k))]
			if fresh {
				buf = nil
			}
			if buf = append(buf[:0], v...); !bytes.HasPrefix(buf, key[:]) {
				return n, fmt.Errorf("the map of Go has %q for the key %q", buf, key)
			}
		}
		return n, nil
	})
}

// lockedGets reads Go's map behind locks.
func (b *mapBench) lockedGets(r *reader, span time.Duration) (float64, error) {
	return r.round(span, func(next func() uint32, over func() bool) (int, error) {
		var key [keySize]byte
		var buf []byte
		n := 0
		for ; n%lookEvery != 0 || !over(); n++ {
			if buf = b.lock.get(putKey(&key, next()), buf[:0]); !bytes.HasPrefix(buf, key[:]) {
				return n, fmt.Errorf("the map of Go has %q for the key %q", buf, key)
			}
		}
		return n, nil
	})
}

// gets reads the map as a server does that has many requests at hand: it answers
// what is local at once, gathers what is not, and reads that together. It
// returns how many gets there were in a second, and which part of them missed.
func (f *farMap) gets(ctx context.Context, r *reader, span time.Duration, fresh bool) (rate, missed float64, err error) {
	var misses, all counter
	rate, err = r.round(span, func(next func() uint32, over func() bool) (int, error) {
		w := farReader{m: f.m, fresh: fresh}
		n := 0
		for ; n%lookEvery != 0 || !over(); n++ {
			if err := w.get(ctx, next()); err != nil {
				return n, err
			}
		}
		err := w.flush(ctx)
		misses.add(w.misses)
		all.add(n)
		return n, err
	})
	return rate, misses.of(&all), err
}

// farReader is one goroutine's gets.
type farReader struct {
	m      *far.ByteMap
	fresh  bool
	buf    []byte
	key    [keySize]byte
	late   [mapBatch][keySize]byte // keys that are far
	keys   [mapBatch][]byte        // slices of late
	n      int                     // how many keys late has
	misses int
}

func (w *farReader) get(ctx context.Context, k uint32) error {
	err := w.read(far.NoWait, putKey(&w.key, k))
	if !errors.Is(err, far.ErrWouldBlock) {
		return err
	}
	w.misses++
	w.late[w.n] = w.key
	w.keys[w.n] = w.late[w.n][:]
	if w.n++; w.n < mapBatch {
		return nil
	}
	return w.flush(ctx)
}

// flush reads what was far.
func (w *farReader) flush(ctx context.Context) error {
	var failed error
	w.m.GetMany(ctx, w.keys[:w.n], func(i int, e far.Entry, err error) {
		if err == nil {
			if w.fresh {
				w.buf = nil
			}
			w.buf = append(w.buf[:0], e.Value...)
			err = w.check(w.keys[i])
		}
		if err != nil {
			failed = err
		}
	})
	w.n = 0
	return failed
}

// check looks at the value of a key, in buf.
func (w *farReader) check(key []byte) error {
	if !bytes.HasPrefix(w.buf, key) {
		return fmt.Errorf("the far map has %q for the key %q", w.buf, key)
	}
	return nil
}

func (w *farReader) read(ctx context.Context, key []byte) error {
	if w.fresh {
		w.buf = nil
	}
	e, err := w.m.Get(ctx, key, w.buf[:0])
	if err != nil {
		return err
	}
	w.buf = e.Value
	return w.check(key)
}

// putKey puts the name of key k, as load.Key has it, into buf.
func putKey(buf *[keySize]byte, k uint32) []byte {
	copy(buf[:], "key:")
	for i := keySize - 1; i >= 4; i-- {
		buf[i] = byte('0' + k%10)
		k /= 10
	}
	return buf[:]
}

// measure lets all contestants read keys of skew s, by turns.
func (b *mapBench) measure(ctx context.Context, s float64) error {
	seq := newZipf(b.scale.entries, s).sequence(min(4*b.scale.entries, 1<<21), 1)
	plain, lock, local := newReader(seq), newReader(seq), newReader(seq)
	readers := make([]*reader, len(b.far))
	for i, f := range b.far {
		readers[i] = newReader(seq)
		if _, _, err := f.gets(ctx, readers[i], b.scale.settle, false); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	var plainRate, lockRate, localRate, redisRate []float64
	rawRate, rate, missed := make([][]float64, len(b.raw)), make([][]float64, len(b.far)), make([][]float64, len(b.far))
	indexReads := make([]float64, len(b.far)) // of all rounds, for each get
	for round := range b.scale.rounds {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		runtime.GC() // so that no contestant pays for it
		v, err := b.plainGets(plain, b.scale.span, false)
		if err != nil {
			return err
		}
		plainRate = append(plainRate, v)
		if v, err = b.lockedGets(lock, b.scale.span); err != nil {
			return err
		}
		lockRate = append(lockRate, v)
		if v, _, err = b.local.gets(ctx, local, b.scale.span, false); err != nil {
			return err
		}
		localRate = append(localRate, v)
		if b.redis != nil {
			res, err := load.Run(ctx, load.Config{Addr: b.redis.Addr, Conns: 50, Pipeline: 16, Op: load.Get, ValueSize: valueSize,
				Sequence: seq, Offset: round * len(seq) / b.scale.rounds, Duration: b.scale.span, Warmup: b.scale.span / 10})
			if err != nil {
				return err
			}
			redisRate = append(redisRate, res.Throughput())
		}
		for i, raw := range b.raw {
			if v, err = raw.rate(ctx, mapWorkers, mapBatch, b.scale.span); err != nil {
				return err
			}
			rawRate[i] = append(rawRate[i], v)
		}
		for i, f := range b.far {
			before := f.heap.Stats().LeafReads
			v, m, err := f.gets(ctx, readers[i], b.scale.span, false)
			if err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			rate[i], missed[i] = append(rate[i], v), append(missed[i], m)
			indexReads[i] += float64(f.heap.Stats().LeafReads-before) / (v * b.scale.span.Seconds()) / float64(b.scale.rounds)
		}
	}

	row := benchout.Row{Bench: "far map", Metric: "get", Unit: "op/s"}
	row.Case, row.Value = fmt.Sprintf("s=%.2f, all local", s), median(localRate)
	rows := []benchout.Row{row.Against("Go's map", median(plainRate), benchout.Higher), row.Against("Go's map behind locks", median(lockRate), benchout.Higher)}
	for i, f := range b.far {
		row.Case, row.Metric, row.Unit = fmt.Sprintf("s=%.2f, %s", s, f.name), "misses", "%"
		miss := median(missed[i])
		row.Value = 100 * miss
		rows = append(rows, row)
		row.Metric, row.Value = "reads of its index", 100*indexReads[i]
		rows = append(rows, row)
		row.Metric, row.Unit, row.Value = "get", "op/s", median(rate[i])
		// An entry whose leaf of the index is far takes a read of the leaf, too.
		read := median(rawRate[i*len(b.raw)/len(b.far)])
		bound := func(local float64) float64 { return 1 / ((1-miss)/local + (miss+indexReads[i])/read) }
		rows = append(rows,
			row.Against("bound", bound(median(localRate)), benchout.Higher),
			row.Against("bound of Go's map", bound(median(plainRate)), benchout.Higher),
			row.Against("all local", median(localRate), benchout.Higher),
			row.Against("Go's map", median(plainRate), benchout.Higher))
		if len(redisRate) > 0 {
			rows = append(rows, row.Against("redis", median(redisRate), benchout.Higher))
		}
	}
	return printAll(b.out, rows)
}

func printAll(out benchout.Printer, rows []benchout.Row) error {
	for _, r := range rows {
		if err := out.Print(r); err != nil {
			return err
		}
	}
	return nil
}
