// Package swap has the kernel use polder block, as a disk and as swap: in a virtual machine,
// whose kernel has the module nbd, and which may die of it. "make test-swap" runs it. Nodes run
// on the host; the program inside does what there is to do in the guest.
package swap
