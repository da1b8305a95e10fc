package partition

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"polder/holder"
)

// ErrRemoved says that the partitions are being removed, or were.
var ErrRemoved = errors.New("the heap was removed")

// UsedError says that servers share the partitions.
type UsedError struct{ Addrs []string }

func (e *UsedError) Error() string {
	return "servers share its partitions: " + strings.Join(e.Addrs, ", ")
}

// removeEvery is how often BeginRemoval looks whether a server has beaten.
const removeEvery = 100 * time.Millisecond

// BeginRemoval takes all servers out of the map and lets nobody join it any more: servers that are alive end with
// ErrRemoved. Unless force is set it fails with a *UsedError if any server is alive; to find out, it waits for
// DefaultPatience if the map has servers. It returns the map as it is now, with its version: when the caller has
// removed what the partitions hold, it replaces this version by another value.
func BeginRemoval(ctx context.Context, reg holder.Register, force bool) (*Map, uint64, error) {
	began, first := time.Now(), uint64(0)
	for {
		b, version, err := reg.Read(ctx)
		if err != nil {
			return nil, 0, err
		}
		m, err := Decode(b)
		if err != nil || m.Removing {
			return m, version, err
		}
		if first == 0 {
			first = version
		}
		if len(m.Servers) > 0 && !force {
			if version != first {
				used := &UsedError{}
				for _, s := range m.Servers {
					used.Addrs = append(used.Addrs, s.Addr)
				}
				return nil, 0, used
			}
			if time.Since(began) < DefaultPatience {
				if !sleep(ctx, removeEvery) {
					return nil, 0, context.Cause(ctx)
				}
				continue
			}
		}
		to := newMap(m.Partitions)
		to.Epoch, to.Removing = m.Epoch+1, true
		if version, err = reg.Swap(ctx, version, to.Encode()); err == nil {
			return to, version, nil
		}
		if !errors.Is(err, holder.ErrChanged) && !errors.Is(err, holder.ErrUnknown) {
			return nil, 0, fmt.Errorf("cannot change the map of partitions: %w", err)
		}
	}
}
