// Package nbd serves a volume of pages as a block device: NBD's fixed newstyle protocol,
// which qemu, the kernel's nbd-client, fio and libnbd's tools speak.
//
// There is one export, the volume, under a name and as the default. It has READ, WRITE, FLUSH, TRIM, WRITE_ZEROES,
// CACHE, BLOCK_STATUS with base:allocation, FUA, DF, FAST_ZERO, structured replies, and TLS by NBD_OPT_STARTTLS,
// which clients must use if Config.TLS is set. Several connections of a client see each other's writes, as
// NBD_FLAG_CAN_MULTI_CONN says.
//
// A write that was acknowledged can be read by everybody. If the volume's heap is kept, FLUSH and FUA take a
// checkpoint of it, which requests that wait at the same time share (Volume.Sync), and everything written before is
// there after a crash. Otherwise the volume is only memory, and FLUSH and FUA do nothing more.
//
// # Errors
//
// ENOSPC: there is no far memory for a write, or it is beyond the end. EIO: a page was lost with its node, or did not
// come within Config.Timeout; writing or trimming the whole page mends it. EPERM: the export is read only. EINVAL:
// a request is wrong, or larger than 32 MiB. A client that sends something that is not NBD is disconnected.
//
// # Bounds
//
// A connection has 16 requests at a time, each with a buffer of at most 128 KiB; further requests wait in the
// client's socket. Longer requests go through the buffer in pieces. A client that for Config.Stall does not take a
// reply, or does not send what a request announced, is disconnected. Until it has chosen the export a client waits in
// a gate (package accept), and may send 16 KiB. Connections beyond Config.MaxConns are closed.
//
// # Concurrency
//
// There is a goroutine for each connection, and one for each request that has to wait for far memory. Overlapping
// requests of a connection are executed in no particular order, as the protocol allows. Close ends all goroutines.
package nbd
