package farbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"polder/far"
	"polder/far/heap"
	"polder/internal/load"
	"polder/measure/benchout"
)

// setScale is how large a run of far set is.
type setScale struct {
	local int64
	times int64   // live data, as a multiple of the local budget
	full  []int64 // live data in per cent of what the node lends, ascending; times is for the first
	span  time.Duration
	warm  float64 // SETs for each key before that, so that the cleaner has come to a steady state
}

// setWorkers is how many goroutines set keys: as many as redis-benchmark has clients by default.
const setWorkers = 50

// RunSet measures SETs of random keys in a map that is a hundred times as large as its local memory: how many there
// are in a second, and how many bytes each of them moves, when 65 and when 80 per cent of what the node lends is
// live.
func RunSet(ctx context.Context, o Options) error {
	sc := setScale{local: 8 << 20, times: 100, full: []int64{65, 80}, span: 10 * time.Second, warm: 0.6}
	if o.Short {
		sc = setScale{local: far.MinLocal, times: 20, full: []int64{65, 80}, span: 2 * time.Second, warm: 0.2}
	}
	for _, fabric := range fabrics {
		if err := runSet(ctx, o, sc, fabric); err != nil {
			return fmt.Errorf("cannot run the benchmark of SETs over %s: %w", fabric, err)
		}
	}
	return nil
}

func runSet(ctx context.Context, o Options, sc setScale, fabric string) (err error) {
	lend := sc.local * sc.times * 100 / sc.full[0]
	l, err := startLender(ctx, o.Polder, fabric, lend)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	store := l.store()
	h, err := far.NewHeap(store, far.Config{Local: sc.local})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	b := &setBench{m: h.NewByteMap("bench"), heap: h}
	for _, full := range sc.full {
		if err := b.fill(ctx, lend*full/100); errors.Is(err, far.ErrFull) {
			o.note(fmt.Sprintf("%s: %d %% of far memory do not live, since it is full before: %v", fabric, full, err))
			return nil
		} else if err != nil {
			return fmt.Errorf("filling %d %%: %w", full, err)
		}
		if _, err := b.sets(ctx, 0, int(sc.warm*float64(b.keys))/setWorkers); err != nil {
			return err
		}
		before := h.Stats()
		rate, err := b.sets(ctx, sc.span, 0)
		if err != nil {
			return err
		}
		s := h.Stats()
		row := benchout.Row{Bench: "far set", Case: fmt.Sprintf("%s, %d%% of far memory live", fabric, full)}
		sets := float64(max(s.Maps[0].Sets-before.Maps[0].Sets, 1))
		local := float64(s.Budget)
		for _, f := range []struct {
			metric string
			value  float64
			unit   string
		}{
			{"set", rate, "op/s"},
			{"moved", float64(s.BytesIn+s.BytesOut-before.BytesIn-before.BytesOut) / sets, "B/op"},
			{"read", float64(s.BytesIn-before.BytesIn) / sets, "B/op"},
			{"far memory used", float64(s.FarSegments) * float64(store.SegmentSize()) / float64(s.FarLive), "of what lives"},
			{"keys", float64(b.keys) / 1000, "thousand"},
			{"local: data", 100 * float64(s.Lines[heap.InLogs]) / local, "%"},
			{"local: index", 100 * float64(s.Lines[heap.Tables]+s.Lines[heap.Leaves]) / local, "%"},
		} {
			row.Metric, row.Value, row.Unit = f.metric, f.value, f.unit
			if err := o.Out.Print(row); err != nil {
				return err
			}
		}
	}
	return nil
}

// setBench is a map of keys with consecutive numbers.
type setBench struct {
	heap *far.Heap
	m    *far.ByteMap
	keys int
}

// fill adds keys until so many bytes live in far memory.
func (b *setBench) fill(ctx context.Context, live int64) error {
	for b.heap.Stats().FarLive < live {
		first := b.keys
		const each = 2048
		if _, err := crowd(setWorkers, 0, func(id int, _ func() bool) (int, error) {
			for k := first + id*each; k < first+(id+1)*each; k++ {
				if err := b.m.Set(ctx, load.Key(uint32(k)), far.Entry{Value: load.Value(uint32(k), valueSize)}); err != nil {
					return 0, err
				}
			}
			return each, nil
		}); err != nil {
			return err
		}
		b.keys += setWorkers * each
	}
	return nil
}

// sets sets random keys for a while, at least so many in each goroutine, and returns how many it set in a second.
func (b *setBench) sets(ctx context.Context, span time.Duration, least int) (float64, error) {
	return crowd(setWorkers, span, func(id int, over func() bool) (int, error) {
		r := rand.New(rand.NewPCG(rand.Uint64(), uint64(id)))
		var key [keySize]byte
		value := load.Value(uint32(id), valueSize)
		n := 0
		for ; n < least || n%lookEvery != 0 || !over(); n++ {
			if err := b.m.Set(ctx, putKey(&key, uint32(r.IntN(b.keys))), far.Entry{Value: value}); err != nil {
				return n, err
			}
		}
		return n, nil
	})
}
