package far

import (
	"context"

	"polder/far/heap"
	"polder/far/objects"
)

// host is a Heap as the memory below it sees it, as a heap.Host. Only the maps are told which segments are lost; of a
// lost object, whoever dereferences it finds out.
type host Heap

// Owner implements heap.Host.
func (o *host) Owner(id uint16) heap.Owner {
	if id >= objects.FirstOwner {
		return o.objects.Owner()
	}
	return o.maps.Owner(id)
}

// Marker implements heap.Host.
func (o *host) Marker() heap.Marker { return o.objects.Owner() }

// Freeing implements heap.Host. Dead segments that wait for a checkpoint count, unless the last checkpoint failed.
func (o *host) Freeing() bool {
	return o.maps.Freeing() || o.core.Far.Waits() > 0 && o.checkpointErr.Load() == nil
}

// Learns implements heap.Host.
func (o *host) Learns() bool { return o.maps.Learns() || o.objects.Learns() }

// Learn implements heap.Host.
func (o *host) Learn(ctx context.Context, rs []heap.Suspect) error {
	if o.maps.Learns() {
		if err := o.maps.Learn(ctx, rs); err != nil {
			return err
		}
	}
	return o.objects.Learn(ctx, rs)
}

// Leaks implements heap.Host.
func (o *host) Leaks() bool { return o.maps.Leaks() || o.objects.Leaks() }

// Lost implements heap.Host.
func (o *host) Lost(s *heap.FarSegment) { o.maps.Lost(s) }

// Chores implements heap.Host.
func (o *host) Chores(tick bool) {
	o.maps.Chores(tick)
	o.objects.Chores(tick)
	if tick {
		o.ahead.Chores()
	}
}
