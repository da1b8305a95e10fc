// Package glob matches strings with patterns as Redis has them: *, ?, [a-z], [^a] and \. A pattern is compiled once.
// Matching takes time in proportion to the string, except for the patterns that [ErrTooLong] is about. The package
// imports nothing of the module.
//
// # Files
//
// glob (all of it).
package glob
