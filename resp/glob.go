package resp

// match reports whether s matches a pattern of *, ?, [a-z], [^a] and \ as
// Redis has it. It keeps one place to go back to, so that no pattern takes
// more than len(pattern)*len(s) steps.
func match(pattern, s []byte) bool {
	p, i := 0, 0
	starP, starI := -1, 0
	for i < len(s) {
		if p < len(pattern) && pattern[p] == '*' {
			starP, starI = p, i
			p++
			continue
		}
		if next, ok := matchOne(pattern, p, s[i]); ok {
			p = next
			i++
			continue
		}
		if starP < 0 {
			return false
		}
		starI++
		p, i = starP+1, starI
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
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
