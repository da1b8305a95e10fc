package sharebench

import (
	"bufio"
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"polder/share"
)

// request is one line of a trace: the blocks of a conversation so far, each
// named by the hash of the prefix that ends with it.
type request struct {
	Timestamp float64 `json:"timestamp"` // milliseconds
	HashIDs   []int64 `json:"hash_ids"`
}

// readTrace reads a trace, or its first limit requests.
func readTrace(path string, limit int) ([]request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the trace: %w", err)
	}
	defer f.Close()
	var reqs []request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; (limit == 0 || len(reqs) < limit) && lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("cannot read line %d of %s: %w", n, path, err)
		}
		if len(r.HashIDs) == 0 {
			return nil, fmt.Errorf("cannot use line %d of %s: it has no hash_ids", n, path)
		}
		reqs = append(reqs, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the trace: %w", err)
	}
	if len(reqs) == 0 {
		return nil, fmt.Errorf("cannot use %s: it has no requests", path)
	}
	return reqs, nil
}

// distinct returns how many different blocks there are, and how many in all.
func distinct(reqs []request) (blocks, total int) {
	seen := map[int64]bool{}
	for _, r := range reqs {
		for _, id := range r.HashIDs {
			seen[id] = true
		}
		total += len(r.HashIDs)
	}
	return len(seen), total
}

// idealLRU returns the share of blocks that one process with one LRU list of
// capacity blocks would find. Of each request only the leading blocks that are
// there count, because only a prefix saves work.
func idealLRU(reqs []request, capacity int) float64 {
	order := list.New()
	at := map[int64]*list.Element{}
	hits, total := 0, 0
	for _, r := range reqs {
		prefix := true
		for _, id := range r.HashIDs {
			total++
			e := at[id]
			if prefix = prefix && e != nil; prefix {
				hits++
			}
			if e != nil {
				order.MoveToFront(e)
				continue
			}
			at[id] = order.PushFront(id)
			if order.Len() > capacity {
				delete(at, order.Remove(order.Back()).(int64))
			}
		}
	}
	return float64(hits) / float64(total)
}

// arrival returns when the request came, from the trace's beginning.
func (r request) arrival() time.Duration {
	return time.Duration(r.Timestamp * float64(time.Millisecond))
}

// pace is a worker's clock at the trace's own rate. It shows virtual time: a request
// comes when the trace says, and takes as long as it has really taken, but nobody really
// waits for the next request. The zero pace is idle.
type pace struct {
	free time.Duration // when the requests so far are served
	busy time.Duration // how long serving them has taken in all
}

// serve returns how long a request that takes took is there, from its arrival to its
// end: it waits until the requests before it have been served.
func (p *pace) serve(arrival, took time.Duration) time.Duration {
	p.free = max(p.free, arrival) + took
	p.busy += took
	return p.free - arrival
}

// replay serves this worker's share of the trace's requests as an inference
// engine would: it reads the leading blocks of the prompt up to the first that is
// missing, and stores all that are missing.
func (w *worker) replay(ctx context.Context, t task) (result, error) {
	reqs, err := readTrace(t.Trace, t.Limit)
	if err != nil {
		return result{}, err
	}
	src := blob(t.Size)
	sum := make([]byte, t.Size)
	var latency, paced summary
	var clock pace
	figures := map[string]float64{}
	for i := t.Index; i < len(reqs); i += t.Workers {
		keys := make([]string, len(reqs[i].HashIDs))
		for k, id := range reqs[i].HashIDs {
			keys[k] = strconv.FormatInt(id, 36)
		}
		began := time.Now()
		views, err := w.c.GetAll(ctx, keys)
		if err != nil {
			return result{}, err
		}
		hits := 0
		for hits < len(views) && views[hits].Ok() {
			copy(sum, views[hits].Bytes()) // what the engine would read
			hits++
		}
		missing := keys[:0:0]
		for k, v := range views {
			if !v.Ok() {
				missing = append(missing, keys[k])
			} else if err := v.Close(); err != nil {
				return result{}, err
			}
		}
		stored, full, err := w.store(ctx, missing, src)
		if err != nil {
			return result{}, err
		}
		took := time.Since(began)
		latency.add(took)
		paced.add(clock.serve(reqs[i].arrival(), took))
		figures["blocks"] += float64(len(keys))
		figures["hits"] += float64(hits)
		figures["stored"] += float64(stored)
		figures["refused"] += float64(full)
	}
	figures["busy"], figures["span"] = clock.busy.Seconds(), clock.free.Seconds()
	return result{Series: map[string]summary{"request": latency.withSamples(), "paced": paced.withSamples()}, Figures: figures}, nil
}

// storeAtOnce is how many blocks are filled before they are put.
const storeAtOnce = 16

// store puts blocks for as many of the keys as there is room. It returns how many it
// stored, and for how many keys the pool was full.
func (w *worker) store(ctx context.Context, keys []string, src []byte) (stored, full int, err error) {
	var items []share.Item
	put := func() error {
		done, err := w.c.PutAll(ctx, items)
		for _, ok := range done {
			if ok {
				stored++
			}
		}
		items = items[:0]
		return err
	}
	for i, key := range keys {
		p, err := w.c.Alloc(ctx)
		if errors.Is(err, share.ErrFull) && len(items) > 0 {
			// Pages that have not been put yet may be all there are.
			if err := put(); err != nil {
				return stored, 0, err
			}
			p, err = w.c.Alloc(ctx)
		}
		if errors.Is(err, share.ErrFull) {
			full = len(keys) - i
			break
		}
		if err != nil {
			return stored, 0, err
		}
		items = append(items, share.Item{Key: key, Page: p, Len: copy(p.Bytes(), src)})
		if len(items) == storeAtOnce {
			if err := put(); err != nil {
				return stored, 0, err
			}
		}
	}
	return stored, full, put()
}
