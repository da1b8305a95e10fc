package daemon

import (
	"context"

	"polder/pool"
	"polder/verbs"
)

// dialAhead connects to nodes before there is a pool, so that the pool need not wait for connections. A node serves
// nobody over such a connection before the pool says whose it is, so this ends nothing of another owner's. Make the
// pool of the nodes that dialAhead returns. end closes the connections that the pool has not taken.
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
					break // the pool has taken it, or there is none
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
