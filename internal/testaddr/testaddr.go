// Package testaddr says where a test's servers listen that are to end and to be
// started again at the same address.
package testaddr

import (
	"fmt"
	"os"
)

// Host is an address of the loopback interface that no other test process uses, so
// that a port of it that is free for a moment is not taken by somebody else's server.
func Host() string {
	pid := os.Getpid() // at most 1<<22
	return fmt.Sprintf("127.%d.%d.%d", 128+pid>>16, pid>>8&255, pid&255)
}
