package objects

import (
	"sync/atomic"

	"polder/far/heap"
	"polder/internal/sizeclass"
)

// Word is the word of a remoteable pointer (the paper's figure 4). The bits above the address are inverted, so to
// speak: if an object is local, was used of late and is not marked, its word is the bare address of its data; every
// other word takes the slow path, and has the top bit set. The fast path is a test of the sign, which costs nothing
// beside the load. Comparing the word with a number takes a fifth longer when the number comes from memory.
//
//	63      slow: the word is not a bare address
//	62      far: the other bits say where the far copy lies, and
//	61..48  its class
//
// or, if the object is not far,
//
//	61      marked: the evacuator is about to move the object
//	60..59  the number of the pass that marked it, modulo 4
//	58      free: nobody has the pointer
//	57      zero: the object was never used and is all zeros; its class is in the low bits
//	56      away: the word itself is far, with its whole page; or, if bit 0 is set, the word is lost
//	55..48  local only: how many passes ago the object was last used
//	47..0   local only: address of the data
//
// and, if the object is far,
//
//	47..40  size class of the far record, as in the words of maps (package entry)
//	39..0   address in units of 16 bytes
//
// The word of a pointer never moves. It is changed by CAS only, except while nobody else knows the word.
type Word uint64

const (
	pSlow   Word = 1 << 63
	pFar    Word = 1 << 62
	pMarked Word = 1 << 61
	pFree   Word = 1 << 58
	pZero   Word = 1 << 57
	pAway   Word = 1 << 56

	pPassShift      = 59
	pPass      Word = 3 << pPassShift

	pFarClassShift = 48

	pColdShift      = 48
	pCold      Word = 0xff << pColdShift

	pAddr = 1<<48 - 1
	Top   = 1<<63 - 1 // the greatest word without pSlow
)

func (w Word) Far() bool    { return w&pFar != 0 }
func (w Word) Marked() bool { return w&pMarked != 0 }

// Local reports whether the object has an address here.
func (w Word) Local() bool { return w&(pFar|pFree|pZero|pAway) == 0 && w != 0 }

// Addr is the address of a local object's data.
func (w Word) Addr() uintptr { return uintptr(w & pAddr) }

// Coldness is the number of passes that a local object has not been used for.
func (w Word) Coldness() int { return int(w & pCold >> pColdShift) }

// Warm reports whether the prefetcher need not be told that the object is used: the object is local and was used in
// this pass already, or it is zero.
func (w Word) Warm() bool { return w.Local() && w&pCold == 0 || w.Zero() }

// unmarked is the local word w without a mark.
func (w Word) unmarked() Word { return (w &^ (pMarked | pPass)).settled() }

// markedBy is the local word w with the mark of pass number n.
func (w Word) markedBy(n uint64) Word {
	return w.unmarked() | pSlow | pMarked | Word(n<<pPassShift)&pPass
}

// cooled is the local word w with another coldness.
func (w Word) cooled(coldness int) Word {
	return (w&^pCold | Word(coldness)<<pColdShift).settled()
}

// settled is the local word w with pSlow set if w is marked or cold, and not set otherwise.
func (w Word) settled() Word {
	if w&(pMarked|pCold) == 0 {
		return w &^ pSlow
	}
	return w | pSlow
}

// localWord is the word of an object whose data lies at addr.
func localWord(addr uintptr, coldness int) Word { return Word(addr).cooled(coldness) }

// freeWord is the word of a pointer that nobody has.
const freeWord = pSlow | pFree

// zeroWord is the word of an object of a class that was never used.
func zeroWord(class uint16) Word { return pSlow | pZero | Word(class) }

// asleep is what a word reads as while the word itself is in far memory. lostWord is a word that was in far memory
// and was lost there.
const (
	asleep   = pSlow | pAway
	lostWord = asleep | 1
)

// Asleep reports whether the word is in far memory itself.
func (w Word) Asleep() bool { return w == asleep }

func (w Word) lost() bool { return w == lostWord }

func (w Word) Free() bool { return w&(pFar|pFree) == pFree || w == 0 }
func (w Word) Zero() bool { return w&(pFar|pZero) == pZero }

// farWord is the word of an object of a class whose far record is n bytes at addr.
func farWord(addr uint64, n int, class uint16) Word {
	return pSlow | pFar | Word(class)<<pFarClassShift | Word(sizeclass.Of(n))<<heap.AddrBits | Word(addr)
}

func (w Word) FarClass() uint16 { return uint16(w &^ (pSlow | pFar) >> pFarClassShift) }

func (w Word) FarAddr() uint64 { return uint64(w & heap.AddrMask) }
func (w Word) FarSize() int    { return sizeclass.Size(uint8(w >> heap.AddrBits)) }

func Load(p *uint64) Word { return Word(atomic.LoadUint64(p)) }
func casWord(p *uint64, old, w Word) bool {
	return atomic.CompareAndSwapUint64(p, uint64(old), uint64(w))
}
func storeWord(p *uint64, w Word) { atomic.StoreUint64(p, uint64(w)) }
