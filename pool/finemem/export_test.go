package finemem

// Deafen has the allocator ring no more, as if its doorbells got lost.
func (a *Allocator) Deafen() { a.cfg.Doorbell = false }
