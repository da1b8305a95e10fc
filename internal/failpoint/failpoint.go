// Package failpoint names the moments at which a crash would hurt, so that a
// test can make a process die exactly there.
//
// A program marks the moment with [Hit]. In production no hook is set and Hit
// is one comparison, inlined. A test process sets a hook before it starts
// anything else; Hit then calls it with the name of the moment. Names read
// "package.moment".
package failpoint

import "sync/atomic"

var hook func(name string)

// Set installs f as the hook of this process; nil removes it.
//
// Preconditions: no other goroutine of the process is running code that may
// call Hit.
func Set(f func(name string)) { hook = f }

// Hit tells the hook, if there is one, that execution has come to name.
func Hit(name string) {
	if hook != nil {
		hook(name)
	}
}

// On reports whether there is a hook: for code that does several things at once,
// and must do them one by one for a crash to come between.
func On() bool { return hook != nil }

var without atomic.Pointer[string]

// SetWithout switches the mechanism of that name off from now on; an empty name switches none off.
func SetWithout(name string) { without.Store(&name) }

// Without reports whether the mechanism of that name is switched off: for benchmarks that show what it is good for.
func Without(name string) bool {
	left := without.Load()
	return left != nil && *left == name
}
