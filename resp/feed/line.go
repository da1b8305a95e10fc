package feed

import "strings"

// Line adds a line of MONITOR about a command that some client has run.
func (f *Feed) Line(head string, args [][]byte) {
	size := len(head) + 2
	for _, a := range args {
		size += quotedLen(a) + 1
	}
	f.add(size, func(b []byte) []byte {
		b = append(b, head...)
		for _, a := range args {
			b = appendQuoted(append(b, ' '), a)
		}
		return append(b, '\r', '\n')
	})
}

// appendQuoted appends b in quotes, as Redis's sdscatrepr does.
func appendQuoted(dst, b []byte) []byte {
	dst = append(dst, '"')
	for _, c := range b {
		if i := strings.IndexByte(escaped, c); i >= 0 {
			dst = append(dst, '\\', escapes[i])
		} else if c >= ' ' && c <= '~' {
			dst = append(dst, c)
		} else {
			dst = append(dst, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(dst, '"')
}

// The bytes that are shown as a letter after a backslash, and the letters.
const (
	escaped   = "\\\"\n\r\t\a\b"
	escapes   = "\\\"nrtab"
	hexDigits = "0123456789abcdef"
)

// quotedLen is how many bytes appendQuoted appends.
func quotedLen(b []byte) int {
	n := len(b) + 2
	for _, c := range b {
		if strings.IndexByte(escaped, c) >= 0 {
			n++
		} else if c < ' ' || c > '~' {
			n += 3
		}
	}
	return n
}
