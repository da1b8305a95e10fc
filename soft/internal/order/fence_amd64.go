package order

// LoadFence keeps the loads before it from being satisfied after the loads
// that follow. On amd64 loads are not reordered with loads.
func LoadFence() {}

// StoreFence keeps the stores after it from becoming visible before an atomic operation that precedes it. amd64 never
// reorders these.
func StoreFence() {}
