package far

import (
	"context"
	"errors"
	"math"
	"time"
)

// Forever is the time to live of an entry that does not expire.
const Forever time.Duration = math.MaxInt64

// expiryOf is when what lives for ttl from now on ends, as an entry has it: not before its time, and zero for never.
func expiryOf(ttl time.Duration) time.Time {
	switch {
	case ttl == Forever:
		return time.Time{}
	case ttl <= 0:
		return time.UnixMilli(1)
	}
	return time.Now().Add(ttl + time.Millisecond - 1)
}

// SetTTL makes v the value of k for as long as ttl, and no less: then the entry is as good as
// absent, and its memory, local or far, is given back before long. With a ttl that is not positive that is
// so at once, and with Forever it is Set. The time is kept to the millisecond.
func (m *Map[K, V]) SetTTL(ctx context.Context, k K, v V, ttl time.Duration) error {
	var small [smallKey]byte
	return m.b.Set(ctx, m.key.View(&k, small[:0]), Entry{Value: m.value.View(&v, nil), Expire: expiryOf(ttl)})
}

// Expire makes the entry of k one that lives for ttl from now on, as SetTTL does, and reports whether there
// is one. Like Update, it is one step, and leaves the value as it is.
func (m *Map[K, V]) Expire(ctx context.Context, k K, ttl time.Duration) (ok bool, err error) {
	var small [smallKey]byte
	key := m.key.View(&k, small[:0])
	err = m.b.Update(ctx, append([]byte(nil), key...), func(old Entry, found bool) (Entry, Verdict, error) {
		if ok = found; !found {
			return old, Keep, nil
		}
		old.Expire = expiryOf(ttl)
		return old, Put, nil
	})
	return ok && err == nil, err
}

// TTL returns how long the entry of k will live, Forever if it does not expire, and whether there is one. The
// value is not fetched.
func (m *Map[K, V]) TTL(ctx context.Context, k K) (ttl time.Duration, ok bool, err error) {
	var small [smallKey]byte
	key := m.key.View(&k, small[:0])
	e, _, err := m.b.Stat(ctx, append([]byte(nil), key...))
	switch {
	case errors.Is(err, ErrNotFound):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	case e.Expire.IsZero():
		return Forever, true, nil
	}
	ttl = time.Until(e.Expire)
	return ttl, ttl > 0, nil
}
