package far

// Heap is memory for maps: a local budget and a store behind it.
type Heap struct{}

// NewHeap makes a heap with a local budget of cfg.Local bytes over store. It
// fails if the configuration is wrong.
func NewHeap(store Store, cfg Config) (*Heap, error) { return &Heap{}, nil }

// NewMap makes an empty map on the heap. Name appears in statistics.
func (h *Heap) NewMap(name string) *Map { return &Map{m: map[string]Entry{}} }

// Close stops the heap's goroutines and gives its far memory back.
func (h *Heap) Close() error { return nil }
