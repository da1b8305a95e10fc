package order

// LoadFence keeps the loads before it from being satisfied after the loads
// that follow. On amd64 loads are not reordered with loads.
func LoadFence() {}

// StoreFence keeps the stores after it from being seen before the atomic operation that precedes it. On amd64 none
// is.
func StoreFence() {}
