package farbench

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/klauspost/compress/s2"

	"polder/far"
	"polder/measure/benchout"
	"polder/measure/delay"
)

// webScale is how large a run of far web is.
type webScale struct {
	pairs  int // in the hash table
	rounds int
	span   time.Duration
	settle time.Duration
}

const (
	webLookups = 32  // keys of a request
	webSkew    = 0.8 // of the keys
	webLocal   = 19  // % of the data that is local
	webWorkers = 8
	// webPair is what a pair takes in far memory: a header of 36 bytes, a key
	// of 8 and a value of 32.
	webPair = 80
)

// picture is an element of the array.
type picture [8 << 10]byte

// webValue is a value of the hash table. Its first word says which picture it
// stands for.
type webValue [32]byte

// pictures is how many pictures there are for so many pairs: in the paper, pictures are 62 % of the data and values
// 15 %.
func pictures(pairs int) int { return max(pairs*webPair*62/15/len(picture{}), 1) }

// RunWeb measures a web front end like that of the paper's section 8.1.1: a request looks up 32 keys, whose
// popularity has a skew of 0.8, encrypts by AES-CBC the picture that the last value names, and compresses it by
// Snappy. Of the data, 19 % is local, shared by values and pictures as the evacuator decides; pictures are accessed
// with and without the hint that they are not used again soon. The rivals are the same program with everything local,
// and one over Go's own map and slice. Then requests come at given rates, and latency is measured (figure 6).
func RunWeb(ctx context.Context, o Options) error {
	sc := webScale{pairs: 1 << 20, rounds: 7, span: 500 * time.Millisecond, settle: 3 * time.Second}
	if o.Short {
		sc = webScale{pairs: 1 << 18, rounds: 3, span: 300 * time.Millisecond, settle: time.Second}
	}
	if err := runWeb(ctx, o, sc); err != nil {
		return fmt.Errorf("cannot run the benchmark of a web front end: %w", err)
	}
	return nil
}

// webData is the local data of a run.
type webData struct {
	keys  *zipf
	which []uint32 // key of a rank
}

// value returns the value of the key of a rank. Pictures are as popular as the keys.
func (d *webData) value(rank, pictures int) (v webValue) {
	n := rank * pictures / len(d.which)
	binary.LittleEndian.PutUint64(v[:], uint64(d.which[rank])<<32|uint64(scattered(n, pictures)))
	return v
}

// scattered is where the picture of popularity n lies.
func scattered(n, of int) int {
	const prime = 1_000_003 // so that no number of pictures divides it
	return int(uint64(n) * prime % uint64(of))
}

// fillPicture writes picture number i.
func fillPicture(p *picture, i int) {
	r := rand.NewPCG(uint64(i), 11)
	binary.LittleEndian.PutUint64(p[:], uint64(i))
	for k := 8; k < len(p); k += 8 {
		binary.LittleEndian.PutUint64(p[k:], r.Uint64())
	}
}

// frontEnd answers requests, whatever data structures it has the data in.
type frontEnd interface {
	// look returns the values of keys in vs.
	look(ctx context.Context, keys *[webLookups]uint64, vs *[webLookups]webValue) error
	// show calls use with picture i.
	show(ctx context.Context, i int, use func(p *picture) error) error
	// close ends the front end when the goroutine that uses it is done.
	close()
}

// farSite is the data in far structures.
type farSite struct {
	heap   *far.Heap
	values *far.Map[uint64, webValue]
	pics   *far.Array[picture]
}

func openFarSite(ctx context.Context, store far.Store, budget int64, d *webData) (*farSite, error) {
	heap, err := far.NewHeap(store, far.Config{Local: budget, HeldTooLong: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	f := &farSite{heap: heap}
	if err := f.fill(ctx, d); err != nil {
		return nil, errors.Join(err, heap.Close())
	}
	return f, nil
}

func (f *farSite) fill(ctx context.Context, d *webData) (err error) {
	if f.values, err = far.NewMap(f.heap, far.MapConfig[uint64, webValue]{Name: "values"}); err != nil {
		return err
	}
	n := pictures(len(d.which))
	if f.pics, err = far.NewArray[picture](ctx, f.heap, n, far.StructureConfig{Name: "pictures", NewPrefetcher: func() far.Prefetcher { return far.NoPrefetch{} }}); err != nil {
		return err
	}
	s := f.heap.NewScope()
	defer s.Close()
	s.SetContext(ctx)
	for i, chunk := range f.pics.StreamMutChunks(s, 0, n) {
		for k := range chunk {
			fillPicture(&chunk[k], i+k)
		}
	}
	if err := s.Err(); err != nil {
		return err
	}
	// Not by rank: the popular must not be the first to be evacuated.
	ranks := make([]uint32, len(d.which))
	for rank, k := range d.which {
		ranks[k] = uint32(rank)
	}
	for k, rank := range ranks {
		if k%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := f.values.Set(ctx, uint64(k), d.value(int(rank), n)); err != nil {
			return err
		}
	}
	return nil
}

// farFrontEnd is one goroutine's use of a farSite.
type farFrontEnd struct {
	*farSite
	s      *far.Scope
	stream bool // pictures are not used again soon
	found  [webLookups]bool
}

func (f *farSite) frontEnd(stream bool) func(ctx context.Context) frontEnd {
	return func(ctx context.Context) frontEnd {
		e := &farFrontEnd{farSite: f, s: f.heap.NewScope(), stream: stream}
		e.s.SetContext(ctx)
		return e
	}
}

func (f *farFrontEnd) close() { f.s.Close() }

// look reads all values that are far together.
func (f *farFrontEnd) look(ctx context.Context, keys *[webLookups]uint64, vs *[webLookups]webValue) error {
	if err := f.values.GetMany(ctx, keys[:], vs[:], f.found[:]); err != nil {
		return err
	}
	for _, ok := range f.found {
		if !ok {
			return errNoKey
		}
	}
	return nil
}

var errNoKey = errors.New("a key of the hash table is gone")

func (f *farFrontEnd) show(_ context.Context, i int, use func(p *picture) error) error {
	for {
		f.s.Enter()
		e := f.pics.At(i)
		deref := e.Deref
		if f.stream {
			deref = e.DerefStream
		}
		if p := deref(f.s); p != nil {
			err := use(p)
			f.s.Leave()
			return err
		}
		f.s.Leave()
		if err := f.s.Err(); !errors.Is(err, far.ErrScopeFull) {
			return err
		}
	}
}

// plainSite is the data in Go's own structures.
type plainSite struct {
	values map[uint64]webValue
	pics   []picture
}

func newPlainSite(d *webData) *plainSite {
	n := pictures(len(d.which))
	p := &plainSite{values: make(map[uint64]webValue, len(d.which)), pics: make([]picture, n)}
	for i := range p.pics {
		fillPicture(&p.pics[i], i)
	}
	for rank, k := range d.which {
		p.values[uint64(k)] = d.value(rank, n)
	}
	return p
}

func (p *plainSite) look(_ context.Context, keys *[webLookups]uint64, vs *[webLookups]webValue) error {
	for i, k := range keys {
		v, ok := p.values[k]
		if !ok {
			return errNoKey
		}
		vs[i] = v
	}
	return nil
}

func (p *plainSite) show(_ context.Context, i int, use func(p *picture) error) error {
	return use(&p.pics[i])
}

func (p *plainSite) close() {}

// worker answers requests at a front end.
type worker struct {
	d      *webData
	site   frontEnd
	block  cipher.Block
	r      *rand.Rand
	secret picture
	packed []byte
}

func (d *webData) worker(site frontEnd, round, id int) (*worker, error) {
	block, err := aes.NewCipher([]byte("sixteen byte key"))
	if err != nil {
		return nil, err
	}
	return &worker{d: d, site: site, block: block, r: rand.New(rand.NewPCG(uint64(round), uint64(id))),
		packed: make([]byte, s2.MaxEncodedLen(len(picture{})))}, nil
}

// answer answers one request.
func (w *worker) answer(ctx context.Context) error {
	var keys [webLookups]uint64
	var vs [webLookups]webValue
	for i := range keys {
		keys[i] = uint64(w.d.which[w.d.keys.rank(w.r)])
	}
	if err := w.site.look(ctx, &keys, &vs); err != nil {
		return err
	}
	pic := -1
	for i := range vs {
		v := binary.LittleEndian.Uint64(vs[i][:])
		if v>>32 != keys[i] {
			return fmt.Errorf("key %d has the value of key %d", keys[i], v>>32)
		}
		pic = int(uint32(v))
	}
	if err := w.site.show(ctx, pic, func(p *picture) error {
		if got := binary.LittleEndian.Uint64(p[:]); got != uint64(pic) {
			return fmt.Errorf("picture %d is number %d", pic, got)
		}
		cipher.NewCBCEncrypter(w.block, p[:aes.BlockSize]).CryptBlocks(w.secret[:], p[:])
		return nil
	}); err != nil {
		return err
	}
	_ = s2.EncodeSnappy(w.packed, w.secret[:])
	return nil
}

// requests lets the workers answer requests for span. It returns how many they
// answered in a second, and in all.
func (d *webData) requests(ctx context.Context, round int, span time.Duration, open func(context.Context) frontEnd) (rate float64, answered int, err error) {
	var total counter
	rate, err = crowd(webWorkers, span, func(id int, over func() bool) (int, error) {
		site := open(ctx)
		defer site.close()
		w, err := d.worker(site, round, id)
		if err != nil {
			return 0, err
		}
		n := 0
		for ; !over(); n++ {
			if err := w.answer(ctx); err != nil {
				return n, err
			}
		}
		total.add(n)
		return n, nil
	})
	return rate, int(total.n.Load()), err
}

// offered lets requests come evenly, rate times a second, for span. It adds to took how many microseconds each
// request took from when it was due: a request that waits for those before it is late, too.
func (d *webData) offered(ctx context.Context, round int, span time.Duration, rate float64, open func(context.Context) frontEnd, took *hdrhistogram.Histogram) error {
	interval := time.Duration(float64(webWorkers*time.Second) / rate)
	begin := time.Now()
	var mu sync.Mutex
	_, err := crowd(webWorkers, span, func(id int, over func() bool) (int, error) {
		site := open(ctx)
		defer site.close()
		w, err := d.worker(site, round, id)
		if err != nil {
			return 0, err
		}
		own := hdrhistogram.New(1, 60e6, 3)
		n := 0
		for due := begin.Add(interval * time.Duration(id) / webWorkers); !over(); due = due.Add(interval) {
			if err := delay.Sleep(time.Until(due)); err != nil {
				return n, err
			}
			if err := w.answer(ctx); err != nil {
				return n, err
			}
			_ = own.RecordValue(max(time.Since(due).Microseconds(), 1))
			n++
		}
		mu.Lock()
		took.Merge(own)
		mu.Unlock()
		return n, nil
	})
	return err
}

// webLoads are the loads at which latency is measured, in % of the rate at which requests are answered while
// everything is local and the next request is always there.
var webLoads = []int{20, 40, 60, 80, 90}

// latencies measures how long requests take at each of webLoads (figure 6).
func (d *webData) latencies(ctx context.Context, o Options, sc webScale, all []*webRival, most float64) error {
	for _, load := range webLoads {
		took := make([]*hdrhistogram.Histogram, len(all))
		for i := range took {
			took[i] = hdrhistogram.New(1, 60e6, 3)
		}
		for round := range sc.rounds { // in turn, so that other work of the machine hits all
			for i, c := range all {
				if err := d.offered(ctx, round, sc.span, most*float64(load)/100, c.open, took[i]); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
			}
		}
		for i, c := range all {
			for _, q := range []float64{50, 99} {
				row := benchout.Row{Bench: "far web", Case: fmt.Sprintf("%s, %d %% load", c.name, load), Metric: fmt.Sprintf("p%.0f", q), Value: float64(took[i].ValueAtPercentile(q)) / 1e3, Unit: "ms"}
				if i > 0 {
					row = row.Against(all[0].name, float64(took[0].ValueAtPercentile(q))/1e3, benchout.Lower)
				}
				if err := o.Out.Print(row); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// webRival is a front end that takes part.
type webRival struct {
	name  string
	open  func(context.Context) frontEnd
	site  *farSite   // nil for those with everything local
	raw   *rawReader // of the site's node, for pictures
	rates []float64
	// Of all rounds: reads for the map and its index, gets of the map that missed, pictures that missed, and
	// requests.
	reads, misses, fetched, shown uint64
}

// bound returns how many requests there would be in a second if each took as long as with everything local, and then
// as long as raw reads take for what it reads, with all reads for the map in one batch.
func (c *webRival) bound(ctx context.Context, local float64, span time.Duration) (float64, error) {
	reads, fetched := float64(c.reads)/float64(max(c.shown, 1)), float64(c.fetched)/float64(max(c.shown, 1))
	pairs := rawReader{c.raw.pool, c.raw.chunk, webPair}
	pairRate, err := pairs.rate(ctx, webWorkers, max(int(reads+0.5), 1), span)
	if err != nil {
		return 0, err
	}
	picRate, err := c.raw.rate(ctx, webWorkers, 1, span)
	return 1 / (1/local + reads/pairRate + fetched/picRate), err
}

func runWeb(ctx context.Context, o Options, sc webScale) (err error) {
	d := &webData{keys: newZipf(sc.pairs, webSkew), which: scatter(sc.pairs)}
	data := int64(sc.pairs)*(webPair+indexBytes) + int64(pictures(sc.pairs))*int64(len(picture{}))
	plain := newPlainSite(d)
	local, err := openFarSite(ctx, far.NewMemStore(1<<20, 64), 2*data+(32<<20), d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.heap.Close()) }()

	all := []*webRival{
		{name: "Go's map and slice", open: func(context.Context) frontEnd { return plain }},
		{name: "all local", open: local.frontEnd(false)},
	}
	for _, fabric := range fabrics {
		l, err := startLender(ctx, o.Polder, fabric, 6*data+(256<<20))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.close()) }()
		raw, err := newRawReader(ctx, l.pool, int64(pictures(sc.pairs)*len(picture{})), len(picture{}))
		if err != nil {
			return err
		}
		for _, stream := range []bool{false, true} {
			f, err := openFarSite(ctx, l.store(), max(data*webLocal/100, far.MinLocal), d)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.heap.Close()) }()
			name := map[bool]string{false: ", temporal", true: ", non-temporal"}[stream]
			all = append(all, &webRival{name: fabric + name, open: f.frontEnd(stream), site: f, raw: raw})
		}
	}
	for i, c := range all {
		if c.site == nil {
			continue
		}
		if _, _, err := d.requests(ctx, -1-i, sc.settle, c.open); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	for round := range sc.rounds {
		for _, c := range all {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			var before webCounts
			if c.site != nil {
				before = c.site.counts()
			}
			v, answered, err := d.requests(ctx, round, sc.span, c.open)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			c.rates = append(c.rates, v)
			if c.site != nil {
				n := c.site.counts()
				c.reads += n.reads - before.reads
				c.misses += n.misses - before.misses
				c.fetched += n.fetched - before.fetched
				c.shown += uint64(answered)
			}
		}
	}
	for i, c := range all[1:] {
		row := benchout.Row{Bench: "far web", Case: c.name, Metric: "requests", Value: median(c.rates), Unit: "op/s"}
		rows := []benchout.Row{row.Against(all[0].name, median(all[0].rates), benchout.Higher)}
		if i > 0 {
			bound, err := c.bound(ctx, median(all[1].rates), sc.span)
			if err != nil {
				return err
			}
			rows = append(rows, row.Against("all local", median(all[1].rates), benchout.Higher), row.Against("bound", bound, benchout.Higher))
			row.Unit = "%"
			row.Metric, row.Value = "map misses", 100*float64(c.misses)/float64(max(c.shown*webLookups, 1))
			rows = append(rows, row)
			row.Metric, row.Value = "array misses", 100*float64(c.fetched)/float64(max(c.shown, 1))
			rows = append(rows, row)
		}
		if err := printAll(o.Out, rows); err != nil {
			return err
		}
	}
	// Latency is measured with the first of the two ways to access pictures.
	return d.latencies(ctx, o, sc, []*webRival{all[1], all[2], all[4]}, median(all[1].rates))
}

// webCounts is what a site has missed.
type webCounts struct{ reads, misses, fetched uint64 }

func (f *farSite) counts() webCounts {
	misses := f.values.Stats().Misses
	return webCounts{misses + f.heap.Stats().LeafReads, misses, f.pics.Stats().Misses}
}
