package origin

import (
	"encoding/binary"
	"time"

	"polder/soft"
)

// kind says what is known of a key.
type kind uint8

const (
	kindUnknown kind = iota // the origin must be asked
	kindValue               // it is a string
	kindNull                // there is no such key
	kindLarge               // it is a string too long to be cached
)

// header is the length of what is stored in front of a value: until when the value is valid, on the tracker's own
// clock, which does not move when the host's clock is set; and its kind.
const header = 9

// never is until when a value is valid that does not expire.
const never = time.Duration(1<<63 - 1)

// encode appends a value to dst as it is cached.
func encode(dst []byte, k kind, ends time.Duration, value []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(ends))
	dst = append(dst, byte(k))
	return append(dst, value...)
}

// lookup returns what is cached of a key. It reads the value into buf, where it is valid until buf is used again. It
// also returns kindUnknown if the cache may not answer at the moment.
func (t *tracker) lookup(key []byte, buf *[]byte) (kind, []byte) {
	if !t.fresh() {
		return kindUnknown, nil
	}
	item, ok := t.m.Get(key, (*buf)[:0])
	*buf = item.Value
	if !ok || len(item.Value) < header || t.now() >= time.Duration(binary.LittleEndian.Uint64(item.Value)) {
		return kindUnknown, nil
	}
	return kind(item.Value[header-1]), item.Value[header:]
}

// fresh reports whether the origin has confirmed the cached values less than Config.Lag ago.
func (t *tracker) fresh() bool {
	return t.up.Load() && t.now()-time.Duration(t.confirmed.Load()) < t.cfg.Lag
}

// concerns reports whether a key is cached or may soon be.
func (t *tracker) concerns(key string) bool {
	t.mu.Lock()
	_, flying := t.flights[key]
	t.mu.Unlock()
	if flying {
		return true
	}
	_, _, cached := t.m.Stat([]byte(key)) // after the flights: a flight that ends caches its value first
	return cached
}

// keep caches what the flight of q has brought. If there is no memory for it, nothing is cached.
//
// Preconditions: the caller is the goroutine that reads the link.
func (t *tracker) keep(q *question, ends time.Duration) {
	f := q.flight
	t.code = encode(t.code[:0], f.kind, ends, f.value)
	if err := t.m.Set([]byte(f.key), soft.Item{Value: t.code, Took: t.now() - q.at}); err != nil {
		t.m.Delete([]byte(f.key))
	}
	if cap(t.code) > 1<<20 {
		t.code = nil
	}
}

// forget removes a key, and keeps the result of a flight of it that is under way from being cached.
//
// Preconditions: the caller is the goroutine that reads the link.
func (t *tracker) forget(key []byte) {
	t.applied.Add(1)
	t.mu.Lock()
	if f := t.flights[string(key)]; f != nil {
		f.overtaken = true
		delete(t.flights, f.key)
	}
	t.mu.Unlock()
	t.m.Delete(key)
	t.applied.Add(1)
	t.stats.invalidations.Add(1)
}

// forgetAll is forget for every key.
//
// Preconditions: the caller is the goroutine that reads the link.
func (t *tracker) forgetAll() {
	t.applied.Add(1)
	t.mu.Lock()
	for _, f := range t.flights {
		f.overtaken = true
	}
	clear(t.flights)
	t.mu.Unlock()
	t.m.Clear()
	t.applied.Add(1)
	t.stats.flushes.Add(1)
}
