// Package objects keeps the objects of a heap that pointers refer to, local or far, without their types. Package far
// has the pointers that programs use, and structures that are made of such objects.
//
// An object is known by its word (the paper's remoteable pointer) and by the number of that word. The word lies in a
// table of the [Space] and never moves; the number is what objects and far records hold. [Word] says what is in a
// word: the object's address if the object is local and was used of late, otherwise something with the top bit set.
// So whoever looks at a word inlines one comparison with [Top], and calls [Space.Deref] for all the rest. The words
// that [Space.Run] makes are adjacent; their objects are zero, and take no memory until they are used.
//
// Objects of a class with [Config].Outlives outlive the process: [Space.Freeze] writes into a checkpoint what their
// words are, and [Space.Load] gives these words to the next process.
//
// Words of objects that nobody uses go far themselves, a page of 512 words at a time. Such a word then reads as
// asleep.
//
// A [Class] is objects that are treated alike. It says how often its objects may go unused before they are evacuated,
// and counts what they have been through. Words and far records hold its number. When a class has been retired,
// another class gets the number, but only once nobody can come across it in the old meaning.
//
// # Concurrency
//
// All methods may be called by any number of goroutines. A scope that is passed to a method must be open. Every
// change of a word is a CAS, so the evacuator, which marks objects before it moves them, and mutators race for a word
// that both want to change: see package far, "How it works". The bytes of an object are its users'. Every lock is
// below heap.OpenLog.Mu, and nobody waits while holding one of them:
//
//	heap.OpenLog.Mu
//	sleeper.mu
//	  words.mu
//	    Space.mu
//
// # Files
//
// space: all there is, and auditing it. word: the bits of a word; words: the table of words; sleep: how words go far;
// wake: how they come back. class: classes; retire: classes that have ended. deref: using, making and freeing an
// object; fetch: bringing one object, or many, to local memory. owner: what the evacuator, the cleaner and those who
// fetch ask about an object. checkpoint: what of all that outlives the process.
package objects
