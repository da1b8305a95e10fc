// Package nbd serves a volume of pages as a block device: NBD's fixed newstyle protocol,
// which qemu, the kernel's nbd-client, fio and libnbd's tools speak.
//
// One export, of the volume, under a name and as the default. READ, WRITE, FLUSH, TRIM,
// WRITE_ZEROES, CACHE, BLOCK_STATUS with base:allocation, FUA, DF, FAST_ZERO, structured
// replies, and TLS by NBD_OPT_STARTTLS, which is demanded where a certificate is given.
// Several connections of a client see each other's writes, as NBD_FLAG_CAN_MULTI_CONN says.
//
// What is acknowledged can be read by everybody. If the volume's heap is kept, FLUSH and FUA take a
// checkpoint of it, which those that wait at the same time share (Volume.Sync), and what
// was written before is there after a crash. Else the volume is memory, and they have nothing to add.
//
// # Errors
//
// ENOSPC: there is no far memory for it. EIO: a page was lost with its node, or did not
// come within Config.OpTimeout; writing or trimming the page mends it. EPERM: it is read
// only. EINVAL: a request is wrong, or larger than 32 MiB. What is no NBD ends its
// connection.
//
// # Bounds
//
// A connection has so many requests at a time, each with a buffer of 128 KiB at most; more
// wait in the client's socket. Longer requests go through the buffer in pieces. Who does
// not take a reply, or does not send what a request announced, for Config.Stall, is
// disconnected. Until it has chosen the export a client waits in a gate (package accept),
// and may send 16 KiB. A connection that is one too many is closed.
//
// # Concurrency
//
// A goroutine for each connection, and one for each request that has to wait for far
// memory. Requests of a connection that overlap are in no order, as the protocol has it.
// Close ends them all.
package nbd
