package memnode

import (
	"fmt"
	"testing"
	"time"
)

// Hosts' protection errors are forgotten one by one, and with the last of them
// the host, though it never comes back.
func TestStrikesAreForgotten(t *testing.T) {
	m := &finemem{node: &Node{cfg: Config{MaxViolations: 2}}, strikes: make(map[string]*strikes)}
	now := time.Now()
	for i := range 1000 {
		m.strike(fmt.Sprintf("host %d", i), 1+i%2, now)
		now = now.Add(strikeLife)
	}
	if n := len(m.strikes); n > 3 {
		t.Errorf("%d hosts are remembered, want those of the last two times", n)
	}
	now = time.Now()
	m.strike("bad", 3, now)
	if !m.struckOut("bad") {
		t.Error("3 errors do not strike a host out, want at most 2")
	}
	m.forgive("bad", now.Add(strikeLife))
	if m.struckOut("bad") || m.strikes["bad"].n != 2 {
		t.Errorf("after one was forgotten: %+v", m.strikes["bad"])
	}
}
