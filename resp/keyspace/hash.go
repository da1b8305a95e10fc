package keyspace

import (
	"polder/far"
	"polder/resp/hashes"
	"polder/resp/reply"
)

// Redis keeps a hash in a listpack up to these limits.
const (
	ListpackFields = 128
	ListpackValue  = 64
)

// A hash is one entry up to these limits.
const (
	SmallFields = 512
	smallBytes  = 16 << 10
)

// Hash is a hash that a command works on.
type Hash struct {
	Found bool          // there is such a key
	List  hashes.List   // if it is small
	Large *hashes.Large // if it is large
	key   []byte
	e     far.Entry // without its value
}

// Hash loads the hash under key; reply.ErrWrongType if the value is no hash.
func (a *Access) Hash(key []byte) (h Hash, err error) {
	e, found, err := a.Get(key, a.Scratch[:0])
	if err != nil {
		return h, err
	}
	h = Hash{key: key, Found: found, e: e}
	if !found {
		h.e.Tag = TagHash
		h.List = a.Scratch[:0]
		return h, nil
	}
	if !IsHash(e.Tag) {
		return h, reply.ErrWrongType
	}
	Reuse(&a.Scratch, e.Value)
	if e.Tag == TagLarge {
		if h.Large = a.LargeOf(key); h.Large == nil {
			h = Hash{key: key, e: far.Entry{Tag: TagHash}} // it has just expired and been swept
		}
		return h, nil
	}
	h.List = e.Value
	return h, nil
}

// Len is how many fields the hash has.
func (h *Hash) Len() int {
	if h.Large != nil {
		return h.Large.Count
	}
	return h.List.Len()
}

// Field returns the value of a field, which is valid until the next call.
func (a *Access) Field(h *Hash, field []byte) (v []byte, ok bool, err error) {
	l := h.List
	if h.Large != nil {
		l, err = a.Block(h.Large, h.Large.Bucket(a.Space.FieldHash(field)), a.Scratch2[:0])
		if err != nil {
			return nil, false, err
		}
		Reuse(&a.Scratch2, l)
	}
	v, ok = l.Get(field)
	return v, ok, nil
}

// Fields calls yield with all fields and values, until yield fails.
func (a *Access) Fields(h *Hash, yield func(field, value []byte) error) error {
	each := func(l hashes.List) error {
		for f, v := range l.All() {
			if err := yield(f, v); err != nil {
				return err
			}
		}
		return nil
	}
	if h.Large != nil {
		return a.walk(h.Large, each)
	}
	return each(h.List)
}
