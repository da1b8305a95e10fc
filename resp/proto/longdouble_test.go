package proto

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestLongDoublesAreWrittenAsRedisWritesThem(t *testing.T) {
	for _, c := range []struct{ a, b, sum string }{
		{"10.50", "0.1", "10.6"},
		{"5.0e3", "2.0e2", "5200"},
		{"3", "-3", "0"},
		{"0.1", "0.2", "0.3"},
		{"-0.5", "0.25", "-0.25"},
		{"1e18", "1", "1000000000000000001"},
	} {
		x, ok1 := ParseLongDouble([]byte(c.a))
		y, ok2 := ParseLongDouble([]byte(c.b))
		if !ok1 || !ok2 {
			t.Fatalf("cannot parse %q or %q", c.a, c.b)
		}
		sum, ok := AddLongDouble(x, y)
		if got := string(AppendLongDouble(nil, sum)); !ok || got != c.sum {
			t.Errorf("%s + %s = %s, want %s", c.a, c.b, got, c.sum)
		}
	}
	for _, s := range []string{"", "x", "1x", " 1", "nan", "1e5000", "1_0", "0b1", "+", "."} {
		if f, ok := ParseLongDouble([]byte(s)); ok {
			t.Errorf("ParseLongDouble(%.100q) = %v, want a refusal", s, f)
		}
	}
}

// longDoubleTime is more than any number may take, on a machine that is busy.
// Without bounds, one of a dozen characters takes minutes.
const longDoubleTime = 2 * time.Second

// integerDigits is how many decimal digits a number has before its point, without leading zeros.
func integerDigits(s string) int {
	s = strings.TrimLeft(strings.TrimLeft(s, "+-"), "0")
	if n := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' }); n >= 0 {
		return n
	}
	return len(s)
}

// FuzzLongDouble looks for numbers that take long, and for numbers that strconv
// understands differently.
func FuzzLongDouble(f *testing.F) {
	for _, s := range []string{
		"10.50", "-0.1e1", "1e-500000000", "1e500000000", "-0x1p-500000000", "0x.8P+500000000", "0e99999999999999999999",
		"1.1897314953572317650e4932", "1.82e-4951", "0x1p-16446", "0x1.0000000000000000000001p-16446", "+inf", "nan", "1p5", "1_0",
		"0x1p", "1e", ".", "0." + strings.Repeat("3", 5117), strings.Repeat("9", 4932), strings.Repeat("0", 5000) + "1e-4900",
		strings.Repeat("0", 900) + "12.5", "1." + strings.Repeat("7", 2000) + "e3", strings.Repeat("8", 800) + "e-790", "2" + strings.Repeat("0", 4917) + "e-4900",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		start := time.Now()
		x, ok := ParseLongDouble(b)
		if ok {
			if sum, finite := AddLongDouble(x, new(LongDouble).SetInt64(1)); finite {
				AppendLongDouble(nil, sum)
			}
		}
		if took := time.Since(start); took > longDoubleTime {
			t.Errorf("%.100q took %v", b, took)
		}
		if len(b) >= maxLongDouble {
			if ok {
				t.Errorf("ParseLongDouble accepts %d bytes", len(b))
			}
			return
		}
		if integerDigits(string(b)) > 800 {
			return // strconv forgets those beyond: 2 and 4,917 zeros e-4900 is 0 to it
		}
		want, err := strconv.ParseFloat(string(b), 64)
		if err != nil || math.IsNaN(want) || strings.ContainsRune(string(b), '_') {
			return
		}
		if !ok {
			if want == 0 {
				return // strconv takes what is too small for any number as 0
			}
			t.Fatalf("ParseLongDouble(%.100q) refuses, want %v", b, want)
		}
		// Rounded twice, a number may end up beside what it is rounded once.
		got, _ := x.Float64()
		if got != want && math.Nextafter(got, want) != want {
			t.Errorf("ParseLongDouble(%.100q) = %v, want %v", b, got, want)
		}
	})
}
