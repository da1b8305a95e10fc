package finemem_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"polder/internal/linear"
	"polder/memnode"
	"polder/memnode/twolayer"
	"polder/pool/finemem"
	"polder/pool/pooltest"
)

// extentOp allocates or frees what begins with a chunk.
type extentOp struct {
	free  bool
	user  uint16
	first uint32
	class int
}

// owners say who has each chunk of a section, 0 for nobody.
type owners = [twolayer.SectionChunks]uint16

// extents is the model of a history of allocations that have succeeded, and frees.
// What they are of lies in one section, and operations on different sections
// commute, so a history is checked section by section.
var extents = porcupine.Model{
	Partition: linear.By(func(in extentOp) uint32 { return in.first / twolayer.SectionChunks }),
	Init:      func() any { return owners{} },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(owners), input.(extentOp)
		from, to := uint16(0), in.user
		if in.free {
			from, to = to, from
		}
		at := in.first % twolayer.SectionChunks
		for i := at; i < at+1<<in.class; i++ {
			if s[i] != from {
				return false, state
			}
			s[i] = to
		}
		return true, s
	},
}

// TestAllocationIsLinearizable: clients over tcp allocate and free chunks and
// spans, and there is an order of that in which nobody gets what another one has.
func TestAllocationIsLinearizable(t *testing.T) {
	const clients, rounds = 6, 250
	s := pooltest.TCP
	s.Manager = finemem.Manager{}
	cl := pooltest.NewCluster(t, s, memnode.Config{Lend: 4 << 20, ChunkSize: twolayer.DefaultUnit})
	var mu sync.Mutex
	var history []porcupine.Operation
	start := time.Now()
	var wg sync.WaitGroup
	for i := range clients {
		c, err := dialService(t.Context(), cl.Nodes[0].Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		wg.Go(func() {
			user := uint16(i + 1)
			c.observe = func(b finemem.Block, free bool, call, back time.Time) {
				mu.Lock()
				defer mu.Unlock()
				history = append(history, porcupine.Operation{
					ClientId: i, Input: extentOp{free, user, b.First, b.Class},
					Call: int64(call.Sub(start)), Return: int64(back.Sub(start)),
				})
			}
			n := 0
			err := c.churn(t.Context(), rand.New(rand.NewPCG(uint64(i), 3)), func() bool {
				n++
				return n > rounds
			}, func(finemem.Block) {})
			if err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	result, _ := porcupine.CheckOperationsVerbose(extents, history, time.Minute)
	if result != porcupine.Ok {
		t.Errorf("a history of %d operations: got %v, want %v", len(history), result, porcupine.Ok)
	}
	t.Logf("a history of %d operations of %d clients", len(history), clients)
}

// TestAHistoryThatIsWrong: the model would notice.
func TestAHistoryThatIsWrong(t *testing.T) {
	op := func(free bool, user uint16, first uint32, class int, call, back int64) porcupine.Operation {
		return porcupine.Operation{Input: extentOp{free, user, first, class}, Call: call, Return: back}
	}
	for _, c := range []struct {
		name    string
		history []porcupine.Operation
		want    bool
	}{
		{"one after the other", []porcupine.Operation{op(false, 1, 0, 2, 0, 1), op(true, 1, 0, 2, 2, 3), op(false, 2, 2, 0, 4, 5)}, true},
		{"freed and allocated at once", []porcupine.Operation{op(false, 1, 0, 0, 0, 1), op(true, 1, 0, 0, 2, 9), op(false, 2, 0, 0, 3, 4)}, true},
		{"two have it", []porcupine.Operation{op(false, 1, 0, 2, 0, 1), op(false, 2, 2, 0, 2, 3), op(true, 1, 0, 2, 4, 5)}, false},
		{"freed by another", []porcupine.Operation{op(false, 1, 0, 0, 0, 1), op(true, 2, 0, 0, 2, 3)}, false},
	} {
		if got := porcupine.CheckOperations(extents, c.history); got != c.want {
			t.Errorf("%s: linearizable: %v, want %v", c.name, got, c.want)
		}
	}
}
