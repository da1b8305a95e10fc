package farbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"polder/far"
	"polder/measure/benchout"
	"polder/pool"
)

// scanScale is how large a run of far scan is.
type scanScale struct {
	pages  int
	works  []time.Duration // on each element, the least first
	rounds int
	span   time.Duration
	corpus int64 // most bytes to be compressed
	passes int   // over it
}

// RunScan measures how fast a goroutine reads an array of elements of 4 KiB in sequence, with more and less work on
// each; a quarter of the array is local. The rivals are a plain slice, and a program that does nothing but raw reads,
// enough of them ahead, and the same work. Then it compresses and decompresses files from one far array to another:
// the paper's figure 11.
func RunScan(ctx context.Context, o Options) error {
	us := func(v ...float64) (works []time.Duration) {
		for _, w := range v {
			works = append(works, time.Duration(w*float64(time.Microsecond)))
		}
		return works
	}
	sc := scanScale{pages: 16 << 10, works: us(0, 0.3, 0.6, 1.2, 2.5, 5, 10, 20, 50),
		rounds: 7, span: 150 * time.Millisecond, corpus: 96 << 20, passes: 5}
	if o.Short {
		sc = scanScale{pages: 8 << 10, works: us(0, 1.2, 5, 20, 50),
			rounds: 3, span: 80 * time.Millisecond, corpus: 24 << 20, passes: 3}
	}
	if err := runScan(ctx, o, sc); err != nil {
		return fmt.Errorf("cannot run the benchmark of scans: %w", err)
	}
	return nil
}

func runScan(ctx context.Context, o Options, sc scanScale) error {
	files, err := readCorpus(o.Corpus, sc.corpus)
	if err != nil {
		return err
	}
	plain := make([]page, sc.pages)
	for i := range plain {
		fillPage(&plain[i], i)
	}
	turns := turnsIn(time.Microsecond)
	for _, fabric := range fabrics {
		if err := runScanOver(ctx, o, sc, fabric, plain, turns); err != nil {
			return fmt.Errorf("%s: %w", fabric, err)
		}
	}
	for _, fabric := range fabrics {
		if err := runSnappy(ctx, o, sc, fabric, files); err != nil {
			return fmt.Errorf("snappy over %s: %w", fabric, err)
		}
	}
	return nil
}

func runScanOver(ctx context.Context, o Options, sc scanScale, fabric string, plain []page, turns float64) (err error) {
	data := int64(sc.pages) * int64(len(page{}))
	l, err := startLender(ctx, o.Polder, fabric, 4*data+(128<<20))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	raw, err := newRawReader(ctx, l.pool, data, len(page{}))
	if err != nil {
		return err
	}
	heap, err := far.NewHeap(l.store(), far.Config{Local: max(data/4, far.MinLocal)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, heap.Close()) }()
	pages, err := far.NewArray[page](ctx, heap, sc.pages, far.StructureConfig{Name: "pages"})
	if err != nil {
		return err
	}
	s := heap.NewScope()
	defer s.Close()
	s.SetContext(ctx)
	for i, chunk := range pages.StreamMutChunks(s, 0, sc.pages) {
		for k := range chunk {
			fillPage(&chunk[k], i+k)
		}
	}
	if err := s.Err(); err != nil {
		return err
	}

	local := &scan{n: sc.pages, read: func(i, j int, use func(i int, p *page) bool) error {
		for ; i < j && use(i, &plain[i]); i++ {
		}
		return nil
	}}
	ours := &scan{n: sc.pages, read: func(i, j int, use func(i int, p *page) bool) error {
		for at, chunk := range pages.StreamChunks(s, i, j) {
			for k := range chunk {
				if !use(at+k, &chunk[k]) {
					return nil
				}
			}
		}
		return s.Err()
	}}
	// The amount of work from which on all rates are within 5 % of local; -1 for none.
	near, nearRaw := time.Duration(-1), time.Duration(-1)
	for _, work := range sc.works {
		loops := int(turns * float64(work) / float64(time.Microsecond))
		var rates [3][]float64
		for range sc.rounds {
			for i, rate := range []func() (float64, error){
				func() (float64, error) { return local.rate(ctx, sc.span, loops) },
				func() (float64, error) { return ours.rate(ctx, sc.span, loops) },
				func() (float64, error) { return raw.scan(ctx, sc.span, loops) },
			} {
				v, err := rate()
				if err != nil {
					return err
				}
				rates[i] = append(rates[i], v)
			}
		}
		localRate, rate, rawRate := median(rates[0]), median(rates[1]), median(rates[2])
		within := func(since *time.Duration, rate float64) {
			switch {
			case rate < 0.95*localRate:
				*since = -1
			case *since < 0:
				*since = work
			}
		}
		within(&near, rate)
		within(&nearRaw, rawRate)
		row := benchout.Row{Bench: "far scan", Case: fmt.Sprintf("%s, %v of work", fabric, work), Metric: "read", Value: rate, Unit: "op/s"}
		if err := printAll(o.Out, []benchout.Row{
			row.Against("local", localRate, benchout.Higher),
			row.Against("bound", min(rawRate, localRate), benchout.Higher),
		}); err != nil {
			return err
		}
	}
	if near < 0 {
		o.note(fmt.Sprintf("far scan over %s comes within 5 %% of local with none of the amounts of work", fabric))
		return nil
	}
	row := benchout.Row{Bench: "far scan", Case: fabric + ", within 5 % of local", Metric: "from work of", Value: micros(near), Unit: "us"}
	if nearRaw >= 0 {
		row = row.Against("bound", micros(nearRaw), benchout.Lower)
	}
	return o.Out.Print(row)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// fillPage writes page number i.
func fillPage(p *page, i int) {
	for k := 0; k < len(p); k += 8 {
		binary.LittleEndian.PutUint64(p[k:], uint64(i+k))
	}
}

// sumPage is the sum of the words of a page.
func sumPage(p *page) (sum uint64) {
	for k := 0; k < len(p); k += 8 {
		sum += binary.LittleEndian.Uint64(p[k:])
	}
	return sum
}

// pageSum is what sumPage returns for page number i as fillPage wrote it.
func pageSum(i int) uint64 {
	const words = uint64(len(page{}) / 8)
	return words*uint64(i) + 8*(words*(words-1)/2)
}

// scan goes over n pages, again and again.
type scan struct {
	n, at int
	read  func(i, j int, use func(i int, p *page) bool) error
}

// scanStep is how many pages are read between two looks at the time, if there is
// no work on them.
const scanStep = 64

// rate reads for span, with loops turns of work on each page, and returns how
// many it read in a second.
func (sc *scan) rate(ctx context.Context, span time.Duration, loops int) (float64, error) {
	begin, n := time.Now(), 0
	var wrong error
	var took time.Duration
	for took < span && wrong == nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if sc.at >= sc.n {
			sc.at = 0
		}
		err := sc.read(sc.at, sc.n, func(i int, p *page) bool {
			if sumPage(p) != pageSum(i) {
				wrong = fmt.Errorf("page %d is not what was written", i)
			}
			runtime.KeepAlive(turn(loops))
			sc.at = i + 1
			if n++; n%scanStep == 0 || loops > 0 {
				took = time.Since(begin)
			}
			return took < span && wrong == nil
		})
		if err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(begin).Seconds(), wrong
}

// turn computes for a time that grows with n. It does not look at the clock, so that an interruption does not count
// as work.
func turn(n int) uint64 {
	x := uint64(n) | 1
	for range n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

// turnsIn is how many turns of work take d if nothing interrupts them.
func turnsIn(d time.Duration) float64 {
	const n = 50_000
	best := math.Inf(1)
	for range 60 {
		begin := time.Now()
		runtime.KeepAlive(turn(n))
		best = min(best, float64(time.Since(begin)))
	}
	return float64(d) * n / best
}

// scan is like scan.rate, but with raw reads of pages in sequence, in batches, some of them ahead: what no far array
// can beat.
func (r *rawReader) scan(ctx context.Context, span time.Duration, loops int) (float64, error) {
	const ahead, batch = 4, 32
	type slot struct {
		full, empty chan struct{}
		buf         []byte
		err         error
	}
	slots, stop, ended := make([]slot, ahead), make(chan struct{}), make(chan struct{}, ahead)
	for k := range slots {
		sl := &slots[k]
		sl.full, sl.empty, sl.buf = make(chan struct{}, 1), make(chan struct{}, 1), make([]byte, batch*r.size)
		go func() {
			defer func() { ended <- struct{}{} }()
			ops := make([]pool.Op, batch)
			for at := k * batch; ; at += ahead * batch {
				for i := range ops {
					off := (at + i) % r.slots(r.size) * r.size
					ops[i] = pool.Op{Kind: pool.OpRead, Chunk: r.chunk, Off: int64(off), Buf: sl.buf[i*r.size : (i+1)*r.size]}
				}
				sl.err = r.pool.Do(ctx, ops)
				sl.full <- struct{}{}
				select {
				case <-sl.empty:
				case <-stop:
					return
				}
			}
		}()
	}
	defer func() {
		close(stop)
		for range slots {
			<-ended
		}
	}()
	n, begin := 0, time.Now()
	for {
		for k := range slots {
			sl := &slots[k]
			<-sl.full
			if sl.err != nil {
				sl.empty <- struct{}{} // so that its goroutine sees stop or goes on
				return 0, sl.err
			}
			for i := range batch {
				runtime.KeepAlive(sumPage((*page)(sl.buf[i*r.size:])) + turn(loops))
				n++
				if took := time.Since(begin); took >= span {
					return float64(n) / took.Seconds(), nil
				}
			}
			sl.empty <- struct{}{}
		}
	}
}
