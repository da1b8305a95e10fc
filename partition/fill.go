package partition

import (
	"context"
	"errors"
	"fmt"

	"polder/holder"
)

// ErrTaken says that the register has a value already.
var ErrTaken = errors.New("there is a heap of that name already")

// Reserve makes a map that no server can join, so that its partitions can be filled first. Release lets servers join;
// BeginRemoval is the way back. Reserve returns the version of the map. It fails with ErrTaken if the register has a
// value, unless vacant says that the value may be replaced (see Config.Vacant).
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
		if !errors.Is(err, holder.ErrChanged) { // after ErrUnknown the map may be there: the caller removes it
			return 0, fmt.Errorf("cannot make a map of partitions: %w", err)
		}
	}
}

// Release lets servers join the map that Reserve has made; version is what Reserve has returned. If it fails with
// holder.ErrUnknown, servers may be able to join all the same.
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
