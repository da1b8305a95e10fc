// Package processor tells on which of the Go scheduler's processors the caller runs, for
// choosing among things of which there are several so that few callers meet at the same one.
package processor

import _ "unsafe" // for go:linkname

// Number is the number of the P that the caller runs on. By the time it uses the number it may run on another P. The
// number is for choosing among locks, logs and counters, so that most likely no other goroutine uses the same one.
func Number() int {
	p := procPin()
	procUnpin()
	return p
}

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
