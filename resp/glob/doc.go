// Package glob matches strings with patterns as Redis has them: *, ?, [a-z], [^a] and \. A pattern is compiled once; matching takes time
// in proportion to the string, but for what [ErrTooLong] is about. It imports nothing of the module.
//
// # Files
//
// glob (all of it).
package glob
