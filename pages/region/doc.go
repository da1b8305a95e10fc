// Package region maps memory that is larger than its local part: a Region. Its pages come from a pager (package
// pager; polder pager) when they are touched, and go to far memory when they have not been used for long.
//
//	r, err := region.Map(ctx, "unix:/run/polder/pager.sock", 16<<30, region.Config{Local: 1 << 30})
//	...
//	_, err = r.WriteAt(b, off)
//	err = r.Do(ctx, off, n, region.Reading, func(b []byte) { ... })
//
// # Safe ways
//
// ReadAt, WriteAt, Do and Pin ask the pager over a socket to bring the memory that they need and to keep it there. So
// no goroutine waits in a page fault, and the scheduler and the garbage collector never wait for far memory. Access
// to lost memory returns an error. Bytes is all of the region as a slice, for code that can only use a slice; its
// comment says what that costs.
//
// # What is not shared
//
// A forked child does not have the region. Without Config.Name a region ends with its process. With a name, its
// contents stay with the pager however the process ends, and the next process that maps the name gets them.
//
// # When the pager dies
//
// The memory that is local stays. Accesses to all other memory wait for another pager at the same address, for
// Config.Timeout. The next pager takes the region over. What only the old pager had is lost: that is ErrLost, or
// SIGBUS with Bytes. Nothing reads as zeros that was not zeros.
package region
