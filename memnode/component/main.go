package component

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"polder/internal/invariants"
)

// installed is the set that Main was given. It is nil until Main has been called.
var installed atomic.Pointer[Set]

// bounded returns the components of s that may run in the node's process. The client's worker can change a request
// after the node has looked at it, so a construction in the node's process must find no other components.
func (s Set) bounded() Set {
	set := make(Set)
	for name, c := range s {
		if c.Bounded {
			set[name] = c
		}
	}
	return set
}

// workerEnv is the environment variable that makes this program a worker.
const workerEnv = "POLDER_COMPONENT_WORKER"

// workerConfig is the value of workerEnv, as JSON.
type workerConfig struct {
	Number  uint32 // of the worker, the upper half of its objects' ids
	Memory  int64  // bytes that objects may use
	Objects int
}

// The file descriptors that a worker is given.
const (
	workerSocket = 3
	workerLane   = 4
)

// Main declares the components that this program has. It must be called first in
// main, and in TestMain of tests that run nodes with components. In a worker
// process it does not return.
func Main(set Set) {
	value, worker := os.LookupEnv(workerEnv)
	if !worker {
		installed.Store(&set)
		return
	}
	os.Unsetenv(workerEnv)
	var cfg workerConfig
	err := json.Unmarshal([]byte(value), &cfg)
	if err == nil {
		err = work(set, cfg)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot run components: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func work(set Set, cfg workerConfig) error {
	l, err := openLane(os.NewFile(workerLane, "lane"))
	if err != nil {
		return err
	}
	unix.CloseOnExec(workerSocket)
	unix.CloseOnExec(workerLane)
	// If memory runs out, the kernel should end a worker first.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return err
	}
	if err := limitMemory(cfg.Memory); err != nil {
		return err
	}
	return newWorker(set, cfg, l, l.usedThere()).serve()
}

// goSlack is how many bytes the Go runtime may use in addition to a component's memory.
const goSlack = 64 << 20

// limitMemory bounds the process's private writable memory. What the process has already is not counted.
func limitMemory(memory int64) error {
	debug.SetMemoryLimit(memory + goSlack/2)
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	var pages [6]uint64
	if _, err := fmt.Sscan(string(b), &pages[0], &pages[1], &pages[2], &pages[3], &pages[4], &pages[5]); err != nil {
		return fmt.Errorf("cannot read /proc/self/statm: %w", err)
	}
	more := uint64(memory + goSlack)
	if invariants.Enabled {
		more *= 8 // for the race detector's shadow memory
	}
	limit := pages[5]*uint64(os.Getpagesize()) + more
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return fmt.Errorf("cannot limit memory to %d bytes: %w", limit, err)
	}
	return nil
}
