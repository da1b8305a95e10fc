// Package inproc is the verbs driver for devices within one process: a packet
// that one engine emits is consumed by the other in a direct call.
//
// All devices of a [Fabric] share one lock, so there is no buffer, no copy but
// the one into the destination, and nothing to wait for: a READ has completed
// when the PostSend that posted it returns.
//
// Lock order: Fabric.mu, then the devices' lock; neither is held while a
// channel is waited for.
package inproc
