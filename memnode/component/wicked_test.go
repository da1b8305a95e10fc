package component_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"polder/memnode/component"
)

// wicked does what a component should not.
type wicked struct {
	env *component.Env
	mem [][]byte
}

const (
	opPanic = 1 + iota
	opLoop
	opHeap      // takes the Go heap until the kernel says no
	opMemory    // takes the budget until it is told no, and keeps it
	opStack     // recurses for ever
	opExit      // ends the process
	opOverflow  // gives more than there is room for
	opGoroutine // panics where nobody can recover it
	opEcho
	opWait // until the caller's time is over
	opPID
	opSpin // until spinning is false, which only the same process can say
)

var spinning atomic.Bool

func newWicked(env *component.Env, c *component.Call, params []byte) (component.Object, error) {
	switch string(params) {
	case "panic":
		panic("in a constructor")
	case "nil":
		return nil, nil
	}
	if file, late := strings.CutPrefix(string(params), "late "); late {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return nil, err
		}
		for !c.Expired() {
			runtime.Gosched()
		}
	}
	return &wicked{env: env}, nil
}

func (w *wicked) Read(_ *component.Call, key, out []byte) ([]byte, error) {
	if string(key) == "panic" {
		panic("in read")
	}
	return append(out, key...), nil
}
func (w *wicked) Write(*component.Call, []byte, []byte) error { panic("in write") }
func (w *wicked) Delete(*component.Call, []byte) error        { return component.ErrNotFound }

var sink [][]byte

//lint:ignore SA5007 that it never ends is what it is for
func recurse(n int) int { return recurse(n+1) + n }

func (w *wicked) Compute(c *component.Call, op uint16, in, out []byte) ([]byte, error) {
	switch op {
	case opPanic:
		panic("as it was told")
	case opLoop:
		//lint:ignore SA5002 that it never ends is what it is for
		for {
		}
	case opHeap:
		for {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			sink = append(sink, b)
		}
	case opMemory:
		for {
			b, err := w.env.Alloc(1 << 20)
			if err != nil {
				return binary.LittleEndian.AppendUint64(out, uint64(len(w.mem))), nil
			}
			b[0] = 1
			w.mem = append(w.mem, b)
		}
	case opStack:
		return nil, fmt.Errorf("%d", recurse(0))
	case opExit:
		os.Exit(3)
	case opOverflow:
		return make([]byte, cap(out)+1), nil
	case opGoroutine:
		go func() { panic("in a goroutine") }()
		select {}
	case opWait:
		for !c.Expired() {
		}
		return nil, component.ErrExpired
	case opSpin:
		for spinning.Load() {
		}
	case opPID:
		return binary.LittleEndian.AppendUint64(out, uint64(os.Getpid())), nil
	}
	return append(out, in...), nil
}
