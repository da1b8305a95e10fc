package proto

import "strings"

// Clip returns at most n bytes of b. Like C's formats, it ends before a NUL.
func Clip(b []byte, n int) string {
	s := string(b[:min(n, len(b))])
	s, _, _ = strings.Cut(s, "\x00")
	return s
}

// Is reports whether an argument is a word, which must be in lower case. The case of the argument does not matter.
func Is(arg []byte, word string) bool {
	if len(arg) != len(word) {
		return false
	}
	for i, c := range arg {
		if c-'A' < 26 {
			c |= 0x20
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// OfHTTP reports whether a name of no command is what a request of HTTP begins with, or has in its head. A web page can
// have its visitor's browser send such a request to a server that only the visitor's machine reaches, and what follows
// in it must not be run. Redis looks for the same words.
func OfHTTP(name []byte) bool { return Is(name, "post") || Is(name, "host:") }
