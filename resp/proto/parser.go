package proto

import (
	"bytes"
	"fmt"

	"polder/resp/clientmem"
)

// Limits bound what a Parser accepts.
type Limits struct {
	MaxBulk   int // longest argument, in bytes
	MaxArgs   int // most arguments of a command
	MaxInline int // longest line: an inline command, or a length
}

// unauthenticated clients may send no more than this, as in Redis.
const (
	unauthArgs = 10
	unauthBulk = 16384
)

// Error is a violation of the protocol. The connection cannot go on.
type Error string

func (e Error) Error() string { return "Protocol error: " + string(e) }

// few is how many arguments a Parser keeps memory for between commands.
const few = 64

// Parser finds commands in a buffer. It keeps its place between calls. So it looks at a command that arrives in many
// pieces only once, and a second time to find the arguments when all of it is there. Until then the command costs no
// memory but the buffer, however many arguments it has.
//
// The zero value with Limits set is ready for use.
type Parser struct {
	Limits Limits
	// Unauth tightens the limits, for clients that have yet to log in.
	Unauth bool

	pos   int // first byte not looked at
	count int // arguments of the command
	left  int // arguments of the command that are still to come; 0 between commands
	bulk  int // length of the argument at pos, if known
	known bool
	args  [][]byte
	mem   []byte // mapped memory that args is in, if there are many
	quote []byte // unquoted inline arguments
}

// Next finds the first command in buf. It returns the arguments, which alias buf until the next call, and the number
// of bytes that the command takes. If buf holds no whole command it returns 0 bytes; the next call must then be given
// the same bytes again with more behind them, at any address. Of a command without arguments, which the protocol
// allows, Next returns nil and the number of its bytes.
func (p *Parser) Next(buf []byte) (args [][]byte, n int, err error) {
	once := false // whether the arguments are found while the command is looked at for the first time
	if p.left == 0 {
		if len(buf) == 0 {
			return nil, 0, nil
		}
		if p.mem != nil {
			p.drop()
		}
		if buf[0] != '*' {
			return p.inline(buf)
		}
		count, next, err := p.length(buf, 0, "mbulk")
		if err != nil || next == 0 {
			return nil, 0, err
		}
		if count > int64(p.Limits.MaxArgs) || count == badLength {
			return nil, 0, Error("invalid multibulk length")
		}
		if count > unauthArgs && p.Unauth {
			return nil, 0, Error("unauthenticated multibulk length")
		}
		if count <= 0 {
			return nil, next, nil
		}
		p.count, p.left, p.pos, p.known = int(count), int(count), next, false
		p.args, once = p.args[:0], true
	}
	once = once && p.count <= few // the fast path
	for p.left > 0 {
		if !p.known {
			if p.pos >= len(buf) {
				return nil, 0, nil
			}
			size, next, err := p.length(buf, p.pos, "bulk")
			if err != nil || next == 0 {
				return nil, 0, err
			}
			if size < 0 || size > int64(p.Limits.MaxBulk) {
				return nil, 0, Error("invalid bulk length")
			}
			if size > unauthBulk && p.Unauth {
				return nil, 0, Error("unauthenticated bulk length")
			}
			p.bulk, p.pos, p.known = int(size), next, true
		}
		if len(buf)-p.pos < p.bulk+2 {
			return nil, 0, nil
		}
		if once {
			p.args = append(p.args, buf[p.pos:p.pos+p.bulk:p.pos+p.bulk])
		}
		p.pos += p.bulk + 2
		p.known = false
		p.left--
	}
	if !once {
		p.collect(buf)
	}
	return p.args, p.pos, nil
}

// collect finds the arguments of the command at the beginning of buf. All of the command is there.
func (p *Parser) collect(buf []byte) {
	p.args = p.args[:0]
	switch {
	case cap(p.args) >= p.count:
	case p.count < many:
		p.args = make([][]byte, 0, p.count)
	default:
		p.args, p.mem = mapArgs(p.count)
	}
	_, pos, _ := p.length(buf, 0, "mbulk")
	for range p.count {
		size, at, _ := p.length(buf, pos, "bulk")
		pos = at + int(size)
		p.args = append(p.args, buf[at:pos:pos])
		pos += 2
	}
}

// Missing returns how many more bytes the command needs at least, if the last call of Next was given have bytes. It
// is a hint for growing buffers.
func (p *Parser) Missing(have int) int {
	if p.left == 0 || !p.known {
		return 1
	}
	return max(1, p.pos+p.bulk+2-have)
}

// Moved tells the parser that the command that Next has found has moved to the beginning of buf. The slices that Next
// has returned then point into buf, too; but those of an inline command stay in a buffer of the parser's.
func (p *Parser) Moved(buf []byte) {
	if buf[0] == '*' {
		p.collect(buf)
	}
}

// Forget drops the references to the buffer that the last arguments were found in.
func (p *Parser) Forget() {
	switch {
	case p.mem != nil:
		p.drop()
	case cap(p.args) > 0 && p.args[:1][0] != nil:
		clear(p.args[:cap(p.args)])
	}
}

// drop frees the memory of the arguments.
func (p *Parser) drop() {
	clientmem.Free(p.mem)
	p.args, p.mem = nil, nil
}

// Held is how many bytes of memory the parser holds, or will hold when it has found the arguments that have come so
// far.
func (p *Parser) Held() int {
	return max(cap(p.args), p.count-p.left)*argSize + cap(p.quote)
}

// Release drops the references to the buffer that the last arguments were found in, and frees memory that an
// unusually large command took. There must be no incomplete command.
func (p *Parser) Release() {
	p.count = 0
	if cap(p.args) > few {
		p.drop()
	}
	p.Forget()
	if cap(p.quote) > 1024 {
		p.quote = nil
	}
}

const badLength = -1 << 63

// length reads "*123\r\n" or "$123\r\n" at pos. It returns the number, or badLength if there is none, and where the
// line ends: 0 if the line is not complete yet.
func (p *Parser) length(buf []byte, pos int, what string) (n int64, next int, err error) {
	// Fast path: one to five digits.
	if what == "bulk" && buf[pos] == '$' || what == "mbulk" {
		v, i := int64(0), pos+1
		for i < len(buf) && i < pos+6 && buf[i]-'0' <= 9 {
			v = v*10 + int64(buf[i]-'0')
			i++
		}
		if i > pos+1 && i+1 < len(buf) && buf[i] == '\r' && (buf[pos+1] != '0' || i == pos+2) {
			return v, i + 2, nil
		}
	}
	eol := bytes.IndexByte(buf[pos:], '\r')
	if eol < 0 {
		if len(buf)-pos > p.Limits.MaxInline {
			return 0, 0, Error("too big " + what + " count string")
		}
		return 0, 0, nil
	}
	if pos+eol+2 > len(buf) {
		return 0, 0, nil
	}
	if what == "bulk" && buf[pos] != '$' {
		return 0, 0, Error(fmt.Sprintf("expected '$', got '%c'", printable(buf[pos])))
	}
	n, ok := ParseInt(buf[pos+1 : pos+eol])
	if !ok {
		n = badLength
	}
	return n, pos + eol + 2, nil
}

// printable keeps an error reply on one line.
func printable(c byte) byte {
	if c == '\r' || c == '\n' {
		return ' '
	}
	return c
}

// inline reads a command that is a line of words.
func (p *Parser) inline(buf []byte) (args [][]byte, n int, err error) {
	eol := bytes.IndexByte(buf, '\n')
	if eol < 0 {
		if len(buf) > p.Limits.MaxInline {
			return nil, 0, Error("too big inline request")
		}
		return nil, 0, nil
	}
	line := buf[:eol]
	if eol > 0 && line[eol-1] == '\r' {
		line = line[:eol-1]
	}
	if len(line) > p.Limits.MaxInline {
		return nil, 0, Error("too big inline request")
	}
	p.args, p.count = p.args[:0], 0
	if !p.split(line) {
		return nil, 0, Error("unbalanced quotes in request")
	}
	if len(p.args) == 0 {
		return nil, eol + 1, nil
	}
	return p.args, eol + 1, nil
}

// split cuts line into words with the quoting rules of redis-cli: "..." with
// \xHH, \n, \r, \t, \b, \a and escaped characters, '...' with \' only.
func (p *Parser) split(line []byte) bool {
	if cap(p.quote) < len(line) {
		p.quote = make([]byte, 0, len(line))
	}
	w := p.quote[:0] // never outgrows the line: unquoting only shortens
	i := 0
	for {
		for i < len(line) && isSpace(line[i]) {
			i++
		}
		if i == len(line) {
			return true
		}
		start := len(w)
		var q byte
	word:
		for ; ; i++ {
			if i == len(line) {
				if q != 0 {
					return false
				}
				break word
			}
			c := line[i]
			switch {
			case q == '"' && c == '\\' && i+3 < len(line) && line[i+1] == 'x' && isHex(line[i+2]) && isHex(line[i+3]):
				w = append(w, unhex(line[i+2])<<4|unhex(line[i+3]))
				i += 3
			case q == '"' && c == '\\' && i+1 < len(line):
				i++
				w = append(w, unescape(line[i]))
			case q == '\'' && c == '\\' && i+1 < len(line) && line[i+1] == '\'':
				i++
				w = append(w, '\'')
			case q != 0 && c == q:
				if i+1 < len(line) && !isSpace(line[i+1]) {
					return false // a closing quote must end the word
				}
				i++
				break word
			case q != 0:
				w = append(w, c)
			case c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == 0: // no other space ends a word
				break word
			case c == '"' || c == '\'':
				q = c
			default:
				w = append(w, c)
			}
		}
		p.args = append(p.args, w[start:len(w):len(w)])
		if i < len(line) && line[i] == 0 {
			return true // a NUL ends the line, as it ends a C string
		}
	}
}

func unescape(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'b':
		return '\b'
	case 'a':
		return '\a'
	}
	return c
}

func isSpace(c byte) bool { return c == ' ' || c-'\t' < 5 }

func isHex(c byte) bool { return c-'0' <= 9 || (c|0x20)-'a' < 6 }

func unhex(c byte) byte {
	if c-'0' <= 9 {
		return c - '0'
	}
	return (c | 0x20) - 'a' + 10
}
