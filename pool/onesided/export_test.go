package onesided

import "polder/pool/manager"

// Greedy makes a session forget its budget, as a malicious client would.
func Greedy(s manager.Session) {
	o := s.(*session)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.pairs {
		p.budget = 1 << 20
	}
}
