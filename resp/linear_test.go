package resp

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"polder/far"
	"polder/internal/linear"
)

// op is a command on one key, as porcupine sees it.
type op struct {
	name, key, arg string
}

// register is a string key: GET, SET, INCR and APPEND.
var register = porcupine.Model{
	Partition: linear.By(func(in op) string { return in.key }),
	Init:      func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		value, in, out := state.(string), input.(op), output.(string)
		switch in.name {
		case "GET":
			return out == value, value
		case "SET":
			return out == "+OK", in.arg
		case "GETSET":
			return out == value, in.arg
		case "DEL":
			return out == fmt.Sprint(":", b2i(value != "")), ""
		case "INCR":
			n, _ := strconv.Atoi(value)
			next := strconv.Itoa(n + 1)
			return out == ":"+next, next
		}
		return false, value
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v -> %v", input, output) },
}

// TestSingleKeysAreLinearizable has many connections, some on other event
// loops, use few keys while these come and go between local and far memory.
func TestSingleKeysAreLinearizable(t *testing.T) {
	for _, local := range []int64{roomy, far.MinLocal} {
		t.Run(fmt.Sprint(local>>20, "MiB"), func(t *testing.T) {
			heap := newHeap(t, local)
			push := newChurn(heap)
			_, addr := startOn(t, heap, Config{Loops: 2})
			const clients, each = 6, 250
			start := time.Now()
			var mu sync.Mutex
			var history []porcupine.Operation
			var wg sync.WaitGroup
			for id := range clients {
				c := dial(t, addr)
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(id), 9))
					for range each {
						o := op{[]string{"GET", "GET", "SET", "GETSET", "DEL", "INCR", "INCR"}[r.IntN(7)], "k" + strconv.Itoa(r.IntN(5)), ""}
						args := []string{o.name, o.key}
						if o.name == "SET" || o.name == "GETSET" {
							o.arg = strconv.Itoa(r.IntN(1000))
							args = append(args, o.arg)
						}
						call := time.Since(start).Nanoseconds()
						rep := c.do(args...)
						ret := time.Since(start).Nanoseconds()
						out := rep.line
						if out[0] == '$' {
							out = rep.bulk
						}
						mu.Lock()
						history = append(history, porcupine.Operation{ClientId: id, Input: o, Call: call, Output: out, Return: ret})
						mu.Unlock()
					}
				})
			}
			if local < roomy {
				for range 40 {
					push.evict(t)
				}
			}
			wg.Wait()
			if res := porcupine.CheckOperationsTimeout(register, history, testTimeout); res != porcupine.Ok {
				t.Errorf("the history is not linearizable: %s", res)
			}
		})
	}
}
