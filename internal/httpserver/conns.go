package httpserver

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// conns are the connections of a server. When there are too many, the one that has waited longest for its next
// request is closed, so that silent clients keep nobody out.
type conns struct {
	most    int
	mu      sync.Mutex
	all     map[net.Conn]*list.Element // its place in waiting, nil while it is served; guarded by mu
	waiting list.List                  // of net.Conn; guarded by mu
}

// changed is http.Server's ConnState.
func (c *conns) changed(nc net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	place, known := c.all[nc]
	if !known && state != http.StateNew {
		return // it has been closed
	}
	if place != nil {
		c.waiting.Remove(place)
	}
	switch state {
	case http.StateNew, http.StateIdle:
		if !known && len(c.all) >= c.most && !c.closeOne() {
			hangUp(nc)
			return
		}
		c.all[nc] = c.waiting.PushBack(nc)
	case http.StateActive:
		c.all[nc] = nil
	default:
		delete(c.all, nc)
	}
}

// closeOne closes a connection that waits, and reports whether there was one.
//
// Preconditions: c.mu is held.
func (c *conns) closeOne() bool {
	first := c.waiting.Front()
	if first == nil {
		return false
	}
	nc := c.waiting.Remove(first).(net.Conn)
	delete(c.all, nc)
	hangUp(nc)
	return true
}

// hangUp closes nc. It does not say goodbye, for which TLS would wait.
func hangUp(nc net.Conn) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	nc.Close()
}
