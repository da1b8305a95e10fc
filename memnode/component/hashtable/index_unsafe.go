package hashtable

import "unsafe"

// slots is an index in memory of the Env's, which begins at a page.
func slots(words []byte) []slot {
	return unsafe.Slice((*slot)(unsafe.Pointer(&words[0])), len(words)/8)
}
