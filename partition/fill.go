package partition

import (
	"context"
	"errors"
	"fmt"

	"polder/holder"
)

// ErrTaken says that there is something under the name already.
var ErrTaken = errors.New("there is a heap of that name already")

// Reserve makes a map that nobody joins, whose partitions are yet to be filled. Release has servers join it, and BeginRemoval is the way back. It fails with
// ErrTaken if there is anything in the register, but for what vacant says is none (see Config). It returns the version of the map.
func Reserve(ctx context.Context, reg holder.Register, partitions int, vacant func([]byte) (epoch uint64, ok bool)) (uint64, error) {
	for {
		b, version, err := reg.Read(ctx)
		if err != nil {
			return 0, err
		}
		m := newMap(partitions)
		m.Removing = true
		if len(b) > 0 {
			epoch, ok := vacant(b)
			if IsMap(b) || !ok {
				return 0, ErrTaken
			}
			m.Epoch = epoch
		}
		if version, err = reg.Swap(ctx, version, m.Encode()); err == nil {
			return version, nil
		}
		if !errors.Is(err, holder.ErrChanged) { // if it is unknown, the map may be there: it is for the caller to remove it
			return 0, fmt.Errorf("cannot make a map of partitions: %w", err)
		}
	}
}

// Release has servers join a map that Reserve has made, of which it has returned the version. If it fails with holder.ErrUnknown they may join all the same.
func Release(ctx context.Context, reg holder.Register, version uint64) error {
	b, now, err := reg.Read(ctx)
	if err != nil {
		return err
	}
	m, err := Decode(b)
	if err == nil && (now != version || !m.Removing) {
		err = holder.ErrChanged
	}
	if err == nil {
		m.Removing = false
		m.Epoch++
		_, err = reg.Swap(ctx, now, m.Encode())
	}
	if err != nil {
		return fmt.Errorf("cannot have servers join the map of partitions: %w", err)
	}
	return nil
}
