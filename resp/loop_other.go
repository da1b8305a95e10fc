//go:build !linux

package resp

import (
	"net"
	"time"
)

const multiplexing = "goroutines"

// loop is an event loop; there is none on this system.
type loop struct{}

func newLoop(*Server) (*loop, error)                  { return nil, nil }
func (l *loop) start()                                {}
func (l *loop) stop()                                 {}
func (l *loop) free()                                 {}
func (l *loop) adopt(net.Conn, *session, []byte) bool { return false }
func cpuTimes() (system, user time.Duration)          { return 0, 0 }
