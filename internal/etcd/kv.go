package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// KV is a key with its value. If Mod is 0, the key does not exist.
type KV struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
	Mod   int64  `json:"mod_revision,string"` // the store's revision when the key was last changed
}

// Lease is the number of a lease.
type Lease int64

type rangeRequest struct {
	Key   []byte `json:"key"`
	End   []byte `json:"range_end,omitempty"`
	Limit int64  `json:"limit,omitempty,string"`
	Bare  bool   `json:"keys_only,omitempty"`
}

type rangeAnswer struct {
	header `json:"header"`
	KVs    []KV `json:"kvs"`
	More   bool `json:"more"`
}

// Get returns a key with its value, and the store's revision at that time.
func (c *Client) Get(ctx context.Context, key string) (kv KV, revision int64, err error) {
	var a rangeAnswer
	if err := c.ask(ctx, "kv/range", false, rangeRequest{Key: []byte(key)}, &a); err != nil {
		return KV{}, 0, fmt.Errorf("cannot get %s from etcd: %w", key, err)
	}
	switch {
	case len(a.KVs) > 1 || len(a.KVs) == 1 && (string(a.KVs[0].Key) != key || a.KVs[0].Mod <= 0):
		return KV{}, 0, fmt.Errorf("cannot get %s from etcd: the answer is about something else", key)
	case len(a.KVs) == 1:
		kv = a.KVs[0]
		if kv.Value == nil {
			kv.Value = []byte{} // the gateway leaves out empty values
		}
	}
	return kv, a.Revision, nil
}

// List returns the keys that begin with prefix, in order, but at most limit of them. more reports whether there are
// others.
func (c *Client) List(ctx context.Context, prefix string, limit int) (kvs []KV, more bool, err error) {
	var a rangeAnswer
	if err := c.ask(ctx, "kv/range", false, rangeRequest{Key: []byte(prefix), End: after(prefix), Limit: int64(limit)}, &a); err != nil {
		return nil, false, fmt.Errorf("cannot list %s in etcd: %w", prefix, err)
	}
	if len(a.KVs) > limit {
		return nil, false, fmt.Errorf("cannot list %s in etcd: %d keys in the answer, and at most %d were asked for", prefix, len(a.KVs), limit)
	}
	return a.KVs, a.More, nil
}

// keysAtOnce is how many keys fit into an answer, however long they are.
const keysAtOnce = 512

// Keys returns all keys that begin with prefix, in order, without their values.
func (c *Client) Keys(ctx context.Context, prefix string) (keys []string, err error) {
	from := prefix
	for {
		var a rangeAnswer
		if err := c.ask(ctx, "kv/range", false, rangeRequest{Key: []byte(from), End: after(prefix), Limit: keysAtOnce, Bare: true}, &a); err != nil {
			return nil, fmt.Errorf("cannot list %s in etcd: %w", prefix, err)
		}
		for _, kv := range a.KVs {
			if string(kv.Key) < from {
				return nil, fmt.Errorf("cannot list %s in etcd: the answer is about something else", prefix)
			}
			keys = append(keys, string(kv.Key))
			from = string(kv.Key) + "\x00"
		}
		if !a.More || len(a.KVs) == 0 {
			return keys, nil
		}
	}
}

// after is the end of the range of keys that begin with prefix. prefix must not be empty, nor end with 0xff.
func after(prefix string) []byte {
	end := []byte(prefix)
	end[len(end)-1]++
	return end
}

type compare struct {
	Key    []byte `json:"key"`
	Target string `json:"target"`
	Result string `json:"result"`
	Mod    int64  `json:"mod_revision,string"`
}

type operation struct {
	Put    *putRequest   `json:"request_put,omitempty"`
	Delete *rangeRequest `json:"request_delete_range,omitempty"`
}

type putRequest struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
	Lease Lease  `json:"lease,omitempty,string"`
}

type txnRequest struct {
	Compare []compare   `json:"compare"`
	Success []operation `json:"success"`
}

type txnAnswer struct {
	header    `json:"header"`
	Succeeded bool `json:"succeeded"`
}

// Swap sets the value of a key, under a lease unless that is 0, if the key was last changed at revision mod; mod 0
// means that the key does not exist. swapped reports whether it did, and then the key's new revision is returned. The
// error is ErrUnknown if nobody can tell whether the swap has happened; after any other error it has not happened.
func (c *Client) Swap(ctx context.Context, key string, mod int64, value []byte, lease Lease) (swapped bool, revision int64, err error) {
	return c.change(ctx, key, mod, operation{Put: &putRequest{Key: []byte(key), Value: value, Lease: lease}})
}

// Delete deletes a key if it was last changed at revision mod. Its errors are those of Swap.
func (c *Client) Delete(ctx context.Context, key string, mod int64) (deleted bool, err error) {
	deleted, _, err = c.change(ctx, key, mod, operation{Delete: &rangeRequest{Key: []byte(key)}})
	return deleted, err
}

func (c *Client) change(ctx context.Context, key string, mod int64, op operation) (done bool, revision int64, err error) {
	if err := ctx.Err(); err != nil {
		return false, 0, context.Cause(ctx)
	}
	var a txnAnswer
	request := txnRequest{
		Compare: []compare{{Key: []byte(key), Target: "MOD", Result: "EQUAL", Mod: mod}},
		Success: []operation{op},
	}
	if err := c.ask(ctx, "kv/txn", true, request, &a); err != nil {
		return false, 0, fmt.Errorf("cannot change %s in etcd: %w", key, noLease(err))
	}
	return a.Succeeded, a.Revision, nil
}

type leaseRequest struct {
	ID  Lease `json:"ID,string"`
	TTL int64 `json:"TTL,omitempty,string"` // seconds
}

type leaseAnswer struct {
	header `json:"header"`
	ID     Lease `json:"ID,string"`
	TTL    int64 `json:"TTL,string"`
}

// Grant returns a new lease, and for how long it lasts after it was granted or kept, which may be longer than ttl.
// ttl is rounded up to seconds.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (Lease, time.Duration, error) {
	var a leaseAnswer
	// A lease whose answer was lost ends by itself, so Grant may ask again.
	err := c.ask(ctx, "lease/grant", false, leaseRequest{TTL: int64((ttl + time.Second - 1) / time.Second)}, &a)
	if err == nil && (a.ID == 0 || a.TTL <= 0) {
		err = errors.New("the answer has none")
	}
	if err != nil {
		return 0, 0, fmt.Errorf("cannot get a lease from etcd: %w", err)
	}
	return a.ID, time.Duration(a.TTL) * time.Second, nil
}

type keptAnswer struct {
	Result leaseAnswer `json:"result"`
}

func (a *keptAnswer) head() *header { return &a.Result.header }

// Keep starts a lease's time anew. It fails with ErrNoLease if the lease has ended.
func (c *Client) Keep(ctx context.Context, lease Lease) error {
	var a keptAnswer
	err := noLease(c.ask(ctx, "lease/keepalive", false, leaseRequest{ID: lease}, &a))
	if err == nil && a.Result.TTL <= 0 {
		err = ErrNoLease
	}
	if err != nil {
		return fmt.Errorf("cannot keep a lease in etcd: %w", err)
	}
	return nil
}

// Revoke ends a lease and deletes the keys under it. It is no error if the lease has ended already.
func (c *Client) Revoke(ctx context.Context, lease Lease) error {
	var a leaseAnswer
	if err := noLease(c.ask(ctx, "lease/revoke", false, leaseRequest{ID: lease}, &a)); err != nil && !errors.Is(err, ErrNoLease) {
		return fmt.Errorf("cannot end a lease in etcd: %w", err)
	}
	return nil
}

// noLease returns ErrNoLease if err is etcd's error for a lease that it does not know, and otherwise err.
func noLease(err error) error {
	var r *refusal
	if errors.As(err, &r) && r.Code == codeNotFound {
		return ErrNoLease
	}
	return err
}
