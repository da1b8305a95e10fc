// Package objects is the objects of a heap that pointers refer to, local or far, without their types: package far has the
// pointers that programs use, and structures that are made of such objects.
//
// An object is known by its word (the paper's remoteable pointer), which lies in a table of the [Space] and never moves, and by
// the number of the word, which is what far objects and records in far memory hold. [Word] says what is in it: the address of the object if
// that is local and was used of late, and otherwise something with the top bit set, so that whoever looks at a word inlines one
// comparison with [Top], and calls [Space.Deref] for all the rest. The words that Space.Run makes lie side by side, and their
// objects are zero, and take no memory, until they are used.
//
// The objects of classes that are made so outlive the process: Freeze says in a checkpoint what words are, and Load makes the words of another process so.
//
// Words of objects that nobody uses go far, a page of 512 at a time; their addresses then read as one that is asleep.
//
// A [Class] is objects that are treated alike: it says how often they may go unused before they are evacuated, and counts what they have
// been through. Its number is in words and in far records; of a class that was retired, another one gets the number when nobody
// can meet it any more.
//
// # Concurrency
//
// All methods may be called by any number of goroutines, and take a scope that is open where they take one. Every change of a word is a
// CAS, so that the evacuator, who marks objects before it moves them, and mutators who meet at a word race for it: see package far, "How it
// works". The bytes of an object are its users'. Of the locks, each is below heap.OpenLog.Mu, and nobody waits with one of them held:
//
//	heap.OpenLog.Mu
//	sleeper.mu
//	  words.mu
//	    Space.mu
//
// # Files
//
// space: what there is, and auditing it. word: the bits of a word; words: the table of them; sleep: those of
// them that go far, and wake: how they come back. class, and retire: classes that have ended.
// deref: using, making and freeing an object; fetch: bringing one, or many, to local memory. owner: what the evacuator, the cleaner
// and those who fetch ask of an object. checkpoint: what of all that outlives the process.
package objects
