package index

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
	"sync"
)

const (
	codeSize = 16
	slotSize = 12

	// Most is how many words the leaves of a directory hold on average before it is doubled.
	Most = 40
)

// Slot is a word and its tag.
type Slot struct {
	Word Word
	Tag  uint32
}

// Size is the length of a leaf of n slots.
func Size(n int) int { return codeSize + n*slotSize }

// Leaf is the bytes of a leaf. Only of what Key.Open or Unchecked has returned may the methods be called. The nil Leaf
// has no slots.
type Leaf []byte

// Len is the number of slots.
func (l Leaf) Len() int {
	if l == nil {
		return 0
	}
	return (len(l) - codeSize) / slotSize
}

// At returns slot i.
func (l Leaf) At(i int) Slot {
	b := l[codeSize+i*slotSize:]
	return Slot{Word(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint32(b[8:])}
}

// Find returns the number of the first slot with a tag of at least tag.
func (l Leaf) Find(tag uint32) int {
	return sort.Search(l.Len(), func(i int) bool { return l.At(i).Tag >= tag })
}

// Key makes and checks the codes of leaves.
type Key struct {
	mu    sync.Mutex
	aead  cipher.AEAD
	nonce [12]byte // under mu
	code  []byte   // under mu
}

// NewSecret makes a secret that nobody else has.
func NewSecret() (secret [16]byte) {
	_, _ = rand.Read(secret[:]) // it never fails
	return secret
}

// NewKey makes the key of a secret.
func NewKey(secret [16]byte) *Key {
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return &Key{aead: aead}
}

// sum returns the code of a leaf's slots. k.mu must be held.
func (k *Key) sum(slots []byte, position uint64, off int) []byte {
	binary.LittleEndian.PutUint64(k.nonce[:], position)
	binary.LittleEndian.PutUint32(k.nonce[8:], uint32(off))
	k.code = k.aead.Seal(k.code[:0], k.nonce[:], nil, slots)
	return k.code
}

// Seal makes b, of Size(len(slots)) bytes, the leaf of slots, which are in order of their tags. It is to
// lie at off of the segment with that position, where nothing has been sealed before.
func (k *Key) Seal(b []byte, slots []Slot, position uint64, off int) {
	for i, s := range slots {
		at := b[codeSize+i*slotSize:]
		binary.LittleEndian.PutUint64(at, uint64(s.Word))
		binary.LittleEndian.PutUint32(at[8:], s.Tag)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	copy(b, k.sum(b[codeSize:], position, off))
}

// Open checks that b, which may be anything, is a leaf that was sealed for that place.
func (k *Key) Open(b []byte, position uint64, off int) (Leaf, error) {
	l, ok := Unchecked(b)
	if !ok {
		return nil, fmt.Errorf("they are %d bytes, which is the length of no leaf", len(b))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if subtle.ConstantTimeCompare(k.sum(b[codeSize:], position, off), b[:codeSize]) == 0 {
		return nil, errCode
	}
	return l, nil
}

// Unchecked is Open without the check of the code, for those who have no key. What such a leaf says need not be true.
// Unchecked reports false if b has the length of no leaf.
func Unchecked(b []byte) (Leaf, bool) {
	return Leaf(b), len(b) >= codeSize && (len(b)-codeSize)%slotSize == 0
}

var errCode = errors.New("the code of a leaf is wrong")
