package resp

import (
	"context"
	"sync"
	"time"

	"polder/far"
	"polder/resp/latency"
)

const (
	// fetchers is how many fetches for sessions of event loops are under way at a time.
	fetchers = 4
	// fetchFew is for how many sessions fetches may be under way before other sessions gather, since fetching for
	// many at once takes fewer packets. The next fetch then begins when as many sessions wait as are being fetched
	// for (fetchSessions suffice); or when they have waited for fetchGather, since a node may not answer.
	fetchFew    = 8
	fetchGather = 5 * time.Millisecond
	// fetchSessions is how many sessions share a fetch.
	fetchSessions = 64
)

// fetcher fetches what the sessions of event loops need, for many sessions in
// one batch.
type fetcher struct {
	srv *Server
	of  *part          // the part that it fetches from
	wg  sync.WaitGroup // its goroutines

	mu      sync.Mutex
	ready   sync.Cond
	queue   []waiter // guarded by mu
	flying  int      // guarded by mu: sessions whose fetches are under way
	gather  *time.Timer
	waiting bool // guarded by mu: gather runs
	late    bool // guarded by mu: gather has ended, and sessions still wait
	stopped bool // guarded by mu
}

// waiter is a driver's client whose session waits for a fetch. After the fetch, resume gives it back to its driver.
type waiter interface {
	session() *session
	resume()
}

// gathered is called when gather ends: the sessions that wait are fetched for without waiting for others.
func (f *fetcher) gathered() {
	f.mu.Lock()
	f.waiting, f.late = false, len(f.queue) > 0
	f.rouse()
	f.mu.Unlock()
}

func (f *fetcher) start(srv *Server, of *part) {
	f.srv, f.of = srv, of
	f.ready.L = &f.mu
	f.gather = time.AfterFunc(time.Hour, f.gathered)
	f.gather.Stop()
	if len(srv.loops) == 0 {
		return
	}
	for range fetchers {
		f.wg.Go(f.run)
	}
}

func (f *fetcher) stop() {
	f.mu.Lock()
	f.stopped = true
	f.gather.Stop()
	f.mu.Unlock()
	f.ready.Broadcast()
	f.wg.Wait()
}

// submit has what w's session wants fetched, and w resumed after that.
func (f *fetcher) submit(w waiter) {
	f.mu.Lock()
	stopped := f.stopped
	if !stopped {
		f.queue = append(f.queue, w)
		f.rouse()
	}
	f.mu.Unlock()
	if stopped { // a partition that has gone to another server
		w.session().fetched(far.ErrClosed)
		w.resume()
	}
}

// rouse has a fetch begin if one is due, and else makes sure that one begins within fetchGather. f.mu must be held.
func (f *fetcher) rouse() {
	if f.due() {
		f.ready.Signal()
	} else if len(f.queue) > 0 && !f.waiting {
		f.waiting = true
		f.gather.Reset(fetchGather)
	}
}

// due reports whether a fetch may begin. f.mu must be held.
func (f *fetcher) due() bool {
	return len(f.queue) > 0 && (f.stopped || f.late || f.flying < fetchFew || len(f.queue) >= min(f.flying, fetchSessions))
}

// take waits until a fetch is due, and returns the sessions to fetch for; none when the fetcher has stopped and
// nobody waits. Batch has the sessions that the caller has fetched for before, which have gone on; its memory is used
// again.
func (f *fetcher) take(batch []waiter) []waiter {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flying -= len(batch)
	clear(batch)
	batch = batch[:0]
	for !f.due() && !f.stopped {
		f.ready.Wait()
	}
	n := min(len(f.queue), fetchSessions)
	f.flying += n
	f.late = false
	batch = append(batch, f.queue[:n]...)
	rest := copy(f.queue, f.queue[n:])
	clear(f.queue[rest:])
	f.queue = f.queue[:rest]
	f.rouse()
	return batch
}

func (f *fetcher) run() {
	var batch []waiter
	var w wants
	for {
		batch = f.take(batch)
		if len(batch) == 0 {
			return
		}
		for _, b := range batch {
			b.session().wants(&w)
		}
		err := f.srv.fetch(f.of, &w)
		w.clear() // before the input that it points into may be gone
		for _, b := range batch {
			b.session().fetched(err)
			b.resume()
		}
	}
}

// fetch brings what is wanted into local memory. It gives up after a quarter of the time that a command has. Then
// each session waits on its own, so that a node that does not answer holds up only the sessions whose keys it has.
func (srv *Server) fetch(of *part, w *wants) error {
	srv.stats.fetches.Add(1)
	srv.stats.fetchedKeys.Add(int64(w.len() + len(w.blocks)))
	ctx, cancel := context.WithTimeout(of.Context(), srv.cfg.OpTimeout/4)
	defer cancel()
	began := time.Now()
	defer func() {
		took := time.Since(began)
		srv.stats.fetchTimes.Observe(took.Seconds())
		srv.latency.Note(latency.EventFetch, took)
	}()
	return of.Fetch(ctx, w.keys, w.heads, w.blocks)
}
