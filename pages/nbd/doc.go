// Package nbd serves a volume of pages as a block device: NBD's fixed newstyle protocol, which qemu, the kernel's
// nbd-client, fio and libnbd's tools speak.
//
// There is one export, the volume, under a name and as the default. It supports READ, WRITE, FLUSH, TRIM,
// WRITE_ZEROES, CACHE, BLOCK_STATUS with base:allocation, FUA, DF, FAST_ZERO, structured replies, and TLS by
// NBD_OPT_STARTTLS, which is required if Config has a certificate. Several connections of a client see each other's
// writes, as NBD_FLAG_CAN_MULTI_CONN says.
//
// Acknowledged writes can be read by every client. If the volume's heap is kept, FLUSH and FUA take a checkpoint of
// it (Volume.Sync), which requests that wait at the same time share; then everything that was written before is there
// after a crash. If the heap is not kept, the volume is memory only, and FLUSH and FUA have nothing to do.
//
// # Errors
//
// ENOSPC: there is no far memory for the request. EIO: a page was lost with its node, or did not come within
// Config.Timeout; writing or trimming the page mends it. EPERM: the export is read only. EINVAL: a request is wrong,
// or larger than 32 MiB. A client that sends what is not NBD is disconnected.
//
// # Bounds
//
// A connection has at most 16 requests under way, each with a buffer of at most 128 KiB; more wait in the client's
// socket. Longer requests go through the buffer in pieces. A client that does not take a reply, or does not send the
// data that a request announced, for Config.Stall is disconnected. Until it has chosen the export, a client waits in
// a gate (package accept), and may send 16 KiB. A connection beyond Config.MaxConns is closed.
//
// # Concurrency
//
// There is a goroutine for each connection, and one for each request that has to wait for far memory. Requests of a
// connection that overlap are in no order, as the protocol allows. Close ends them all.
package nbd
