package soft

import "context"

type client struct{ h *Heap }

func newClient(h *Heap) *client           { return &client{h} }
func (c *client) run(ctx context.Context) { <-ctx.Done() }
