package heap

import _ "unsafe" // for go:linkname

// Processor is a number for the P that the caller runs on. It may run on
// another one when it uses the number, which is for choosing among things that
// have locks of their own: whoever runs on the same P finds them unlocked.
func Processor() int {
	p := procPin()
	procUnpin()
	return p
}

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
