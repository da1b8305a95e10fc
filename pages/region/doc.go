// Package region maps memory that is larger than its local part: a Region, whose pages come
// from a pager (package pager; polder pager) when they are touched, and go to far memory when
// they were not used for long.
//
//	r, err := region.Map(ctx, "unix:/run/polder/pager.sock", 16<<30, region.Config{Local: 1 << 30})
//	...
//	_, err = r.WriteAt(b, off)
//	err = r.Do(ctx, off, n, region.Reading, func(b []byte) { ... })
//
// # Safe ways
//
// ReadAt, WriteAt, Do and Pin ask the pager over a socket to bring what they need and to keep
// it there, so that no goroutine waits in a page fault: the scheduler and the garbage
// collector never wait for far memory. Memory that was lost is an error. Bytes is all of the
// region as a slice, for code that knows no other way, and says what that costs.
//
// # What is not shared
//
// A child that is forked does not have the region. Without Config.Name a region ends with its process.
// With one, what is in it stays with the pager when the process ends, however it does, and who maps the name next has it.
//
// # When the pager dies
//
// The memory that is local stays. Everything else waits for another pager at the same
// address, for Config.Timeout. The next one takes the region over; what only the old one had
// is lost, which is ErrLost, or SIGBUS with Bytes. Nothing reads as zeros that was not.
package region
