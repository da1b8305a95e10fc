//go:build !race

package onesided_test

const cycles = 1_000_000
