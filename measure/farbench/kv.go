package farbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/far"
	"polder/internal/child"
	"polder/internal/load"
	"polder/measure/benchout"
	"polder/pool"
	"polder/race"
)

// kvScale is how large a run of kv is.
type kvScale struct {
	memory    int // bytes of values, at most
	keys      int // at most
	sizes     []int
	workloads string
	rounds    int
	span      time.Duration // of a round
}

// RunKV measures YCSB's workloads A, B, C and D on a table of package race, beside the
// round trips that each of its operations must make, a far map with some of the data
// local, and redis-server. Each of 8 goroutines waits for its operation and does
// the next; popularity is Zipfian with theta 0.99.
func RunKV(ctx context.Context, o Options) error {
	sc := kvScale{memory: 64 << 20, keys: 1 << 17, sizes: []int{64, 1 << 10, 4 << 10}, workloads: "ABCD", rounds: 5, span: 300 * time.Millisecond}
	if o.Short {
		sc = kvScale{memory: 16 << 20, keys: 1 << 14, sizes: []int{64, 4 << 10}, workloads: "ABCD", rounds: 3, span: 60 * time.Millisecond}
	}
	if err := runKV(ctx, o, sc); err != nil {
		return fmt.Errorf("cannot run the benchmark of key-value stores: %w", err)
	}
	return nil
}

// store is what a workload is run on.
type store interface {
	get(ctx context.Context, key, buf []byte) (value []byte, found bool, err error)
	// put updates a key, or inserts it.
	put(ctx context.Context, key, value []byte, insert bool) error
}

func runKV(ctx context.Context, o Options, sc kvScale) error {
	server, err := startKVRedis(ctx, o)
	if err != nil {
		return err
	}
	if server != nil {
		defer server.Close()
	}
	for _, fabric := range fabrics {
		for _, size := range sc.sizes {
			b := &kvBench{scale: sc, size: size, fabric: fabric, out: o.Out}
			if err := b.run(ctx, o, server); err != nil {
				return fmt.Errorf("%s, %d B: %w", fabric, size, err)
			}
		}
	}
	return nil
}

// startKVRedis starts a redis-server, if there is one.
func startKVRedis(ctx context.Context, o Options) (*child.Redis, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		o.note("redis-server is not installed: the comparison with it is left out")
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return child.StartRedis(ctx)
}

// kvBench is a run with values of one size, over one fabric.
type kvBench struct {
	scale  kvScale
	size   int
	fabric string
	out    benchout.Printer

	stores []kvStore
}

// kvStore is a store that takes part.
type kvStore struct {
	name string
	store
	keys int           // that were loaded
	next *atomic.Int64 // the number of the next key to be inserted
}

func (b *kvBench) run(ctx context.Context, o Options, server *child.Redis) (err error) {
	keys := min(b.scale.keys, b.scale.memory/b.size)
	data := int64(keys) * int64(b.size+entryBytes-valueSize)
	local := max(far.MinLocal, data/5+int64(keys*indexBytes)+(2<<20))
	var closers []func() error
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
	}()
	l, err := startLender(ctx, o.Polder, b.fabric, 8*data+(512<<20))
	if err != nil {
		return err
	}
	closers = append(closers, l.close)
	table, err := race.New(ctx, l.pool)
	if err != nil {
		return err
	}
	closers = append(closers, func() error { return table.Close(context.WithoutCancel(ctx)) })
	trips, err := newRoundTrips(ctx, l.pool, b.size, keys)
	if err != nil {
		return err
	}
	heap, err := far.NewHeap(l.store(), far.Config{Local: local})
	if err != nil {
		return err
	}
	closers = append(closers, heap.Close)
	b.add("RACE", raceStore{table}, keys)
	b.add(roundTripsName, trips, keys)
	b.add(fmt.Sprintf("far map, %d%% local", min(100, 100*local/data)), farStore{heap.NewByteMap("kv")}, keys)
	if server != nil {
		c := redis.NewClient(&redis.Options{Addr: server.Addr, PoolSize: mapWorkers, DisableIdentity: true})
		closers = append(closers, c.Close)
		if err := c.FlushAll(ctx).Err(); err != nil {
			return err
		}
		b.add("redis", redisStore{c}, keys)
	}
	for i := range b.stores {
		if err := b.load(ctx, &b.stores[i]); err != nil {
			return fmt.Errorf("%s: %w", b.stores[i].name, err)
		}
	}
	z := newZipf(keys, load.Theta)
	for _, workload := range b.scale.workloads {
		if err := b.measure(ctx, byte(workload), z); err != nil {
			return fmt.Errorf("workload %c: %w", workload, err)
		}
	}
	return nil
}

func (b *kvBench) add(name string, s store, keys int) {
	next := &atomic.Int64{}
	next.Store(int64(keys))
	b.stores = append(b.stores, kvStore{name, s, keys, next})
}

// load inserts the keys.
func (b *kvBench) load(ctx context.Context, s *kvStore) error {
	var at atomic.Int64
	_, err := crowd(mapWorkers, 0, func(int, func() bool) (int, error) {
		for {
			k := at.Add(1) - 1
			if k >= int64(s.keys) {
				return 0, nil
			}
			if err := s.put(ctx, load.Key(uint32(k)), load.Value(uint32(k), b.size), true); err != nil {
				return 0, err
			}
		}
	})
	return err
}

// measure runs a workload on all stores, by turns.
func (b *kvBench) measure(ctx context.Context, workload byte, z *zipf) error {
	rates := make([][]float64, len(b.stores))
	for round := range b.scale.rounds {
		for i := range b.stores {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			v, err := b.round(ctx, &b.stores[i], workload, z, uint64(round))
			if err != nil {
				return fmt.Errorf("%s: %w", b.stores[i].name, err)
			}
			rates[i] = append(rates[i], v)
		}
	}
	row := benchout.Row{Bench: "kv", Case: fmt.Sprintf("%s, YCSB %c, %d B", b.fabric, workload, b.size), Metric: "rate", Value: median(rates[0]), Unit: "op/s"}
	var rows []benchout.Row
	for i := range b.stores[1:] {
		rows = append(rows, row.Against(b.stores[i+1].name, median(rates[i+1]), benchout.Higher))
	}
	return printAll(b.out, rows)
}

// round lets the workers use a store for a while, and returns how many operations a second they did.
func (b *kvBench) round(ctx context.Context, s *kvStore, workload byte, z *zipf, round uint64) (float64, error) {
	reads := map[byte]float64{'A': 0.5, 'B': 0.95, 'C': 1, 'D': 0.95}[workload]
	places := scatter(s.keys)
	return crowd(mapWorkers, b.scale.span, func(id int, over func() bool) (int, error) {
		r := rand.New(rand.NewPCG(uint64(id), round))
		var keyBuf [keySize]byte
		var buf []byte
		value := load.Value(0, b.size)
		n := 0
		for ; n%4 != 0 || !over(); n++ {
			k := places[z.rank(r)]
			if workload == 'D' { // what was inserted last is read most
				k = uint32(s.next.Load() - 1 - int64(z.rank(r)))
			}
			read := r.Float64() < reads
			if !read && workload == 'D' {
				k = uint32(s.next.Add(1) - 1)
			}
			key := putKey(&keyBuf, k)
			if !read {
				copy(value, key)
				if err := s.put(ctx, key, value, workload == 'D'); err != nil {
					return n, err
				}
				continue
			}
			v, found, err := s.get(ctx, key, buf[:0])
			buf = v
			switch {
			case err != nil:
				return n, err
			case !found && int(k) >= s.keys: // it is being inserted
			case !found || len(v) != b.size || s.name != roundTripsName && !bytes.HasPrefix(v, key):
				return n, fmt.Errorf("got %d bytes, %v for the key %s, want its value", len(v), found, key)
			}
		}
		return n, nil
	})
}

type raceStore struct{ t *race.Table }

func (s raceStore) get(ctx context.Context, key, buf []byte) ([]byte, bool, error) {
	return s.t.Get(ctx, key, buf)
}

func (s raceStore) put(ctx context.Context, key, value []byte, _ bool) error {
	return s.t.Put(ctx, key, value)
}

type farStore struct{ m *far.ByteMap }

func (s farStore) get(ctx context.Context, key, buf []byte) ([]byte, bool, error) {
	e, err := s.m.Get(ctx, key, buf)
	if errors.Is(err, far.ErrNotFound) {
		return buf, false, nil
	}
	return e.Value, true, err
}

func (s farStore) put(ctx context.Context, key, value []byte, _ bool) error {
	return s.m.Set(ctx, key, far.Entry{Value: value})
}

type redisStore struct{ c *redis.Client }

func (s redisStore) get(ctx context.Context, key, buf []byte) ([]byte, bool, error) {
	v, err := s.c.Get(ctx, string(key)).Bytes()
	if errors.Is(err, redis.Nil) {
		return buf, false, nil
	}
	return v, true, err
}

func (s redisStore) put(ctx context.Context, key, value []byte, _ bool) error {
	return s.c.Set(ctx, string(key), value, 0).Err()
}

const roundTripsName = "round trips"

// roundTrips makes the round trips that RACE's operations must make (Zuo et al.), and ignores what it reads. Each key
// has places of its own in memory, so that the places of popular keys are in the processor's cache, as a table's are.
type roundTrips struct {
	seed    maphash.Seed
	pool    *pool.Pool
	chunk   *pool.Chunk
	value   int       // bytes
	block   int       // bytes, with header and key
	index   int64     // how many bytes at the beginning of chunk buckets are in
	scratch sync.Pool // of *trip
}

// A trip is what an operation works with.
type trip struct {
	ops   []pool.Op
	pairs [2 * bucketPair]byte
	block []byte

	places rand.PCG
}

const (
	bucketPair       = 128 // bytes of a main bucket and the overflow bucket beside it
	indexBytesOfRace = 16  // for a key: about half of the slots of 8 bytes are in use
)

func newRoundTrips(ctx context.Context, p *pool.Pool, value, keys int) (*roundTrips, error) {
	t := &roundTrips{seed: maphash.MakeSeed(), pool: p, value: value, block: (16 + keySize + value + 63) / 64 * 64, index: int64(keys * indexBytesOfRace)}
	raw, err := newRawReader(ctx, p, int64(keys*t.block), t.block)
	if err != nil {
		return nil, err
	}
	t.chunk = raw.chunk
	t.scratch.New = func() any { return &trip{block: make([]byte, t.block)} }
	return t, nil
}

// begin begins an operation on a key.
func (t *roundTrips) begin(key []byte) *trip {
	s := t.scratch.Get().(*trip)
	s.places.Seed(maphash.Bytes(t.seed, key), 0)
	return s
}

// op returns an operation at the next of the key's places, anywhere in the chunk, at a multiple of buf's length.
func (t *roundTrips) op(s *trip, kind pool.OpKind, buf []byte) pool.Op {
	return t.within(s, t.chunk.Size(), kind, buf)
}

// lookup is op within the index, which is small, and so nearer to the processor.
func (t *roundTrips) lookup(s *trip, kind pool.OpKind, buf []byte) pool.Op {
	return t.within(s, t.index, kind, buf)
}

func (t *roundTrips) within(s *trip, n int64, kind pool.OpKind, buf []byte) pool.Op {
	size := uint64(max(8, len(buf)))
	return pool.Op{Kind: kind, Chunk: t.chunk, Off: int64(s.places.Uint64() % (uint64(n) / size) * size), Buf: buf}
}

// do does some operations in a round trip.
func (t *roundTrips) do(ctx context.Context, s *trip, ops ...pool.Op) error {
	s.ops = append(s.ops[:0], ops...)
	return t.pool.Do(ctx, s.ops)
}

// get reads the buckets and then the block.
func (t *roundTrips) get(ctx context.Context, key, buf []byte) ([]byte, bool, error) {
	s := t.begin(key)
	defer t.scratch.Put(s)
	if err := t.do(ctx, s, t.lookup(s, pool.OpRead, s.pairs[:bucketPair]), t.lookup(s, pool.OpRead, s.pairs[bucketPair:])); err != nil {
		return buf, false, err
	}
	err := t.do(ctx, s, t.op(s, pool.OpRead, s.block))
	return append(buf, s.block[16+keySize:][:t.value]...), true, err
}

// put writes the block and reads the buckets in one round trip. Then, for a key that exists, it reads the old block,
// and swaps the slot; for a new key, it swaps the slot, and reads the buckets again.
func (t *roundTrips) put(ctx context.Context, key, value []byte, insert bool) error {
	s := t.begin(key)
	defer t.scratch.Put(s)
	copy(s.block[16+keySize:], value)
	first, second := t.lookup(s, pool.OpRead, s.pairs[:bucketPair]), t.lookup(s, pool.OpRead, s.pairs[bucketPair:])
	if err := t.do(ctx, s, t.op(s, pool.OpWrite, s.block), first, second); err != nil {
		return err
	}
	swap := t.lookup(s, pool.OpCompareAndSwap, nil)
	if insert {
		return errors.Join(t.do(ctx, s, swap), t.do(ctx, s, first, second))
	}
	return errors.Join(t.do(ctx, s, t.op(s, pool.OpRead, s.block)), t.do(ctx, s, swap))
}
