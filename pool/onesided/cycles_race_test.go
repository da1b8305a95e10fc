//go:build race

package onesided_test

// cycles is how many chunks TestNoCPU allocates and frees. With the race
// detector a million would take minutes.
const cycles = 5_000
