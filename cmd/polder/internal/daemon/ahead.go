package daemon

import (
	"context"

	"polder/pool"
	"polder/verbs"
)

// dialAhead connects to nodes before there is a pool, so that the pool need not wait for the connections. This does
// not disturb the heap's present owner: a node begins to serve a connection only when a pool says whose session it
// is. The pool must be opened with the nodes that are returned. end closes the connections that the pool has not
// taken.
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
					break // the connection was taken, or there is none
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
