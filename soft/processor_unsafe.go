package soft

import _ "unsafe" // for go:linkname

// processor is a number for the P that the caller runs on. It may run on
// another one when it uses the number, which is for choosing among logs and
// counters: nobody else is likely to be using the same.
func processor() int {
	p := procPin()
	procUnpin()
	return p
}

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
