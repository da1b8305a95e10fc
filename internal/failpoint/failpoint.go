// Package failpoint names the moments at which a crash would hurt, so that a
// test can make a process die exactly there.
//
// A program marks the moment with [Hit]. In production no hook is set and Hit
// is one comparison, inlined. A test process sets a hook before it starts
// anything else; Hit then calls it with the name of the moment. Names read
// "package.moment".
package failpoint

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
