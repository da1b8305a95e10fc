package glob

import (
	"strings"
	"testing"
)

func TestGlobPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "", true}, {"*", "abc", true}, {"", "", true}, {"", "a", false},
		{"a?c", "abc", true}, {"a?c", "ac", false}, {"a*c", "abbbc", true}, {"a*c", "abbb", false},
		{"[abc]", "b", true}, {"[^abc]", "b", false}, {"[a-c]x", "bx", true}, {"[c-a]x", "bx", true},
		{"[a-c", "b", true}, {`\*`, "*", true}, {`\*`, "a", false}, {`[\]]`, "]", true}, {"a*b*c", "aXbXbXc", true},
		{strings.Repeat("a*", 30) + "b", strings.Repeat("a", 1000), false},
	} {
		g, err := Compile([]byte(c.pattern))
		if err != nil {
			t.Fatal(err)
		}
		if got := g.Match([]byte(c.s)); got != c.want {
			t.Errorf("%q matches %.20q: %v, want %v", c.pattern, c.s, got, c.want)
		}
	}
}

// TestPatternsThatWouldTakeLongAreRefused has the only kind of pattern that is
// compared with a long string again and again.
func TestPatternsThatWouldTakeLongAreRefused(t *testing.T) {
	for pattern, want := range map[string]error{
		"*" + strings.Repeat("?", 1024) + "*":                         nil,
		"*" + strings.Repeat("?", 1025) + "*":                         ErrTooLong,
		"*" + strings.Repeat("[ab]", 300) + "*":                       ErrTooLong,
		"*" + strings.Repeat("a", 1<<20) + "*":                        nil,
		strings.Repeat("?", 1<<20) + "*" + strings.Repeat("?", 1<<20): nil,
	} {
		if _, err := Compile([]byte(pattern)); err != want {
			t.Errorf("%.20q of %d: got the error %v, want %v", pattern, len(pattern), err, want)
		}
	}
}

// slowMatch is what a pattern means, tried in every way there is.
func slowMatch(pattern, s []byte) bool {
	if len(pattern) == 0 {
		return len(s) == 0
	}
	if pattern[0] == '*' {
		return slowMatch(pattern[1:], s) || len(s) > 0 && slowMatch(pattern, s[1:])
	}
	if len(s) == 0 {
		return false
	}
	next, ok := matchOne(pattern, 0, s[0])
	return ok && slowMatch(pattern[next:], s[1:])
}

// FuzzGlob compares with all ways to understand a pattern.
func FuzzGlob(f *testing.F) {
	for _, s := range []string{"a*b*c aXbXbXc", "*[a-c]?* xxbxx", `\**\* *x*`, "**a** a", "[^] x", "*ab*ab ababab", "[a* a*", `a\ a\`} {
		pattern, text, _ := strings.Cut(s, " ")
		f.Add([]byte(pattern), []byte(text))
	}
	f.Fuzz(func(t *testing.T, pattern, s []byte) {
		if len(pattern) > 12 || len(s) > 24 {
			return // slowMatch takes too long
		}
		g, err := Compile(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := g.Match(s), slowMatch(pattern, s); got != want {
			t.Errorf("%q matches %q: %v, want %v", pattern, s, got, want)
		}
	})
}
