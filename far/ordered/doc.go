// Package ordered keeps keys in order in far memory: a [Map] finds a key, the first key from
// a key on, the i-th key, and how many keys are less than one, and walks keys in order in
// both directions. It is far's ordered map.
//
// # Structure
//
// A Map is a counted B+-tree. Its pages, 2 KiB each, are far objects, inner pages no less than leaves. A page that
// nobody uses takes no local memory but the 8 bytes of its word, which is less than a byte for every key. A page that
// is used stays local like any other object. So the upper pages of a map that is in use are local, and a key whose
// leaf is far takes one read of the store. A balanced binary tree or a skip list would take a read, and a word, for
// every key on the way.
//
// The tree itself knows only byte strings. A numeric key becomes a byte string that sorts as the number does, so that
// keys are compared where they lie. An inner page keeps for every child how many keys are below it, from which ranks
// are found.
//
// It is made of nothing but what package far exports: a [far.Class] of pages, a [far.Ref] from page to page, and
// [far.Heap.One]. A Map is no part of the checkpoints of a heap that was made by [far.Open]: it ends with the process.
//
// # Concurrency
//
// All methods of a Map but Free may be called by any number of goroutines, and each call is
// atomic. Calls that only read go on beside each other; one that changes something has the
// map for itself. A call waits for the store without the map's lock, and looks again
// when the page that it needs is local. Only when that page has gone far again three times,
// or the heap is full, does it fetch it with the lock held.
//
// An iteration is atomic leaf by leaf. It yields a key that is there all the time exactly once and in order; a key
// that is set or deleted meanwhile it may yield as it was before or after that. Changing the map during a step is
// allowed.
//
// # Errors
//
// A call that fails has changed nothing. With [far.NoWait] a call that would have to wait fails with
// far.ErrWouldBlock. A key or value that is too large gives far.ErrTooLarge; Set without memory for another page
// gives far.ErrFull. Delete makes no page, and Set takes nothing of the memory that the heap keeps for reading: so a
// full heap can still be read and deleted from, as long as package far has memory to read a far page into; if it has
// none, these calls give far.ErrFull, too.
//
// When the store loses a page (its node died), every call that needs the page gives a [far.LostError], and an
// iteration that comes to it ends with that. Keys in other pages are still found, unless a page on the way to them is
// lost, as the root is when everything is. Len, Rank and At still count the keys that were lost. Set does not replace
// a lost page, since that would make its other keys absent, which they are not. Clear makes the map usable again,
// and, as Free, needs to read nothing.
//
// # Files
//
// map (what programs use), key (keys as bytes in order), tree (the tree: searching, waiting,
// setting, deleting), page (the bytes of a page), walk (iterations).
package ordered
