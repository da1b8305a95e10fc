//go:build !amd64

package vm

// clockArguments is empty: the emulated processor's time-stamp counter is not
// this one's.
func clockArguments() string { return "" }
