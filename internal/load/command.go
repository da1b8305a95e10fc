package load

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Op is what the commands of a Run do.
type Op uint8

const (
	Get Op = iota
	Set
	SetWait    // SET, and WAIT for one replica to have it
	SetWaitTwo // SET, and WAIT for two replicas to have it
)

func (o Op) String() string {
	return [...]string{"GET", "SET", "SET and WAIT 1", "SET and WAIT 2"}[o]
}

// replicas is how many replicas WAIT waits for, 0 without a WAIT.
func (o Op) replicas() int { return [...]int{0, 0, 1, 2}[o] }

// KeySize is the length in bytes of every key.
const KeySize = 16

const (
	keyPrefix = "key:"
	keyDigits = KeySize - len(keyPrefix)
)

// Key is the name of key number k: "key:" and 12 digits.
func Key(k uint32) []byte {
	b := append(make([]byte, 0, KeySize), keyPrefix...)
	b = append(b, bytes.Repeat([]byte{'0'}, keyDigits)...)
	putDigits(b[len(keyPrefix):], k)
	return b
}

func putDigits(b []byte, k uint32) {
	for i := keyDigits - 1; i >= 0; i-- {
		b[i] = byte('0' + k%10)
		k /= 10
	}
}

// Value is the value of size bytes that belongs to key number k: the key, and
// filling that does not compress to nothing.
//
// Preconditions: size is at least KeySize.
func Value(k uint32, size int) []byte {
	return append(Key(k), filling(size)...)
}

func filling(size int) []byte {
	b := make([]byte, size-KeySize)
	x := uint32(size)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// batch is a pipeline of commands as they go over the wire. Commands of one
// kind have one length, so that another batch is a matter of other digits.
type batch struct {
	wire []byte
	size int   // bytes of one command
	at   []int // where the digits of a key go within a command
}

func newBatch(op Op, pipeline, valueSize int) batch {
	key := Key(0)
	cmd := fmt.Appendf(nil, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", KeySize, key)
	if op != Get {
		cmd = fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", KeySize, key, valueSize, Value(0, valueSize))
	}
	if n := op.replicas(); n > 0 {
		cmd = fmt.Appendf(cmd, "*3\r\n$4\r\nWAIT\r\n$1\r\n%d\r\n$4\r\n5000\r\n", n)
	}
	b := batch{wire: bytes.Repeat(cmd, pipeline), size: len(cmd)}
	for from := 0; ; {
		i := bytes.Index(cmd[from:], key)
		if i < 0 {
			return b
		}
		b.at = append(b.at, from+i+len(keyPrefix))
		from += i + KeySize
	}
}

// put makes command number i of the batch concern key k.
func (b *batch) put(i int, k uint32) {
	cmd := b.wire[i*b.size : (i+1)*b.size]
	for _, at := range b.at {
		putDigits(cmd[at:at+keyDigits], k)
	}
}

// reply is what a server said to one command.
type reply uint8

const (
	replyOK reply = iota
	replyMissing
	replyFailed // an error reply
)

var errIncomplete = errors.New("incomplete reply")

// maxLine bounds a reply line; errors are the longest.
const maxLine = 512

// parser checks the replies to the commands of one kind.
type parser struct {
	op      Op
	value   int    // its size
	header  []byte // "$64\r\n": how the reply to a GET that hits begins
	filling []byte // of the value, after the key
}

func newParser(op Op, valueSize int) *parser {
	return &parser{
		op:      op,
		value:   valueSize,
		header:  fmt.Appendf(nil, "$%d\r\n", valueSize),
		filling: filling(valueSize),
	}
}

// parse reads the reply about key k at the start of b and returns how long
// it is. It fails with errIncomplete if there is more to come, and otherwise
// if the reply is not one that the command can have.
func (p *parser) parse(b []byte, k uint32) (int, reply, error) {
	// Fast path: a hit.
	if p.op == Get && bytes.HasPrefix(b, p.header) {
		n := len(p.header) + p.value + 2
		if len(b) < n {
			return 0, 0, errIncomplete
		}
		v := b[len(p.header):n]
		var key [KeySize]byte
		copy(key[:], keyPrefix)
		putDigits(key[len(keyPrefix):], k)
		if !bytes.Equal(v[:KeySize], key[:]) || !bytes.Equal(v[KeySize:p.value], p.filling) || v[p.value] != '\r' || v[p.value+1] != '\n' {
			return 0, 0, fmt.Errorf("got other bytes than were stored under %s", key)
		}
		return n, replyOK, nil
	}
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		if len(b) > maxLine {
			return 0, 0, fmt.Errorf("got a reply line of more than %d bytes", maxLine)
		}
		return 0, 0, errIncomplete
	}
	line := b[:end+1]
	switch {
	case p.op.replicas() > 0 && string(line) == "+OK\r\n":
		return p.waited(b, len(line))
	case p.op == Set && string(line) == "+OK\r\n":
		return len(line), replyOK, nil
	case line[0] == '-':
		return len(line), replyFailed, nil
	case p.op == Get && (string(line) == "$-1\r\n" || string(line) == "_\r\n"):
		return len(line), replyMissing, nil
	}
	return 0, 0, fmt.Errorf("got the reply %s to %v", strconv.Quote(string(line)), p.op)
}

// waited reads the reply to a WAIT, which is behind n bytes of the reply to the SET before it.
func (p *parser) waited(b []byte, n int) (int, reply, error) {
	end := bytes.IndexByte(b[n:], '\n')
	if end < 0 {
		return 0, 0, errIncomplete
	}
	line := b[n : n+end+1]
	have, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(string(line), ":"), "\r\n"))
	switch {
	case line[0] != ':' || err != nil:
		return 0, 0, fmt.Errorf("got the reply %s to WAIT", strconv.Quote(string(line)))
	case have < p.op.replicas():
		return n + len(line), replyFailed, nil
	}
	return n + len(line), replyOK, nil
}
