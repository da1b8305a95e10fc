// Package goroutine says which goroutine is calling, and from where. It is for checks that report a mistake instead
// of hanging: no behaviour of a program should depend on it.
package goroutine

import (
	"bytes"
	"runtime"
	"strconv"
)

// In reports whether the calling goroutine is in the function of this name, as stack traces spell it.
func In(name string) bool {
	var pcs [64]uintptr
	for skip := 0; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		for frames := runtime.CallersFrames(pcs[:n]); ; {
			f, more := frames.Next()
			if f.Function == name {
				return true
			}
			if !more {
				break
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}

// Number is the number of the calling goroutine, as stacks have it. It takes about a
// microsecond.
func Number() uint64 {
	var b [64]byte
	s := bytes.TrimPrefix(b[:runtime.Stack(b[:], false)], []byte("goroutine "))
	n, _ := strconv.ParseUint(string(s[:max(bytes.IndexByte(s, ' '), 0)]), 10, 64)
	return n
}
