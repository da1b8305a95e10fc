package soft

import (
	"fmt"
	"hash/maphash"
	"time"
)

// ByteMap is a Map from bytes to bytes for those who speak a protocol: keys
// need no conversion, values carry a tag and an expiry that can be read back,
// and keys can be walked in steps that a client asks for. Its methods may be
// called by any number of goroutines; each is atomic for its key.
type ByteMap struct {
	t     *table
	seed  maphash.Seed
	costs classes
}

// Item is a value in a ByteMap, with what the map keeps beside it.
type Item struct {
	Value  []byte
	Expire time.Time // zero: never
	Tag    uint8     // the caller's own, at most MaxTag

	// Took is how long it took to make the value, for Set only; 0 if that is not known. Then the value is taken to
	// cost as much as others whose keys begin alike.
	Took time.Duration
}

// MaxTag is the largest tag of an Item.
const MaxTag = 1<<(8-tagShift) - 1

// NewByteMap makes a map.
func NewByteMap(h *Heap, p Priority) (*ByteMap, error) {
	t, err := newTable(h, p)
	if err != nil {
		return nil, err
	}
	return &ByteMap{t: t, seed: maphash.MakeSeed()}, nil
}

func (m *ByteMap) hash(key []byte) uint64 {
	return maphash.Bytes(m.seed, key) >> (64 - refBits)
}

// Get appends the value of a key to dst and returns it as Item.Value. It does
// not allocate if dst has room.
//
//polder:hot
func (m *ByteMap) Get(key, dst []byte) (Item, bool) {
	hash := m.hash(key)
	b, hd, expiry, f := m.t.get(hash, key, dst)
	return m.found(hash, key, itemOf(b, hd, expiry), f)
}

// Stat is Get without the value: Item.Value is nil, and size its length.
func (m *ByteMap) Stat(key []byte) (i Item, size int, ok bool) {
	hash := m.hash(key)
	var name [8]byte
	b, hd, expiry, f := m.t.getPart(hash, key, name[:0], 0, 0)
	if f == present {
		size = int(hd.size) - int(hd.prefix()) - int(hd.klen)
		if hd.flags&flagLarge != 0 {
			v := m.t.h.larges.get(idOf(b))
			if v == nil {
				f = missing
			} else {
				size = v.size
			}
		}
	}
	i, ok = m.found(hash, key, itemOf(nil, hd, expiry), f)
	return i, size, ok
}

func itemOf(b []byte, hd header, expiry int64) Item {
	i := Item{Value: b, Tag: hd.flags >> tagShift}
	if expiry != 0 {
		i.Expire = time.Unix(0, expiry)
	}
	return i
}

// found counts a lookup, and removes what has expired.
func (m *ByteMap) found(hash uint64, key []byte, i Item, f found) (Item, bool) {
	if f == present {
		m.t.h.count.hits.add()
		return i, true
	}
	m.t.h.count.misses.add()
	if f == expired {
		m.t.expire(hash, key)
	}
	return Item{}, false
}

// Set stores a value. After an error the key has the value that it had
// before.
func (m *ByteMap) Set(key []byte, i Item) error {
	if i.Tag > MaxTag {
		return fmt.Errorf("cannot store an item with the tag %d: want at most %d", i.Tag, MaxTag)
	}
	e := entry{val: i.Value, cost: m.cost(key, i.Took), flags: i.Tag << tagShift}
	if !i.Expire.IsZero() {
		e.expiry = max(i.Expire.UnixNano(), 1)
	}
	_, err := m.t.set(m.hash(key), key, e, nil)
	return err
}

// cost returns the cost class of a value of key that took so long to make, and counts that as a rebuild. If took is
// 0, it returns what is known of the key's class.
func (m *ByteMap) cost(key []byte, took time.Duration) uint8 {
	class := m.place(key)
	if took <= 0 {
		return m.costs.cost(class)
	}
	took = m.costs.learn(class, took)
	m.t.h.Rebuilt(took)
	return costClass(took)
}

// place returns the place in m.costs of a key's class.
func (m *ByteMap) place(key []byte) uint64 {
	return maphash.Bytes(m.seed, classOf(key)) % uint64(len(m.costs))
}

// Delete removes a key and reports whether it was there.
func (m *ByteMap) Delete(key []byte) bool {
	hash := m.hash(key)
	m.t.expire(hash, key) // what has expired is not there
	return m.t.delete(hash, key)
}

// Len returns the number of keys. Those that have expired, or vanished just
// now, are counted until they are noticed.
func (m *ByteMap) Len() int { return m.t.len() }

// Clear removes every key.
func (m *ByteMap) Clear() { m.t.clear() }

// Scan calls yield with some keys and what is kept beside their values, and returns the cursor to go on with. A walk
// begins with the cursor 0, and ends when Scan returns 0. A key that is there throughout the walk is visited at least
// once. The key is valid until yield returns.
func (m *ByteMap) Scan(cursor uint64, yield func(key []byte, i Item)) uint64 {
	return m.t.scan(cursor, func(key []byte, hd header, expiry int64) {
		yield(key, itemOf(nil, hd, expiry))
	})
}

// Random appends some key to dst. It reports false if there is none.
func (m *ByteMap) Random(dst []byte) ([]byte, bool) { return m.t.random(dst) }

// Close removes every key. The map must not be used afterwards.
func (m *ByteMap) Close() { m.t.close() }
