package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"polder/holder"
	"polder/holder/witness"
	"polder/internal/child"
	"polder/internal/linear"
	"polder/internal/proctest"
)

// registerHistory is what several goroutines did to a register.
type registerHistory struct {
	began time.Time

	mu       sync.Mutex
	ops      []porcupine.Operation // guarded by mu
	accepted atomic.Int64          // changes that were acknowledged
}

func (h *registerHistory) now() int64 { return int64(time.Since(h.began)) }

func (h *registerHistory) add(client int, in linear.RegisterInput, out linear.RegisterOutput, call, end int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: end})
}

// use reads and changes the register until stop is closed.
func (h *registerHistory) use(t *testing.T, client int, addrs []string, stop <-chan struct{}) {
	c, err := witness.NewClient(witness.ClientConfig{Witnesses: addrs})
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	r, err := c.Register("heap/0")
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Close()
	var version uint64
	var unsettled string
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(rand.N(4 * time.Millisecond)):
		}
		// Now and then the answer is not waited for.
		within := time.Minute
		if rand.N(4) == 0 {
			within = rand.N(10 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(context.Background(), within)
		call := h.now()
		if n%2 == 0 {
			value, v, err := r.Read(ctx)
			if err == nil {
				h.add(client, linear.RegisterInput{Settles: unsettled}, linear.RegisterOutput{Version: v, Value: string(value)}, call, h.now())
				version, unsettled = v, ""
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Read: %v", err)
			}
			cancel()
			continue
		}
		in := linear.RegisterInput{Swap: true, Version: version, Value: fmt.Sprintf("%d-%d", client, n)}
		v, err := r.Swap(ctx, version, []byte(in.Value))
		switch {
		case err == nil:
			h.add(client, in, linear.RegisterOutput{Version: v}, call, h.now())
			h.accepted.Add(1)
			version = v
		case errors.Is(err, holder.ErrChanged):
			h.add(client, in, linear.RegisterOutput{Changed: true}, call, h.now())
		case errors.Is(err, holder.ErrUnknown):
			h.add(client, in, linear.RegisterOutput{Unknown: true}, call, 1<<62)
			unsettled += in.Value + " "
		case !errors.Is(err, context.DeadlineExceeded): // then it has not happened, and never will
			t.Errorf("Swap: %v", err)
		}
		cancel()
	}
}

// startWitness starts the witness of a directory, or starts it again.
func startWitness(t *testing.T, dir string) *child.Process {
	t.Helper()
	return proctest.RunCommand(t, child.Command{Path: proctest.Binary(), Args: []string{
		"witness", "--dir", filepath.Join(dir, "state"), "--listen", "unix:" + filepath.Join(dir, "s"), "--admin", "off",
	}})
}

// TestRegistersOutliveWitnesses kills and stops witnesses while clients read and change a register:
// what they see is what one register would have shown them.
func TestRegistersOutliveWitnesses(t *testing.T) {
	t.Parallel()
	dirs, addrs, running := make([]string, 3), make([]string, 3), make([]*child.Process, 3)
	for i := range dirs {
		dirs[i] = t.TempDir()
		addrs[i] = "unix:" + filepath.Join(dirs[i], "s")
		running[i] = startWitness(t, dirs[i])
	}
	args := append([]string{"witness", "set"}, addrs...)
	if out, stderr, code := proctest.Output(t, nil, args...); code != 0 {
		t.Fatalf("polder witness set: %d\n%s%s", code, out, stderr)
	}
	h, stop := &registerHistory{began: time.Now()}, make(chan struct{})
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() { h.use(t, i, addrs, stop) })
	}
	more := func(n int64) {
		t.Helper()
		want := h.accepted.Load() + n
		proctest.Until(t, "the register is changed", func() bool { return h.accepted.Load() >= want })
	}
	more(10)
	for n := range 8 {
		i := rand.N(3)
		p := running[i]
		if n%4 == 3 { // a majority is away for a while
			other := running[(i+1)%3]
			other.Kill()
			p.Kill()
			running[(i+1)%3] = startWitness(t, dirs[(i+1)%3])
			running[i] = startWitness(t, dirs[i])
			more(5)
			continue
		}
		if n%2 == 0 {
			if err := p.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			more(5) // by the two others
			if err := p.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			more(5)
			continue
		}
		p.Kill()
		more(5)
		running[i] = startWitness(t, dirs[i])
		more(5)
	}
	close(stop)
	clients.Wait()
	t.Logf("%d operations, %d changes acknowledged", len(h.ops), h.accepted.Load())
	if porcupine.CheckOperationsTimeout(linear.Register, h.ops, time.Minute) == porcupine.Illegal {
		t.Errorf("what clients have seen is not what one register would have shown them: %+v", h.ops)
	}
}
