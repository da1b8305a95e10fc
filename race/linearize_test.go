package race

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"polder/pool/pooltest"
)

// TestTheTableIsLinearizable: goroutines put, get and delete the same few keys over the
// simulated fabric, also one that loses answers, while others have subtables split.
func TestTheTableIsLinearizable(t *testing.T) {
	for _, setup := range []pooltest.Setup{pooltest.Sim, pooltest.LossySim, pooltest.Inproc} {
		t.Run(setup.Name, func(t *testing.T) {
			table, _, _ := rig(t, setup, 2, 2)
			const workers, ops, keys = 4, 120, 3
			var mu sync.Mutex
			var history []porcupine.Operation
			start := time.Now()
			var wg sync.WaitGroup
			for id := range workers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(id), 5))
					for i := range ops {
						if i%2 == 0 { // so that there are splits
							if err := table.Put(t.Context(), fmt.Appendf(nil, "filling %d %d", id, i), nil); err != nil {
								t.Error(err)
								return
							}
						}
						in := put{request{"ggppd"[r.IntN(5)], fmt.Sprint("key ", r.IntN(keys))}, fmt.Sprint(id, " ", i)}
						var out reply
						var err error
						begun := time.Since(start)
						switch in.kind {
						case 'g':
							var v []byte
							v, _, err = table.Get(t.Context(), []byte(in.key), nil)
							out.value = string(v)
						case 'p':
							err = table.Put(t.Context(), []byte(in.key), []byte(in.value))
						case 'd':
							var found bool
							if found, err = table.Delete(t.Context(), []byte(in.key)); found {
								out.value = "found"
							}
						}
						if err != nil {
							t.Error(err)
							return
						}
						ended := time.Since(start)
						mu.Lock()
						history = append(history, porcupine.Operation{ClientId: id, Input: in, Output: out, Call: int64(begun), Return: int64(ended)})
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if got, _ := porcupine.CheckOperationsVerbose(register, history, time.Minute); got != porcupine.Ok {
				t.Errorf("a history of %d operations: got %v, want %v", len(history), got, porcupine.Ok)
			}
			if s := table.Stats(); s.Subtables < 4 {
				t.Errorf("got %d subtables, want splits", s.Subtables)
			}
			wantNoGarbage(t, table)
		})
	}
}
