package resp

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"polder/internal/invariants"
)

// floats are numbers at the edges of what strtold takes: exponents beyond
// every range, the largest and smallest numbers of 80 bits and their
// neighbours, ties, and what looks like a number and is none.
var floats = []string{
	"1e-500000000", "1e500000000", "-1e-500000000", "1e99999999999999999999", "1e-99999999999999999999",
	"0x1p-500000000", "0x1p500000000", "-0x1p-500000000", "0x1p99999999999999999999", "0x1p-99999999999999999999",
	"0e500000000", "0e-500000000", "-0e99999999999999999999", "0x0p500000000", "0x0p-99999999999999999999",
	"1e4931", "1e4932", "1.1897314953572317650e4932", "1.1897314953572317651e4932", "1.19e4932", "1e4933", "-1e4933",
	"1e-4931", "1e-4932", "3.6e-4951", "3.7e-4951", "1.9e-4951", "1.82e-4951", "1.8e-4951", "1e-4951", "1e-4952",
	"0x1p16383", "0x1p16384", "0x1.fffffffffffffffep16383", "0x1.ffffffffffffffffp16383", "0x.1p16387", "0x.1p16388",
	"0x1p-16382", "0x1p-16445", "0x1p-16446", "0x1.0000000000000000000001p-16446", "0x1.8p-16446", "0x1p-16447", "0x.8p-16445",
	"0x1", "0X1P3", "0x1p", "0x1p+", "0x", "0x.", "0x.p1", "0x.8", "0x8.", "0xg", "0x1.8", "-0xAp-1", "+0xap1", "0x1e5",
	"1p5", "1P5", "1e5", "1E+5", "1e", "1e+", "1e-", "1e5.", "e5", ".e5", "1.e1", ".5e1", "5.", ".", "-.", "+.5", "--1", "+-1",
	"inf", "-inf", "+INF", "infinity", "-Infinity", "infinit", "infx", "in", "nan", "NaN(1)", "-nan", "i",
	"1_0", "0b1", "0o7", "007", "00x1", "1,5", "1e1e1", "1.2.3", "1 ", " 1", "1\x00", "\x00", "1\n", "",
	"18446744073709551615.5", "18446744073709551616.5", "36893488147419103233", "36893488147419103235",
	"0.000000000000000005", "0.0000000000000000049", "0.0000000000000000051", "-0.0000000000000000049", "-0", "-0.0",
	"0." + strings.Repeat("0", 4950) + "19", "0." + strings.Repeat("0", 4950) + "17", "0." + strings.Repeat("0", 4940) + "1",
	strings.Repeat("9", 4932), strings.Repeat("9", 4933), "1" + strings.Repeat("0", 4932), "1" + strings.Repeat("0", 4933),
	"1" + strings.Repeat("0", 5000) + "e-5000", "0." + strings.Repeat("0", 5000) + "1e5001",
	strings.Repeat("0", 5119), strings.Repeat("0", 5120), strings.Repeat("0", 5118) + "7", "0." + strings.Repeat("3", 5117), "0." + strings.Repeat("3", 5118),
}

// TestNumbersOfAnySizeGetRedissReplies gives numbers that are enormous, tiny,
// long or no numbers at all to every command that takes a fraction, as argument
// and as what is stored. Some of them once held up the server for minutes.
func TestNumbersOfAnySizeGetRedissReplies(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	_, addr := startServer(t, roomy, Config{Loops: 1, MaxBulk: 1 << 20})
	ours, theirs := dial(t, addr), dial(t, startRedis(t))
	r := rand.New(rand.NewPCG(*diffSeed, 11))
	list := floats
	for range 150 {
		list = append(list, randomFloat(r))
	}
	for _, n := range list {
		other := list[r.IntN(len(list))]
		for _, cmd := range [][]string{
			{"DEL", "k", "h"},
			{"INCRBYFLOAT", "k", n},
			{"HINCRBYFLOAT", "h", "f", n},
			{"INCRBYFLOAT", "k", other},
			{"HINCRBYFLOAT", "h", "f", other},
			{"SET", "k", n},
			{"HSET", "h", "f", n},
			{"INCRBYFLOAT", "k", other},
			{"HINCRBYFLOAT", "h", "f", other},
			{"GET", "k"},
			{"INCR", "k"},
			{"INCRBY", "k", n},
			{"HINCRBY", "h", "f", n},
			{"EXPIRE", "k", n},
			{"GETRANGE", "k", n, n},
		} {
			a, b := normal(cmd, ours.do(cmd...)), normal(cmd, theirs.do(cmd...))
			if a != b {
				t.Errorf("%.200q after %.200q and %.200q\n ours   %.300s\n theirs %.300s", cmd, n, other, a, b)
			}
		}
	}
}

// randomFloat is a random number of up to 40 digits with any exponent, in
// decimal or hexadecimal.
func randomFloat(r *rand.Rand) string {
	digits, mark, base, reach := "0123456789", "e", "", 4960
	if r.IntN(3) == 0 {
		digits, mark, base, reach = "0123456789abcdefABCDEF", "p", "0x", 16500
	}
	var b strings.Builder
	if r.IntN(2) == 0 {
		b.WriteByte('-')
	}
	b.WriteString(base)
	n := 1 + r.IntN(40)
	point := r.IntN(2 * n)
	for i := range n {
		if i == point {
			b.WriteByte('.')
		}
		b.WriteByte(digits[r.IntN(len(digits))])
	}
	switch r.IntN(4) {
	case 0:
		b.WriteString(mark + strconv.Itoa(r.IntN(60)-30))
	case 1:
		b.WriteString(mark + strconv.Itoa(r.IntN(2*reach)-reach))
	case 2:
		b.WriteString(mark + strconv.FormatInt(int64(r.Uint64())>>r.IntN(60), 10))
	}
	return b.String()
}
