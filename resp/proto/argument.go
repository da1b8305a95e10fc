package proto

import "strings"

// Clip is at most n bytes of b, up to a NUL as C's formats have it.
func Clip(b []byte, n int) string {
	s := string(b[:min(n, len(b))])
	s, _, _ = strings.Cut(s, "\x00")
	return s
}

// Is compares an argument with a word in lower case, ignoring case.
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
