package soft

// loadFence keeps the loads before it from being satisfied after the loads
// that follow. On amd64 loads are not reordered with loads.
func loadFence() {}
