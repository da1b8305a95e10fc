package daemon

import (
	"context"

	"polder/pool"
	"polder/verbs"
)

// dialAhead connects to nodes before there is a pool, which then finds connections where it would have to wait for them. A node serves nobody over one before
// a pool says whose it is, so nothing of an owner's ends by it. The pool's nodes are those that are returned; end closes the connections that it has not taken.
func dialAhead(ctx context.Context, nodes []pool.NodeConfig) (ready []pool.NodeConfig, end func()) {
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, errNoAnswer)
	var ends []func()
	for _, n := range nodes {
		dial, made := n.Dial, make(chan verbs.Conn, 1)
		go func() {
			defer close(made)
			if c, err := dial(ctx); err == nil {
				made <- c
			}
		}()
		n.Dial = func(ctx context.Context) (verbs.Conn, error) {
			select {
			case c, ok := <-made:
				if !ok {
					break // it was taken, or there is none
				}
				select {
				case <-c.Done():
					_ = c.Close()
				default:
					return c, nil
				}
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			return dial(ctx)
		}
		ready = append(ready, n)
		ends = append(ends, func() {
			if c, ok := <-made; ok {
				_ = c.Close()
			}
		})
	}
	return ready, func() {
		cancel()
		for _, end := range ends {
			end()
		}
	}
}
