package glob

import (
	"bytes"
	"errors"
)

// A Pattern is a pattern of *, ?, [a-z], [^a] and \ as Redis has it, cut at its stars into runs. Every place in a run
// stands for one byte. The first run must be at the beginning of a string, and the last one at its end. Each of the
// other runs is looked for behind the run before, so no string is gone through twice.
type Pattern []run

// run is what stands between two stars.
type run struct {
	width   int    // how many bytes of a string it stands for
	literal []byte // these bytes, if it has neither ? nor [; otherwise nil
	pattern []byte // otherwise the run as it was written
}

// maxWildRun is how many bytes of a pattern a run between two stars may have if it contains ? or [. Other runs are
// found in linear time.
const maxWildRun = 1024

// ErrTooLong is what Compile returns for a pattern that would take long to match.
var ErrTooLong = errors.New("the pattern has more than 1024 characters with ? or [ between two *")

// Compile makes a Pattern, which refers to pattern. Its only error is ErrTooLong.
func Compile(pattern []byte) (Pattern, error) {
	var g Pattern
	for {
		run, rest, star := cutRun(pattern)
		if star && len(g) > 0 && run.literal == nil && len(run.pattern) > maxWildRun {
			return nil, ErrTooLong
		}
		g = append(g, run)
		if !star {
			return g, nil
		}
		pattern = rest
	}
}

// cutRun cuts a pattern at its first star.
func cutRun(pattern []byte) (run run, rest []byte, star bool) {
	wild := false
	run.literal = []byte{}
	p := 0
	for p < len(pattern) && pattern[p] != '*' {
		wild = wild || pattern[p] == '?' || pattern[p] == '['
		next, _ := matchOne(pattern, p, 0)
		run.literal = append(run.literal, pattern[next-1])
		run.width++
		p = next
	}
	if wild {
		run.literal, run.pattern = nil, pattern[:p]
	}
	if p == len(pattern) {
		return run, nil, false
	}
	return run, pattern[p+1:], true
}

// Match reports whether the pattern matches all of s.
func (g Pattern) Match(s []byte) bool {
	first, last := &g[0], &g[len(g)-1]
	if len(g) == 1 {
		return len(s) == first.width && first.at(s)
	}
	if len(s) < first.width+last.width || !first.at(s) || !last.at(s[len(s)-last.width:]) {
		return false
	}
	s = s[first.width : len(s)-last.width]
	for i := range g[1 : len(g)-1] {
		run := &g[i+1]
		at := run.find(s)
		if at < 0 {
			return false
		}
		s = s[at+run.width:]
	}
	return true
}

// at reports whether s begins with the run. s must be long enough.
func (r *run) at(s []byte) bool {
	if r.literal != nil {
		return bytes.HasPrefix(s, r.literal)
	}
	p := 0
	for _, c := range s[:r.width] {
		next, ok := matchOne(r.pattern, p, c)
		if !ok {
			return false
		}
		p = next
	}
	return true
}

// find returns where in s the run occurs first, or -1.
func (r *run) find(s []byte) int {
	if r.literal != nil {
		return bytes.Index(s, r.literal)
	}
	for i := 0; i+r.width <= len(s); i++ {
		if r.at(s[i:]) {
			return i
		}
	}
	return -1
}

// matchOne matches one byte at pattern[p] and returns where the pattern goes on.
func matchOne(pattern []byte, p int, c byte) (next int, ok bool) {
	if p >= len(pattern) {
		return p, false
	}
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '[':
		return matchClass(pattern, p+1, c)
	case '\\':
		if p+1 < len(pattern) {
			p++
		}
	}
	return p + 1, pattern[p] == c
}

func matchClass(pattern []byte, p int, c byte) (next int, ok bool) {
	not := p < len(pattern) && pattern[p] == '^'
	if not {
		p++
	}
	hit := false
	for {
		switch {
		case p < len(pattern) && pattern[p] == '\\' && p+1 < len(pattern):
			p++
			hit = hit || pattern[p] == c
		case p < len(pattern) && pattern[p] == ']':
			return p + 1, hit != not
		case p >= len(pattern):
			return p, hit != not // an open class ends with the pattern
		case p+2 < len(pattern) && pattern[p+1] == '-':
			lo, hi := pattern[p], pattern[p+2]
			if lo > hi {
				lo, hi = hi, lo
			}
			p += 2
			hit = hit || lo <= c && c <= hi
		default:
			hit = hit || pattern[p] == c
		}
		p++
	}
}
