package named

import (
	"context"
	"time"
)

// SetClock has owners take now for the time, until undo.
func SetClock(now func() time.Duration) (undo func()) {
	was := clock
	clock = now
	return func() { clock = was }
}

// Moved is what copies.Keep.Moved calls.
func (o *Owner) Moved(ctx context.Context, number uint64, name func() string) error {
	return o.moved(ctx, number, name)
}
