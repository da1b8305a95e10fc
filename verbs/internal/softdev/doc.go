// Package softdev makes a verbs.Device of a softnic.NIC: it adds the lock, the
// objects, completion handlers, waiting and events, and lets drivers attach
// links to peers.
//
// # Concurrency
//
// A [Device] and its objects may be used by any number of goroutines. The
// device's lock is its [Group]'s; devices that share a group share the lock,
// so that packets pass between them by a direct call. Whoever holds the lock
// and gave NICs something to do runs them before it unlocks, up to a bound;
// what is left over after that is run by a goroutine of the group's, which
// lives only as long as there is work and ends before Device.Close returns.
//
// # Lock order
//
//	Group.mu
//	  a driver's own locks (LinkDriver.Send and Ready are called under mu)
//
// Completion handlers, OnEvent and LinkDriver.Flush are called with no lock
// held, after the unlock, by the goroutine that unlocked. A handler is called
// at most once per lock acquisition, however many completions there were.
package softdev
