// Package tcp is the verbs driver for networks: software RNICs joined by TCP,
// or TLS over it.
//
// [NewDevice] opens a device; [Listen] and [Dial] make connections. One
// connection is one TCP connection, whatever the number of its queue pairs.
// What is on the wire, which goroutines there are, and when a connection is cut,
// package stream says.
//
// # Security
//
// On addresses other than loopback both ends insist on TLS with certificates
// for both, unless Config.Insecure is set.
package tcp
