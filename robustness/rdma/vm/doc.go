// Package vm boots Linux in QEMU, without KVM, and runs programs in it.
//
// A Kernel is the stock kernel of Debian: the package is fetched through apt,
// vmlinux is taken out of it and booted by PVH, which needs no boot loader, and
// the modules that a guest needs go into its initial file system in the order
// of their dependencies. A Guest is one virtual machine with a plan (package
// plan); two of them can share a Cable.
//
// # How a guest ends
//
// A guest has passed only if QEMU exits with the one code that the guest's
// init writes when all has gone well, and every step has been reported as
// passed. A panic, a reset, an error of QEMU's and a time-out are all told
// apart, and none is a pass.
//
// # Concurrency
//
// A Guest's methods may be called by any goroutine. Its callbacks are called
// one at a time, each kind by a goroutine of the guest's, which Wait outlives.
package vm
