// Package ordered keeps keys in order in far memory: a [Map] finds a key, the first key from
// a key on, the i-th key, and how many keys are less than one, and walks keys in order in
// both directions. It is far's ordered map.
//
// # Structure
//
// A Map is a counted B+-tree. Its pages, 2 KiB each, are far objects, inner pages no less
// than leaves: what nobody uses takes no local memory but the 8 bytes of a page's word,
// which is less than a byte for every key. A page that is used stays local like any other
// object, so that of a map that is in use the upper pages are local and a key that is not
// takes one read of the store. A balanced binary tree or a skip list would take a read, and
// a word, for every key on the way.
//
// The tree itself knows only byte strings. A number as a key becomes the byte string of the
// same order, so that keys are compared where they lie. An inner page keeps of every child
// how many keys are below it, which is what ranks are found by.
//
// It is made of nothing but what package far exports: a [far.Class] of pages, [far.Ref] from
// page to page, and [far.Heap.One].
//
// # Concurrency
//
// All methods of a Map but Free may be called by any number of goroutines, and each call is
// atomic. Calls that only read go on beside each other; one that changes something has the
// map for itself. A call waits for the store without the map's lock, and looks again
// when the page that it needs is local. Only when that page has gone far again three times,
// or the heap is full, does it fetch it with the lock held.
//
// An iteration is atomic by the leaf. It yields what is there all the time
// exactly once and in order; of what is set or deleted meanwhile it may yield one or the
// other. Changing the map during a step is allowed.
//
// # Errors
//
// What fails has changed nothing. With [far.NoWait] a call that would have to wait fails
// with far.ErrWouldBlock. A key or value that is too large gives far.ErrTooLarge; Set without
// memory for another page far.ErrFull. Delete makes no page, and Set takes nothing of what the
// heap keeps for reading, so that a full heap can be read and deleted from as far as package
// far can read what is far then; where it cannot, these calls give far.ErrFull, too.
//
// When the store loses a page (its node died), every call that needs the page gives a
// [far.LostError], and an iteration that comes to it ends with that. What lies in
// other pages is still found, unless what leads to them is lost, as the root is when all is; Len, Rank and At still count what was lost. Set does not
// replace a lost page, since that would make its other keys absent, which they are not.
// Clear makes the map usable again, and, as Free, needs to read nothing.
//
// # Files
//
// map (what programs use), key (keys as bytes in order), tree (the tree: searching, waiting,
// setting, deleting), page (the bytes of a page), walk (iterations).
package ordered
