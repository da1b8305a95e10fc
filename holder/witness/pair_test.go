package witness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/prometheus/client_golang/prometheus"

	"polder/holder"
	"polder/internal/linear"
)

// twoCells are two nodes and the ways to them, on which requests and answers are late and get lost. All is guarded by mu.
type twoCells struct {
	mu   sync.Mutex
	rng  *rand.Rand
	node [2]*acceptor
	loss int // percent of requests, and of answers
	lag  int // percent of requests that arrive when everybody has given up on them
	cut  map[[2]int]bool
	late time.Duration
	asks int // requests

	began time.Time
	trace []string // what has become of cells
}

func (w *twoCells) logf(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%v ", time.Since(w.began))+fmt.Sprintf(format, args...))
}

func newTwoCells(seed uint64) *twoCells {
	w := &twoCells{rng: rand.New(rand.NewPCG(seed, 14)), cut: map[[2]int]bool{}, late: 50 * time.Millisecond, began: time.Now()}
	for i := range w.node {
		w.forget(i)
	}
	return w
}

// forget has a node lose what it has. w.mu is held, or nobody else has w.
func (w *twoCells) forget(i int) {
	w.logf("cell %d forgets", i)
	w.node[i] = newAcceptor(limits{100, 1 << 20})
	w.node[i].cells = true
	for k := range w.node[i].id {
		w.node[i].id[k] = byte(w.rng.Uint32())
	}
}

// same reports whether the nodes have the same. w.mu is held.
func (w *twoCells) same() bool {
	return w.node[0].registers["r"].accepted.Ballot == w.node[1].registers["r"].accepted.Ballot
}

// cellWire is a client's way to a node.
type cellWire struct {
	w            *twoCells
	client, node int
}

func (c cellWire) ask(q request, done func(*reply, error)) {
	w := c.w
	body := q.append(nil)
	go func() {
		w.mu.Lock()
		w.asks++
		there, back := w.rng.Int64N(int64(w.late)), w.rng.Int64N(int64(w.late))
		lost, unanswered := w.rng.IntN(100) < w.loss, w.rng.IntN(100) < w.loss
		if w.rng.IntN(100) < w.lag {
			there *= 200
		}
		w.mu.Unlock()
		time.Sleep(time.Duration(there))
		w.mu.Lock()
		q, err := decodeRequest(body)
		if err != nil {
			panic(err)
		}
		var r reply
		if lost = lost || w.cut[[2]int{c.client, c.node}]; !lost {
			var changes []*change
			r, changes = w.node[c.node].decide(q)
			for _, ch := range changes {
				w.node[c.node].apply(ch)
				w.logf("client %d puts into cell %d: version %d (%s) %+v", c.client, c.node, ch.Accepted.Version, ch.Accepted.Value, ch.Accepted.Ballot)
			}
		}
		w.mu.Unlock()
		time.Sleep(time.Duration(back))
		if lost || unanswered {
			done(nil, errors.New("lost"))
			return
		}
		done(&r, nil)
	}()
}

func (w *twoCells) register(client int, goOn bool) *PairRegister {
	p := &Pair{cfg: PairConfig{Nodes: [2]string{"a", "b"}, GoOn: goOn, Logger: slog.New(slog.DiscardHandler)}}
	for i := range p.links {
		p.links[i] = cellWire{w, client, i}
	}
	r, err := p.Register("r")
	if err != nil {
		panic(err)
	}
	return r
}

// TestAPairOfCellsIsALinearizableRegister while messages are lost and late, ways are cut, and one node forgets now and then; with
// and without an owner that goes on when it reaches one node alone.
func TestAPairOfCellsIsALinearizableRegister(t *testing.T) {
	seeds := uint64(40)
	if os.Getenv("TEST_SOAK") != "" {
		seeds = 4000
	}
	alone := 0
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { alone += pairHistory(t, seed, seed%2 == 1) })
		if t.Failed() {
			break
		}
	}
	if alone == 0 {
		t.Error("nobody went on alone")
	}
}

func pairHistory(t *testing.T, seed uint64, goOn bool) (alone int) {
	w := newTwoCells(seed)
	w.loss, w.lag = int(seed%8), 5
	const clients = 3
	var mu sync.Mutex
	var history []porcupine.Operation
	began := time.Now()
	record := func(client int, in linear.RegisterInput, out linear.RegisterOutput, from time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: int64(from), Return: int64(time.Since(began))})
	}
	ctx, stop := context.WithTimeout(t.Context(), 60*time.Second)
	defer stop()
	var wg sync.WaitGroup
	for c := range clients {
		r := w.register(c, goOn)
		if c == 0 {
			r.Own()
		}
		wg.Go(func() {
			defer r.Close()
			unsettled := ""
			var pending *linear.RegisterInput
			var since time.Duration
			for n := 0; ctx.Err() == nil; n++ {
				from := time.Since(began)
				value, version, err := r.Read(ctx)
				if err != nil {
					break
				}
				if pending != nil {
					record(clients+c, *pending, linear.RegisterOutput{Unknown: true}, since)
					unsettled, pending = unsettled+pending.Value+" ", nil
				}
				record(c, linear.RegisterInput{Settles: unsettled}, linear.RegisterOutput{Version: version, Value: string(value)}, from)
				unsettled = ""
				time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
				in := linear.RegisterInput{Swap: true, Version: version, Value: fmt.Sprint(c, "-", n)}
				from = time.Since(began)
				within, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(1000))*time.Millisecond)
				version, err = r.Swap(within, version, []byte(in.Value))
				cancel()
				switch {
				case err == nil:
					record(c, in, linear.RegisterOutput{Version: version}, from)
				case errors.Is(err, holder.ErrChanged):
					record(c, in, linear.RegisterOutput{Changed: true}, from)
				case errors.Is(err, holder.ErrUnknown):
					pending, since = &in, from
				}
			}
			if pending != nil { // it may happen at any time
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: clients + c, Input: *pending, Output: linear.RegisterOutput{Unknown: true}, Call: int64(since), Return: 1 << 62})
				mu.Unlock()
			}
		})
	}
	for ctx.Err() == nil {
		time.Sleep(500 * time.Millisecond)
		w.mu.Lock()
		for i := range w.node {
			if w.node[i].registers["r"].accepted.Ballot.Count != 0 {
				alone++
			}
		}
		switch w.rng.IntN(4) {
		case 0:
			clear(w.cut)
		case 1:
			w.cut[[2]int{w.rng.IntN(clients), w.rng.IntN(2)}] = true
		case 2:
			if w.same() { // one at a time
				w.forget(w.rng.IntN(2))
			}
		}
		w.mu.Unlock()
	}
	wg.Wait()
	time.Sleep(time.Minute) // what is late has come
	if !porcupine.CheckOperations(linear.Register, history) {
		t.Errorf("seed %d (an owner goes on: %v): the history of %d operations is not linearizable", seed, goOn, len(history))
		for _, op := range history {
			t.Logf("%d %v %v: %+v %+v", op.ClientId, time.Duration(op.Call), time.Duration(op.Return), op.Input, op.Output)
		}
		t.Log(strings.Join(w.trace, "\n"))
	}
	if len(history) < 50 {
		t.Errorf("seed %d: %d operations in a minute", seed, len(history))
	}
	return alone
}

// TestOneOfTwoNodesIsNotEnough but for an owner that goes on, and after an operator's word. Evidence takes one.
func TestOneOfTwoNodesIsNotEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, goOn := range []bool{false, true} {
			w := newTwoCells(1)
			within := func() context.Context {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				t.Cleanup(cancel)
				return ctx
			}
			owner, other := w.register(0, goOn), w.register(1, goOn)
			version, err := owner.Swap(within(), 0, []byte("mine"))
			if err != nil {
				t.Fatal(err)
			}
			owner.Own()
			w.mu.Lock()
			for c := range 2 {
				w.cut[[2]int{c, 0}] = true
			}
			w.mu.Unlock()
			if err := owner.Confirm(within()); err != nil {
				t.Errorf("go on %v: one node is no evidence: %v", goOn, err)
			}
			next, err := owner.Swap(within(), version, []byte("alone"))
			if goOn && (err != nil || next != version+1) || !goOn && (err == nil || !strings.Contains(err.Error(), "a: ")) {
				t.Errorf("go on %v: the owner's change at one node: %v", goOn, err)
			}
			if _, _, err := other.Read(within()); err == nil || !strings.Contains(err.Error(), "of two nodes both are needed") {
				t.Errorf("go on %v: one who is not the owner reads with one node: %v", goOn, err)
			}
			// The operator says that the owner is dead, which it is not.
			node, err := other.Force(within(), func([]byte) ([]byte, error) { return []byte("forced"), nil })
			if err != nil || node != "b" {
				t.Fatalf("go on %v: forced at %s: %v", goOn, node, err)
			}
			if err := owner.Confirm(within()); err == nil {
				t.Errorf("go on %v: the owner has evidence after it was forced out", goOn)
			}
			w.mu.Lock()
			clear(w.cut)
			w.mu.Unlock()
			for _, r := range []*PairRegister{owner, other} {
				if value, _, err := r.Read(within()); err != nil || string(value) != "forced" {
					t.Errorf("go on %v: afterwards there is %q, %v", goOn, value, err)
				}
			}
		}
		time.Sleep(time.Minute)
	})
}

// TestAFullCellIsNotAskedWithoutAPause by who changes a register, and whoever does is told why that fails.
func TestAFullCellIsNotAskedWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTwoCells(1)
		w.late = time.Millisecond
		for _, a := range w.node {
			a.limits = limits{100, 10}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := w.register(0, false).Swap(ctx, 0, make([]byte, 100))
		if err == nil || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("got %v, want an error that says that there is no room for so many bytes", err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.asks > 500 {
			t.Errorf("cells were asked %d times in 5 s", w.asks)
		}
		w.mu.Unlock()
		time.Sleep(time.Second) // until the last answers have come
		w.mu.Lock()
	})
}

// TestCellsHaveNoLogToAilFrom: they are healthy, and have metrics, although they keep nothing on a disk.
func TestCellsHaveNoLogToAilFrom(t *testing.T) {
	s, err := NewCells(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Health(); err != nil {
		t.Error(err)
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(s.Collector())
	if _, err := metrics.Gather(); err != nil {
		t.Error(err)
	}
}
