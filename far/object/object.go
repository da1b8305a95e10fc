// Package object is the format of a record in local memory: what package heap has in its logs, and what the owners of records read and write of it.
package object

import (
	"sync/atomic"

	"polder/far/record"
)

// Object is the bytes of a record in local memory, of whatever owner. It lies in the local logs
// behind two words, at a multiple of 16 bytes:
//
//	 0  u64  number of the record, as its owner calls it (40 bits, from bit 24), 0 for none where
//	         scopes keep records in place; length of the data in bytes (24 bits)
//	 8  u64  far address of an equal copy (40 bits, from bit 24), 0 for none;
//	         owner (16 bits, from bit 8); flags (7 bits, from bit 1); 1 if there is a copy
//	16       data, zeros up to a multiple of 16
//
// An object without a far copy is dirty: DerefMut finds that out by a look at
// the lowest byte of the second word, which lies in front of the data.
//
// It looks without a fence, in a scope, which is enough. The byte of an object
// that others see only ever goes from 1 to 0, so who reads 0 reads the truth;
// who reads 1 takes the slow path, which makes it 0 before it returns the address.
// The evacuator drops a clean object, or copies out a dirty one, after it has
// waited for the scopes that were open when it marked the word, and has let be
// what they or later ones have pinned. Whoever may write has either read the word
// before it was marked, in a scope that was waited for, so that the writes and
// the byte are seen, or has met the mark: then it has pinned the object, or moved
// it by a CAS of the word, which makes the CAS by which the evacuator ends its
// work on the object fail.
type Object []byte

const (
	Header = 16 // bytes in front of the data

	copyShift  = 24
	ownerShift = 8
	lenMask    = 1<<24 - 1

	// TailStaged says that a far copy of the object is being written. It is for owners whose
	// locks keep objects in place.
	TailStaged = 1 << 1
)

// Size is the room that n bytes of data take in the logs.
func Size(n int) int { return (Header + n + record.Unit - 1) &^ (record.Unit - 1) }

// FarSize is the bytes that n bytes of data are in far memory.
func FarSize(n int) int { return record.Size(n) }

func Head(number uint64, n int) uint64 { return number<<24 | uint64(n) }

func (o Object) Head() uint64 { return atomic.LoadUint64(word64(o)) }

func (o Object) SetHead(head uint64) { atomic.StoreUint64(word64(o), head) }

// Tail is the second word.
func (o Object) Tail() *uint64 { return word64(o[8:]) }

func HeadNumber(head uint64) uint64 { return head >> 24 }
func HeadLen(head uint64) int       { return int(head & lenMask) }

func TailOwner(tail uint64) uint16 { return uint16(tail >> ownerShift) }
func TailFar(tail uint64) uint64   { return tail >> copyShift }

func NewTail(far uint64, owner uint16) uint64 {
	tail := far<<copyShift | uint64(owner)<<ownerShift
	if far != 0 {
		tail |= 1
	}
	return tail
}
