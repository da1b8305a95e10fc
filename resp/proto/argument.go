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
