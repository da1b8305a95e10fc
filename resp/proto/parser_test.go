package proto

import (
	"bytes"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var testLimits = Limits{MaxBulk: 100, MaxArgs: 20, MaxInline: 64}

// parse feeds input in pieces of n bytes and returns all commands, and the
// error that ended them.
func parse(input []byte, n int, unauth bool) (cmds [][]string, err error) {
	p := Parser{Limits: testLimits, Unauth: unauth}
	var buf []byte
	for {
		args, used, err := p.Next(slices.Clone(buf)) // at another address each time
		if err != nil {
			return cmds, err
		}
		if used > 0 {
			buf = buf[used:]
			if args != nil {
				var cmd []string
				for _, a := range args {
					cmd = append(cmd, string(a))
				}
				cmds = append(cmds, cmd)
			}
			continue
		}
		if len(input) == 0 {
			return cmds, nil
		}
		k := min(n, len(input))
		buf = append(buf, input[:k]...)
		input = input[k:]
	}
}

func TestParserFindsCommands(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     [][]string
		err      string
	}{
		{"array", "*2\r\n$3\r\nGET\r\n$1\r\na\r\n", [][]string{{"GET", "a"}}, ""},
		{"two", "*1\r\n$4\r\nPING\r\n*1\r\n$0\r\n\r\n", [][]string{{"PING"}, {""}}, ""},
		{"binary", "*1\r\n$4\r\n\r\n\x00*\r\n", [][]string{{"\r\n\x00*"}}, ""},
		{"empty arrays", "*0\r\n*-1\r\nPING\r\n", [][]string{{"PING"}}, ""},
		{"inline", "SET a  b\r\nGET a\n", [][]string{{"SET", "a", "b"}, {"GET", "a"}}, ""},
		{"blank lines", "\r\n \r\n\nPING\r\n", [][]string{{"PING"}}, ""},
		{"quotes", `set "a b\n\x41\"" 'c\'d\n'` + "\r\n", [][]string{{"set", "a b\nA\"", `c'd\n`}}, ""},
		{"empty quotes", `echo ""` + "\r\n", [][]string{{"echo", ""}}, ""},
		{"other space", "\vset \f a\vb\fc\td\re\n", [][]string{{"set", "a\vb\fc", "d", "e"}}, ""},
		{"open quote", `set "a` + "\r\n", nil, "Protocol error: unbalanced quotes in request"},
		{"quote in a word", `set "a"b` + "\r\n", nil, "Protocol error: unbalanced quotes in request"},
		{"no dollar", "*1\r\n+3\r\n", nil, "Protocol error: expected '$', got '+'"},
		{"no number", "*1\r\n$x\r\n", nil, "Protocol error: invalid bulk length"},
		{"negative bulk", "*1\r\n$-1\r\n", nil, "Protocol error: invalid bulk length"},
		{"leading zero", "*1\r\n$03\r\n", nil, "Protocol error: invalid bulk length"},
		{"huge bulk", "*1\r\n$101\r\n", nil, "Protocol error: invalid bulk length"},
		{"huger bulk", "*1\r\n$99999999999999999999\r\n", nil, "Protocol error: invalid bulk length"},
		{"too many", "*21\r\n", nil, "Protocol error: invalid multibulk length"},
		{"bad count", "*a\r\n", nil, "Protocol error: invalid multibulk length"},
		{"long line", strings.Repeat("x", 65), nil, "Protocol error: too big inline request"},
		{"long line with an end", strings.Repeat("x", 65) + "\r\n", nil, "Protocol error: too big inline request"},
		{"long count", "*" + strings.Repeat("1", 65), nil, "Protocol error: too big mbulk count string"},
		{"long length", "*1\r\n$" + strings.Repeat("1", 65), nil, "Protocol error: too big bulk count string"},
		{"incomplete", "*2\r\n$3\r\nGET\r\n$1\r\na", nil, ""},
	} {
		for _, n := range []int{1, 2, 7, 1000} {
			got, err := parse([]byte(c.in), n, false)
			if text := errString(err); text != c.err || !slices.EqualFunc(got, c.want, slices.Equal) {
				t.Errorf("%s in pieces of %d: got %q and error %q, want %q and %q", c.name, n, got, text, c.want, c.err)
			}
		}
	}
}

func errString(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestArgumentsThatHaveComeCostNothing: a client that sends arguments without end
// makes the parser hold nothing, and be counted for what it will hold.
func TestArgumentsThatHaveComeCostNothing(t *testing.T) {
	const n = 20_000
	p := Parser{Limits: Limits{MaxBulk: 100, MaxArgs: n, MaxInline: 64}}
	in := []byte("*" + strconv.Itoa(n) + "\r\n")
	for i := range n {
		if args, used, err := p.Next(in); args != nil || used != 0 || err != nil {
			t.Fatalf("with %d arguments: got %d, %d bytes, %v", i, len(args), used, err)
		}
		if got, least := p.Held(), i*argSize; got < least {
			t.Fatalf("with %d arguments: %d bytes are counted, want %d", i, got, least)
		}
		if got := cap(p.args); got > few {
			t.Fatalf("with %d arguments: room for %d is held, want %d at most", i, got, few)
		}
		in = append(in, "$"+strconv.Itoa(len(strconv.Itoa(i)))+"\r\n"+strconv.Itoa(i)+"\r\n"...)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	args, used, err := p.Next(in)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > n*uint64(argSize)/2 {
		t.Errorf("%d bytes of the heap were used, want none to speak of", got)
	}
	if len(args) != n || used != len(in) || err != nil {
		t.Fatalf("got %d arguments, %d bytes of %d, %v", len(args), used, len(in), err)
	}
	moved := slices.Clone(in)
	p.Moved(moved)
	clear(in)
	for i, a := range args {
		if string(a) != strconv.Itoa(i) {
			t.Fatalf("argument %d is %q", i, a)
		}
	}
	if p.Release(); p.Held() != 0 {
		t.Errorf("%d bytes are held after the command", p.Held())
	}
	freed := false // something else may be mapped there at once, but not every time
	for range 20 {
		if _, used, err := p.Next(moved); used != len(moved) || err != nil {
			t.Fatalf("again: %d bytes of %d, %v", used, len(moved), err)
		}
		mem := p.mem[:cap(p.mem)]
		p.Forget()
		freed = freed || unix.Msync(mem, unix.MS_ASYNC) == unix.ENOMEM
	}
	if !freed {
		t.Error("the memory of a command's arguments is still mapped after it")
	}
}

func TestParserIsStricterBeforeLogin(t *testing.T) {
	_, err := parse([]byte("*11\r\n"), 100, true)
	if want := "Protocol error: unauthenticated multibulk length"; errString(err) != want {
		t.Errorf("got %q, want %q", errString(err), want)
	}
	p := Parser{Limits: Limits{MaxBulk: 1 << 20, MaxArgs: 20, MaxInline: 64}, Unauth: true}
	_, _, err = p.Next([]byte("*1\r\n$16385\r\n"))
	if want := "Protocol error: unauthenticated bulk length"; errString(err) != want {
		t.Errorf("got %q, want %q", errString(err), want)
	}
}

// FuzzParser looks for input that is understood differently when it comes in
// pieces, and for arguments that are not where they should be.
func FuzzParser(f *testing.F) {
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n"), 3)
	f.Add([]byte("set \"a\\x41\" 'b'\r\n*-1\r\n*1\r\n$0\r\n\r\n"), 1)
	f.Add([]byte("*1\r\n$99999999999\r\n"), 5)
	f.Fuzz(func(t *testing.T, in []byte, n int) {
		if n < 1 {
			n = 1
		}
		whole, err1 := parse(in, len(in)+1, false)
		pieces, err2 := parse(in, n, false)
		// A line without an end is an error as soon as it is too long.
		if err1 == nil && err2 == nil && !slices.EqualFunc(whole, pieces, slices.Equal) {
			t.Errorf("whole %q, in pieces of %d %q", whole, n, pieces)
		}
		for i := range min(len(whole), len(pieces)) {
			if !slices.Equal(whole[i], pieces[i]) {
				t.Errorf("command %d: whole %q, in pieces of %d %q", i, whole[i], n, pieces[i])
			}
		}
	})
}

func TestParserDoesNotAllocate(t *testing.T) {
	p := Parser{Limits: testLimits}
	in := []byte("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\n")
	p.Next(in)
	if n := testing.AllocsPerRun(100, func() { p.Next(in) }); n != 0 {
		t.Errorf("%v allocations per command, want 0", n)
	}
}

func TestParseIntIsAsStrictAsRedis(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "1": 1, "-1": -1, "9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64,
	} {
		if got, ok := ParseInt([]byte(s)); !ok || got != want {
			t.Errorf("ParseInt(%q) = %d, %v, want %d", s, got, ok, want)
		}
	}
	for _, s := range []string{"", "-", "-0", "00", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808", "-9223372036854775809",
		"18446744073709551616", "99999999999999999999", "123456789012345678901"} {
		if got, ok := ParseInt([]byte(s)); ok {
			t.Errorf("ParseInt(%q) = %d, want a refusal", s, got)
		}
	}
}

func FuzzParseInt(f *testing.F) {
	f.Add([]byte("-12"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := ParseInt(b)
		want, err := strconv.ParseInt(string(b), 10, 64)
		canonical := err == nil && strconv.FormatInt(want, 10) == string(b)
		if ok != canonical || ok && got != want {
			t.Errorf("ParseInt(%q) = %d, %v, want %d, %v", b, got, ok, want, canonical)
		}
	})
}

func TestReplies(t *testing.T) {
	for want, got := range map[string][]byte{
		":-5\r\n":               AppendInt(nil, -5),
		"$2\r\nhi\r\n":          AppendBulk(nil, "hi"),
		"=6\r\ntxt:hi\r\n":      AppendVerbatim(nil, 3, "hi"),
		"-ERR a  b\r\n":         AppendError(nil, "ERR a\r\nb"),
		"%2\r\n":                AppendMap(nil, 3, 2),
		"*4\r\n":                AppendMap(nil, 2, 2),
		"~1\r\n":                AppendSet(nil, 3, 1),
		"_\r\n":                 AppendNull(nil, 3),
		"$-1\r\n":               AppendNull(nil, 2),
		"*-1\r\n":               AppendNullArray(nil, 2),
		"$1000000000000\r\nabc": append(func() []byte { b := make([]byte, BulkHeaderLen(1e12)); PutBulkHeader(b, 1e12); return b }(), "abc"...),
	} {
		if !bytes.Equal(got, []byte(want)) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
