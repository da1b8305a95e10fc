package rdb

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// MaxString is the longest string that Redis has.
const MaxString = 512 << 20

// Errors of a Reader, beside those of the io.Reader that it reads from. Other faults of the file have no error values
// of their own; the text says what is wrong.
var (
	ErrNotRDB   = errors.New("this is no RDB file")
	ErrNewer    = errors.New("the file is of a newer version")
	ErrShort    = errors.New("the file ends too early")
	ErrChecksum = errors.New("the checksum is wrong: the file is damaged")
)

// Kind is what a key is.
type Kind uint8

const (
	String Kind = iota
	Hash
	Other // anything else
)

// Key is a key in a file.
type Key struct {
	DB     uint64
	Name   []byte // valid until the next call of Next
	Expire time.Time
	Kind   Kind
	Type   string // what it is, such as "list" for an Other

	typ byte
}

// Reader reads a file. It is for one goroutine.
type Reader struct {
	// Most is the longest string that is read; MaxString if it is 0.
	Most int

	in      *bufio.Reader
	at      int64 // how many bytes were read
	crc     uint64
	version int // 0 before the header was read
	db      uint64
	key     Key
	unread  bool // the value of key has not been read
	err     error
	buf     [8]byte
	spare   []byte // memory of the last name
}

// NewReader makes a Reader of a file that begins where r is now.
func NewReader(r io.Reader) *Reader { return &Reader{in: bufio.NewReaderSize(r, 64<<10)} }

// malformed is an error about damaged bytes.
type malformed string

func (e malformed) Error() string { return "the file is damaged: " + string(e) }

// fail adds to an error where in the file it occurred.
func (r *Reader) fail(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = ErrShort
	}
	return fmt.Errorf("at byte %d: %w", r.at, err)
}

// Next reads up to the next key. If the value of the key before was not read, Next skips it. At the end of a file
// that is whole, Next returns io.EOF. After an error it returns the same error again.
func (r *Reader) Next() (*Key, error) {
	if r.err == nil {
		if r.err = r.next(); r.err != nil && r.err != io.EOF {
			r.err = r.fail(r.err)
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	return &r.key, nil
}

func (r *Reader) next() error {
	if r.version == 0 {
		if err := r.header(); err != nil {
			return err
		}
	}
	if r.unread {
		r.unread = false
		if err := r.skipValue(r.key.typ); err != nil {
			return err
		}
	}
	expire := time.Time{}
	for {
		op, err := r.byte()
		if err != nil {
			return short(err)
		}
		switch op {
		case opEOF:
			return r.end()
		case opSelect:
			r.db, err = r.length()
		case opResize:
			err = r.skipLengths(2)
		case opSlot:
			err = r.skipLengths(3)
		case opAux:
			err = r.skipStrings(2)
		case opFunction:
			err = r.skipStrings(1)
		case opFunction1:
			err = errors.New("it has functions in a form that only release candidates of Redis 7.0 have had")
		case opModuleAux:
			err = r.skipModule(true)
		case opIdle:
			err = r.skipLengths(1)
		case opFreq:
			_, err = r.byte()
		case opExpireMs:
			var ms uint64
			ms, err = r.u64()
			expire = time.UnixMilli(int64(ms))
		case opExpire:
			var s [4]byte
			err = r.full(s[:])
			expire = time.Unix(int64(int32(binary.LittleEndian.Uint32(s[:]))), 0)
		default:
			name, err := r.string(r.spare[:0])
			if err != nil {
				return short(err)
			}
			r.spare = name
			r.key = Key{DB: r.db, Name: name, Expire: expire, typ: op}
			if r.key.Kind, r.key.Type = kindOf(op); r.key.Type == "" {
				return malformed(fmt.Sprintf("key %.64q is of type %d, which is unknown", name, op))
			}
			r.unread = true
			return nil
		}
		if err != nil {
			return short(err)
		}
	}
}

// short turns io.EOF into an error where more must follow.
func short(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func kindOf(typ byte) (Kind, string) {
	switch typ {
	case typeString:
		return String, "string"
	case typeHash, typeHashZipmap, typeHashZiplist, typeHashListpack:
		return Hash, "hash"
	case typeHashTTL1, typeHashListpackT1, typeHashTTL, typeHashListpackT:
		return Other, "hash whose fields expire"
	case typeList, typeListZiplist, typeQuicklist, typeQuicklist2:
		return Other, "list"
	case typeSet, typeSetIntset, typeSetListpack:
		return Other, "set"
	case typeZSet, typeZSet2, typeZSetZiplist, typeZSetListpack:
		return Other, "sorted set"
	case typeStream, typeStream2, typeStream3:
		return Other, "stream"
	case typeModule, typeModule2:
		return Other, "value of a module"
	}
	return Other, ""
}

func (r *Reader) header() error {
	var b [9]byte
	if err := r.full(b[:]); err != nil {
		if short(err) == io.ErrUnexpectedEOF {
			return ErrNotRDB
		}
		return err
	}
	v, err := strconv.ParseUint(string(b[5:]), 10, 16)
	switch {
	case string(b[:5]) != magic || err != nil || v == 0:
		return ErrNotRDB
	case v > newest:
		return fmt.Errorf("%w: %d, and up to %d are read, those of Redis 7.4", ErrNewer, v, newest)
	}
	r.version = int(v)
	return nil
}

// end reads what is behind the last key.
func (r *Reader) end() error {
	if r.version >= 5 {
		want := r.crc
		got, err := r.u64()
		switch {
		case err != nil:
			return short(err)
		case got != want && got != 0: // 0 is written if no checksum is made
			return ErrChecksum
		}
	}
	switch _, err := r.in.ReadByte(); err {
	case io.EOF:
		return io.EOF
	case nil:
		return errors.New("more follows the end of the RDB file, as in an append-only file, which is not read")
	default:
		return err
	}
}

// Value appends the value of the key that Next has returned last, which must be a String.
func (r *Reader) Value(dst []byte) ([]byte, error) {
	if err := r.take(String); err != nil {
		return dst, err
	}
	dst, err := r.string(dst)
	return dst, r.keep(err)
}

// Fields calls yield with the fields and values of the key that Next has returned last, which must be a Hash. When
// yield returns an error, Fields returns it. Field and value are valid during the call.
func (r *Reader) Fields(yield func(field, value []byte) error) error {
	if err := r.take(Hash); err != nil {
		return err
	}
	var failed error
	err := r.fields(func(f, v []byte) error {
		failed = yield(f, v)
		return failed
	})
	if failed != nil {
		r.err = failed
		return failed
	}
	return r.keep(err)
}

// take begins to read a value.
func (r *Reader) take(k Kind) error {
	switch {
	case r.err != nil:
		return r.err
	case !r.unread || r.key.Kind != k:
		panic("BUG: a value is read that is not there")
	}
	r.unread = false
	return nil
}

func (r *Reader) keep(err error) error {
	if err != nil {
		r.err = fmt.Errorf("key %.64q: %w", r.key.Name, r.fail(err))
	}
	return r.err
}

func (r *Reader) fields(yield func(field, value []byte) error) error {
	if r.key.typ != typeHash {
		b, err := r.string(nil)
		if err != nil {
			return err
		}
		switch r.key.typ {
		case typeHashZipmap:
			return zipmap(b, yield)
		case typeHashZiplist:
			return pairs(b, ziplistHead, ziplistEntry, yield)
		}
		return pairs(b, listpackHead, listpackEntry, yield)
	}
	n, err := r.length()
	var f, v []byte
	for ; n > 0 && err == nil; n-- {
		if f, err = r.string(f[:0]); err != nil {
			break
		}
		if v, err = r.string(v[:0]); err == nil {
			err = yield(f, v)
		}
	}
	return err
}

// full reads as many bytes as b has.
func (r *Reader) full(b []byte) error {
	n, err := io.ReadFull(r.in, b)
	r.at += int64(n)
	r.crc = Sum(r.crc, b[:n])
	return err
}

func (r *Reader) byte() (byte, error) {
	err := r.full(r.buf[:1])
	return r.buf[0], err
}

func (r *Reader) u64() (uint64, error) {
	err := r.full(r.buf[:8])
	return binary.LittleEndian.Uint64(r.buf[:8]), err
}

// piece is how many bytes of a long string are read at once.
const piece = 64 << 10

// more appends n bytes. It allocates memory as they come.
func (r *Reader) more(dst []byte, n uint64) ([]byte, error) {
	for n > 0 {
		some := int(min(n, piece))
		at := len(dst)
		if cap(dst)-at < some {
			dst = append(dst, make([]byte, some)...)
		} else {
			dst = dst[:at+some]
		}
		if err := r.full(dst[at:]); err != nil {
			return dst[:at], err
		}
		n -= uint64(some)
	}
	return dst, nil
}

// skip reads n bytes.
func (r *Reader) skip(n uint64) error {
	var b [4096]byte
	for n > 0 {
		some := min(n, uint64(len(b)))
		if err := r.full(b[:some]); err != nil {
			return err
		}
		n -= some
	}
	return nil
}

// lengthOr reads a length or, if encoded is true, an encoding of strings.
func (r *Reader) lengthOr() (n uint64, encoded bool, err error) {
	first, err := r.byte()
	if err != nil {
		return 0, false, err
	}
	switch first >> 6 {
	case 0:
		return uint64(first), false, nil
	case 1:
		low, err := r.byte()
		return uint64(first&0x3f)<<8 | uint64(low), false, err
	case 3:
		return uint64(first & 0x3f), true, nil
	}
	switch first {
	case 0x80:
		err = r.full(r.buf[:4])
		return uint64(binary.BigEndian.Uint32(r.buf[:4])), false, err
	case 0x81:
		err = r.full(r.buf[:8])
		return binary.BigEndian.Uint64(r.buf[:8]), false, err
	}
	return 0, false, malformed(fmt.Sprintf("%#x begins no length", first))
}

func (r *Reader) length() (uint64, error) {
	n, encoded, err := r.lengthOr()
	if err == nil && encoded {
		err = malformed("a string is where a length should be")
	}
	return n, err
}

func (r *Reader) most() uint64 {
	if r.Most > 0 {
		return uint64(r.Most)
	}
	return MaxString
}

func (r *Reader) tooLong(n uint64) error {
	return fmt.Errorf("a string has %d bytes, and at most %d are read", n, r.most())
}

// string appends a string.
func (r *Reader) string(dst []byte) ([]byte, error) {
	n, encoded, err := r.lengthOr()
	switch {
	case err != nil:
		return dst, err
	case !encoded:
		if n > r.most() {
			return dst, r.tooLong(n)
		}
		return r.more(dst, n)
	}
	switch n {
	case encInt8, encInt16, encInt32:
		r.buf = [8]byte{}
		if err := r.full(r.buf[:1<<n]); err != nil {
			return dst, err
		}
		v := binary.LittleEndian.Uint64(r.buf[:])
		unused := 64 - 8<<n
		return strconv.AppendInt(dst, int64(v<<unused)>>unused, 10), nil
	case encLZF:
		packed, size, err := r.lzfLengths()
		if err != nil {
			return dst, err
		}
		b, err := r.more(nil, packed)
		if err != nil {
			return dst, err
		}
		return lzf(dst, b, int(size))
	}
	return dst, malformed(fmt.Sprintf("a string has the encoding %d, which is unknown", n))
}

func (r *Reader) lzfLengths() (packed, size uint64, err error) {
	if packed, err = r.length(); err == nil {
		size, err = r.length()
	}
	switch {
	case err != nil:
	case packed > r.most() || size > r.most():
		err = r.tooLong(max(packed, size))
	case size > packed*lzfMost:
		err = malformed(fmt.Sprintf("%d bytes cannot be %d compressed ones", size, packed))
	}
	return packed, size, err
}
