package partition_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"polder/holder"
	"polder/partition"
)

// register is a holder.Register in this process. Servers on several machines use package witness or etcd.
type register struct {
	mu      sync.Mutex
	value   []byte
	version uint64
}

func (r *register) Read(context.Context) ([]byte, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]byte(nil), r.value...), r.version, nil
}

func (r *register) Swap(_ context.Context, version uint64, value []byte) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if version != r.version {
		return 0, holder.ErrChanged
	}
	r.value, r.version = append([]byte(nil), value...), version+1
	return r.version, nil
}

func (r *register) Close() error { return nil }

// Two servers share eight partitions.
func Example() {
	ctx := context.Background()
	reg := &register{}
	join := func(digit, addr string) *partition.Member {
		m, err := partition.Join(ctx, partition.Config{
			Register: reg, ID: strings.Repeat(digit, 40), Addr: addr, Partitions: 8, Beat: 20 * time.Millisecond, Patience: time.Minute,
			Open: func(ctx context.Context, _ int, mine <-chan struct{}) error {
				select { // prepare for the partition's heap until then
				case <-mine:
					return nil // own it, and serve it
				case <-ctx.Done():
					return ctx.Err()
				}
			},
			Close: func(context.Context, int) error { return nil }, // give it up
		})
		if err != nil {
			panic(err)
		}
		return m
	}
	show := func(m *partition.Map) {
		p := partition.Of(partition.Slot([]byte("{user1000}.following")), m.Partitions)
		owner, _ := m.Server(m.Owner[p])
		first, last := partition.Range(p, m.Partitions)
		fmt.Printf("epoch %d: %s has slots %d to %d\n", m.Epoch, owner.Addr, first, last)
	}

	a := join("a", "10.0.0.1:6379")
	show(a.Map())
	b := join("b", "10.0.0.2:6379")
	for strings.Join(b.Map().Next, "") != "" { // moves are under way
		time.Sleep(time.Millisecond)
	}
	show(b.Map())
	if err := b.Close(ctx); err != nil {
		panic(err)
	}
	if err := a.Close(ctx); err != nil {
		panic(err)
	}
	// Output:
	// epoch 1: 10.0.0.1:6379 has slots 2048 to 4095
	// epoch 6: 10.0.0.2:6379 has slots 2048 to 4095
}
