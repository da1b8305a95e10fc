package far

import "sync/atomic"

// pword is the word of a remoteable pointer (the paper's figure 4). Its bits
// above the address are inverted, so to speak: the word of an object that is
// local, was used of late and is left alone is the bare address of the object's
// data, and everything else, which takes the slow path, has something in the
// top 16 bits.
//
//	63      far: the rest is where the far copy lies, and
//	62..48  the class
//
// or, if it is not far,
//
//	62      marked: the evacuator is about to move the object
//	61..60  the number of the pass that marked it, modulo 4
//	58      free: nobody has the pointer
//	57      zero: the object was never used, and is nothing but zeros; its class
//	        is in the low bits
//	55..48  local only: how many passes ago the object was last used
//	47..0   local only: address of the data
//
// and of a far one
//
//	47..40  size class of the far entry, as in word
//	39..0   address in units of 16 bytes
//
// The word of a pointer never moves. Every change of it is a CAS, except that
// of a word that nobody else knows yet.
type pword uint64

const (
	pFar    pword = 1 << 63
	pMarked pword = 1 << 62
	pFree   pword = 1 << 58
	pZero   pword = 1 << 57

	pPassShift       = 60
	pPass      pword = 3 << pPassShift

	pFarClassShift = 48

	pColdShift       = 48
	pCold      pword = 0xff << pColdShift

	pAddr = 1<<48 - 1
)

func (w pword) far() bool    { return w&pFar != 0 }
func (w pword) marked() bool { return w&pMarked != 0 }

// local reports whether the object has an address here.
func (w pword) local() bool { return w&(pFar|pFree|pZero) == 0 && w != 0 }

// addr is the address of a local object's data.
func (w pword) addr() uintptr { return uintptr(w & pAddr) }

// coldness is the number of passes that a local object has not been used for.
func (w pword) coldness() int { return int(w & pCold >> pColdShift) }

// unmarked is the local word w without a mark.
func (w pword) unmarked() pword { return w &^ (pMarked | pPass) }

// localWord is the word of an object whose data lies at addr.
func localWord(addr uintptr, coldness int) pword {
	return pword(addr) | pword(coldness)<<pColdShift
}

func (w pword) free() bool { return w&(pFar|pFree) == pFree || w == 0 }
func (w pword) zero() bool { return w&(pFar|pZero) == pZero }

// farWord is the word of an object of a class whose far entry is n bytes at
// addr.
func farWord(addr uint64, n int, class uint16) pword {
	return pFar | pword(class)<<pFarClassShift | pword(sizeClass(n))<<addrBits | pword(addr)
}

func (w pword) farClass() uint16 { return uint16(w &^ pFar >> pFarClassShift) }

func (w pword) farAddr() uint64 { return uint64(w & addrMask) }
func (w pword) farSize() int    { return classSize(uint8(w >> addrBits)) }

func loadWord(p *uint64) pword { return pword(atomic.LoadUint64(p)) }
func casWord(p *uint64, old, w pword) bool {
	return atomic.CompareAndSwapUint64(p, uint64(old), uint64(w))
}
func storeWord(p *uint64, w pword) { atomic.StoreUint64(p, uint64(w)) }
