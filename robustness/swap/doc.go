// Package swap has the kernel use polder block, as a disk and as swap: in a virtual machine,
// whose kernel has the module nbd, and which may die of it. "make test-swap" runs it. Nodes run
// on the host; the program inside does what there is to do in the guest.
//
// "make bench-swap" runs benchmarks of polder in such a guest, with everything that they start.
package swap
