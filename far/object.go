package far

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
)

// An object of a pointer lies in the local logs behind two words, at a multiple
// of 16 bytes:
//
//	 0  u64  number of the pointer's word (40 bits, from bit 24), 0 for none;
//	         length of the data in bytes (24 bits)
//	 8  u64  far address of an equal copy (40 bits, from bit 24), 0 for none;
//	         class (16 bits, from bit 8); 1 if there is a copy (8 bits)
//	16       data, zeros up to a multiple of 16
//
// An object without a far copy is dirty: DerefMut finds that out by a look at
// the lowest byte of the second word, which lies in front of the data.
//
// In far memory it is an entry of the map objectsID: the hash is the word's
// number, the expiry the class's serial, and there is no key. That is how one cleaner
// and one check serve entries and objects.
type object []byte

const (
	objectHeader = 16
	objectsID    = 1<<16 - 1

	copyShift  = 24
	classShift = 8
	lenMask    = 1<<24 - 1
)

// objectSize is the room that n bytes of data take in the logs.
func objectSize(n int) int { return (objectHeader + n + unit - 1) &^ (unit - 1) }

// farObjectSize is the bytes that n bytes of data are in far memory.
func farObjectSize(n int) int { return entrySize(0, n) }

func objectHead(number uint64, n int) uint64 { return number<<24 | uint64(n) }

func (o object) head() uint64 { return atomic.LoadUint64(word64(o)) }

func (o object) setHead(head uint64) { atomic.StoreUint64(word64(o), head) }

// tail is the second word.
func (o object) tail() *uint64 { return word64(o[8:]) }

func headNumber(head uint64) uint64 { return head >> 24 }
func headLen(head uint64) int       { return int(head & lenMask) }

func tailClass(tail uint64) uint16 { return uint16(tail >> classShift) }
func tailFar(tail uint64) uint64   { return tail >> copyShift }

func newTail(far uint64, class uint16) uint64 {
	tail := far<<copyShift | uint64(class)<<classShift
	if far != 0 {
		tail |= 1
	}
	return tail
}

// putFar writes the far entry of an object into e, which has room for it,
// without sealing it.
func putFar(e entry, number, serial uint64, data []byte) {
	binary.LittleEndian.PutUint32(e, 0)
	binary.LittleEndian.PutUint32(e[4:], uint32(len(data)))
	binary.LittleEndian.PutUint64(e[8:], number<<16|objectsID)
	binary.LittleEndian.PutUint64(e[16:], serial<<16)
	binary.LittleEndian.PutUint64(e[24:], 0)
	clear(e[headerSize+copy(e[headerSize:], data):])
}

// isObject reports whether the far entry e is an object.
func (e entry) isObject() bool { return e.mapID() == objectsID }

// serial is that of the class of the object that e is.
func (e entry) serial() uint64 { return uint64(e.expire()) }

// number is the number of the word of the object that e is.
func (e entry) number() uint64 { return uint64(e.hash()) }

var errObject = errors.New("they are not those of the object that was looked for")

// inspectObject checks that b is the far entry that word number refers to by w,
// and returns that and its class. The bytes may be anything; and if the word is
// not w any more, its class may be another by now, which the serial tells.
func (h *Heap) inspectObject(b []byte, number uint64, w pword) (entry, *class, error) {
	e, err := decodeEntry(b, w.farAddr())
	c := h.class(w.farClass())
	switch {
	case err != nil:
		return nil, nil, err
	case !e.isObject() || e.number() != number || e.klen() != 0 || e.flags() != 0:
		return nil, nil, errObject
	case e.serial() != c.serial:
		return nil, nil, errObject
	case roundSize(e.size()) != w.farSize() || e.vlen() > h.maxObject:
		return nil, nil, errObject
	case c.size >= 0 && e.vlen() != c.size:
		return nil, nil, fmt.Errorf("they are an object of %d bytes, want %d", e.vlen(), c.size)
	}
	return e, c, nil
}
