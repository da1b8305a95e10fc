package share

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"

	"polder/share/internal/wire"
)

// Descriptions of what the daemon holds.
type (
	// Info describes the daemon as a whole.
	Info = wire.Info
	// PoolInfo describes a pool.
	PoolInfo = wire.PoolInfo
	// KeyInfo describes a key.
	KeyInfo = wire.KeyInfo
	// RegionInfo describes a region.
	RegionInfo = wire.RegionInfo
	// SessionInfo describes a client.
	SessionInfo = wire.SessionInfo
)

// Stats asks the daemon about itself.
func (c *Client) Stats(ctx context.Context) (Info, error) { return stats(ctx, c) }

// Keys iterates over the keys that begin with prefix, in order, in batches:
// keys that come and go meanwhile may be missed.
func (c *Client) Keys(ctx context.Context, prefix string) iter.Seq2[KeyInfo, error] {
	return list(ctx, c, wire.ListKeys, prefix, func(k KeyInfo) string { return k.Key })
}

// Regions iterates over the regions.
func (c *Client) Regions(ctx context.Context) iter.Seq2[RegionInfo, error] {
	return list(ctx, c, wire.ListRegions, "", func(r RegionInfo) string { return fmt.Sprintf("%016x", r.ID) })
}

// Sessions iterates over the clients.
func (c *Client) Sessions(ctx context.Context) iter.Seq2[SessionInfo, error] {
	return list(ctx, c, wire.ListSessions, "", func(s SessionInfo) string { return fmt.Sprintf("%016x", s.ID) })
}

// Kick ends the session of another client, as when it is stopped and the daemon
// waits for it: its pins are gone, its regions are released, and it is served no
// more. It needs the daemon's user, root, or the client's own user. The views
// that the client has, if it is alive, keep their bytes.
func (c *Client) Kick(ctx context.Context, client uint64) error {
	return c.call(ctx, request{op: fmt.Sprintf("kick %016x", client), again: true, build: func(b wire.Writer) wire.Writer {
		return b.U8(uint8(wire.Kick)).U64(client)
	}})
}

func stats(ctx context.Context, c caller) (Info, error) {
	var info Info
	err := c.call(ctx, request{
		op: "ask for statistics", again: true,
		build: func(b wire.Writer) wire.Writer { return b.U8(uint8(wire.Stats)) },
		parse: func(r *wire.Reader, _ []*os.File, _ bool) error { return json.Unmarshal(r.Rest(), &info) },
	})
	return info, err
}

func list[T any](ctx context.Context, c caller, what uint8, prefix string, name func(T) string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		after := ""
		for {
			var got []T
			err := c.call(ctx, request{
				op: "list", again: true,
				build: func(b wire.Writer) wire.Writer {
					return b.U8(uint8(wire.List)).U8(what).String(prefix).String(after).U32(128)
				},
				parse: func(r *wire.Reader, _ []*os.File, _ bool) error {
					got = nil
					return json.Unmarshal(r.Rest(), &got)
				},
			})
			if err != nil {
				var zero T
				yield(zero, err)
				return
			}
			if len(got) == 0 {
				return
			}
			for _, v := range got {
				if !yield(v, nil) {
					return
				}
			}
			after = name(got[len(got)-1])
		}
	}
}

func isNotFound(err error) bool { return errors.Is(err, ErrNotFound) }
