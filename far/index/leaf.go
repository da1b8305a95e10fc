package index

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
)

const (
	codeSize = 16
	// headSize is where the columns begin.
	headSize = codeSize + 12

	// Most is how many words the leaves of a directory hold on average before it is doubled. They hold more if it may
	// not be doubled.
	Most = 40

	// MaxSlots is the most slots of a leaf.
	MaxSlots = 1<<16 - 1

	mostTag, mostAddr, mostRest = 32, 40, 24 // the most bits of a value in each column
)

// Slot is a word and its tag.
type Slot struct {
	Word Word
	Tag  uint32
}

// rest is w without its address.
func (w Word) rest() uint64 { return uint64(w >> mostAddr) }

// shape is how many bits the values of each column have.
type shape struct{ tag, addr, rest int }

// shapeOf returns the shape of a leaf of slots, which are in the order of their tags.
func shapeOf(slots []Slot) shape {
	if len(slots) == 0 {
		return shape{}
	}
	first := slots[0]
	var addr, rest uint64
	for _, s := range slots {
		addr |= s.Word.Addr()
		rest |= s.Word.rest() ^ first.Word.rest()
	}
	return shape{bits.Len32(slots[len(slots)-1].Tag - first.Tag), bits.Len64(addr), bits.Len64(rest)}
}

// size is the length of a leaf of n slots.
func (s shape) size(n int) int {
	return headSize + columnSize(n, s.tag) + columnSize(n, s.addr) + columnSize(n, s.rest)
}

func columnSize(n, width int) int { return (n*width + 7) / 8 }

// Size is the length of a leaf of slots, which are in order of their tags.
func Size(slots []Slot) int { return shapeOf(slots).size(len(slots)) }

// Leaf is the bytes of a leaf. Its methods may be called only on a leaf that Key.Open or Unchecked has returned, or
// Key.Seal has made. The nil Leaf has no slots.
type Leaf []byte

// Len is the number of slots.
func (l Leaf) Len() int {
	if l == nil {
		return 0
	}
	return int(binary.LittleEndian.Uint16(l[codeSize+8:]))
}

func (l Leaf) shape() shape {
	return shape{int(l[codeSize+10]), int(l[codeSize+11]), int(l[codeSize+7])}
}

// At returns slot i.
func (l Leaf) At(i int) Slot {
	s, n := l.shape(), l.Len()
	addrs := headSize + columnSize(n, s.tag)
	rests := addrs + columnSize(n, s.addr)
	rest := uint64(binary.LittleEndian.Uint32(l[codeSize+4:])&(1<<mostRest-1)) ^ l.value(rests, i, s.rest)
	return Slot{Word(rest<<mostAddr | l.value(addrs, i, s.addr)), l.tag(i, s.tag)}
}

func (l Leaf) tag(i, width int) uint32 {
	return binary.LittleEndian.Uint32(l[codeSize:]) + uint32(l.value(headSize, i, width))
}

// value returns value i of a column.
//
// Hot path: it reads eight bytes at once, except at the leaf's end.
func (l Leaf) value(column, i, width int) uint64 {
	at := i * width
	b := l[column+at/8:]
	var v uint64
	if len(b) >= 8 {
		v = binary.LittleEndian.Uint64(b)
	} else {
		for k, x := range b {
			v |= uint64(x) << (8 * k)
		}
	}
	return v >> (at % 8) & (1<<width - 1)
}

// Find returns the number of the first slot with a tag of at least tag.
func (l Leaf) Find(tag uint32) int {
	lo, hi := 0, l.Len()
	if hi == 0 {
		return 0
	}
	for width := l.shape().tag; lo < hi; {
		if mid := (lo + hi) / 2; l.tag(mid, width) < tag {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// fill writes the leaf of slots, without its code, to l, which has Size(slots) bytes.
func (l Leaf) fill(slots []Slot) {
	clear(l)
	if len(slots) == 0 {
		return
	}
	s, first := shapeOf(slots), slots[0]
	binary.LittleEndian.PutUint32(l[codeSize:], first.Tag)
	binary.LittleEndian.PutUint32(l[codeSize+4:], uint32(first.Word.rest())|uint32(s.rest)<<mostRest)
	binary.LittleEndian.PutUint16(l[codeSize+8:], uint16(len(slots)))
	l[codeSize+10], l[codeSize+11] = byte(s.tag), byte(s.addr)
	addrs := headSize + columnSize(len(slots), s.tag)
	rests := addrs + columnSize(len(slots), s.addr)
	for i, x := range slots {
		l.set(headSize, i, s.tag, uint64(x.Tag-first.Tag))
		l.set(addrs, i, s.addr, x.Word.Addr())
		l.set(rests, i, s.rest, x.Word.rest()^first.Word.rest())
	}
}

// set sets value i of a column, which must be 0 before.
func (l Leaf) set(column, i, width int, v uint64) {
	at := i * width
	v <<= at % 8
	for b := l[column+at/8:]; v != 0; b, v = b[1:], v>>8 {
		b[0] |= byte(v)
	}
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

// Seal writes the leaf of slots to b, which has Size(slots) bytes. The slots are in the order of their tags, and at
// most [MaxSlots]. The leaf is to lie at off of the segment with that position, where nothing has been sealed before.
func (k *Key) Seal(b []byte, slots []Slot, position uint64, off int) {
	Leaf(b).fill(slots)
	k.mu.Lock()
	defer k.mu.Unlock()
	copy(b, k.sum(b[codeSize:], position, off))
}

// Open checks that b, which may be anything, is a leaf that was sealed for that position and offset.
func (k *Key) Open(b []byte, position uint64, off int) (Leaf, error) {
	l, ok := Unchecked(b)
	if !ok {
		return nil, fmt.Errorf("they are %d bytes, and no leaf of that length", len(b))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if subtle.ConstantTimeCompare(k.sum(b[codeSize:], position, off), b[:codeSize]) == 0 {
		return nil, errCode
	}
	return l, nil
}

// Unchecked is Open without the check of the code, for those who have no key. What such a leaf says need not be true.
// Unchecked reports false if the length of b is not what its head implies.
func Unchecked(b []byte) (Leaf, bool) {
	if len(b) < headSize {
		return nil, false
	}
	l := Leaf(b)
	s := l.shape()
	return l, s.tag <= mostTag && s.addr <= mostAddr && s.rest <= mostRest && len(b) == s.size(l.Len())
}

var errCode = errors.New("the code of a leaf is wrong")
