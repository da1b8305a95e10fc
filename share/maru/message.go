package maru

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"polder/share/server"
)

// The types of requests to the directory. A reply has the type of its request
// with replyBit.
const (
	typeAlloc         = 0x01
	typeReturn        = 0x03
	typeList          = 0x04
	typeRegister      = 0x10
	typeLookup        = 0x11
	typeExists        = 0x12
	typeDelete        = 0x13
	typePin           = 0x14
	typeUnpin         = 0x15
	typeBatchRegister = 0x20
	typeBatchLookup   = 0x21
	typeBatchExists   = 0x22
	typeBatchPin      = 0x23
	typeBatchUnpin    = 0x24
	typeStats         = 0xf0
	typeHeartbeat     = 0xf1
	typeReport        = 0xf2
	typeUsage         = 0xf3
	typeHandshake     = 0xfe

	replyBit = 0x80
)

const (
	headerSize      = 16
	messageMagic    = 0xcf00
	protocolVersion = 1
	// maxBatch is how many keys a request may have.
	maxBatch = 1 << 16
	// maxReports is how many entries of a report are looked at.
	maxReports = 10000
	// maxDepth is how deep maps and lists may be nested in a value that is not known, and skipped.
	maxDepth = 16
	// maxText bounds the texts of a request, other than keys.
	maxText = 256
)

// header is what a message begins with.
type header struct {
	version, kind, flags byte
	sequence             uint32
	length               uint32 // of the payload
}

// parseHeader reads a header. If b is long enough for a header, kind and sequence are right even if there is an
// error: the answer needs them.
func parseHeader(b []byte) (header, error) {
	if len(b) < headerSize {
		return header{}, fmt.Errorf("a message of %d bytes has no header", len(b))
	}
	h := header{b[2], b[3], b[4], binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
	switch {
	case binary.BigEndian.Uint16(b) != messageMagic:
		return h, fmt.Errorf("the message begins with %#04x, want %#04x", binary.BigEndian.Uint16(b), messageMagic)
	case h.version != protocolVersion:
		return h, fmt.Errorf("the message is of version %d of Maru's protocol, this server speaks version %d", h.version, protocolVersion)
	case uint64(h.length) > uint64(len(b)-headerSize):
		return h, fmt.Errorf("the message announces %d bytes and has %d", h.length, len(b)-headerSize)
	}
	return h, nil
}

func (h header) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, messageMagic)
	b = append(b, protocolVersion, h.kind, h.flags, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.sequence)
	return binary.BigEndian.AppendUint32(b, h.length)
}

// request is the payload of a request. Every type has some of the fields.
type request struct {
	has      field
	instance string
	exclude  string
	version  int64
	size     uint64
	key      server.MaruKey
	keys     []string         // of batches
	entries  []server.MaruKey // of registrations
	reports  []report
}

// field is a set of fields.
type field uint16

const (
	hasInstance field = 1 << iota
	hasSize
	hasKey
	hasRegion
	hasOffset
	hasLength
	hasKeys
	hasEntries
)

var fieldNames = []string{"instance_id", "size", "key", "region_id", "kv_offset", "kv_length", "keys", "entries"}

// required are the fields that a request must have.
var required = map[byte]field{
	typeAlloc:         hasInstance | hasSize,
	typeReturn:        hasInstance | hasRegion,
	typeRegister:      hasKey | hasRegion | hasOffset | hasLength,
	typeLookup:        hasKey,
	typeExists:        hasKey,
	typeDelete:        hasKey,
	typePin:           hasKey,
	typeUnpin:         hasKey,
	typeBatchRegister: hasEntries,
	typeBatchLookup:   hasKeys,
	typeBatchExists:   hasKeys,
	typeBatchPin:      hasKeys,
	typeBatchUnpin:    hasKeys,
	typeReport:        hasEntries,
}

func (f field) check(want field) error {
	for i, name := range fieldNames {
		if missing := want &^ f; missing&(1<<i) != 0 {
			return fmt.Errorf("the field %s is missing", name)
		}
	}
	return nil
}

// report is one entry of REPORT_STATS.
type report struct {
	client, op, result string
	size               int64
	micros             float64
}

// parseRequest reads the payload of a request. The keys are parts of one copy of it.
func parseRequest(kind byte, payload []byte) (*request, error) {
	d := decoder{string(payload)}
	q := &request{}
	err := d.fields(func(name string) error {
		err := d.field(q, kind, name)
		if err != nil {
			return fmt.Errorf("the field %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return q, q.has.check(required[kind])
}

// fields calls f for each name of a map. F reads the value.
func (d *decoder) fields(f func(name string) error) error {
	n, err := d.mapLen()
	for ; n > 0 && err == nil; n-- {
		var name string
		if name, err = d.part(maxText); err != nil {
			return fmt.Errorf("the name of a field: %w", err)
		}
		err = f(name)
	}
	return err
}

func (d *decoder) field(q *request, kind byte, name string) (err error) {
	switch name {
	case "instance_id":
		if d.null() {
			return nil
		}
		q.has |= hasInstance
		q.instance, err = d.text(maxText)
	case "exclude_instance_id":
		if d.null() {
			return nil
		}
		q.exclude, err = d.text(maxText)
	case "client_version":
		q.version, err = d.number()
	case "size":
		q.has |= hasSize
		var n int64
		n, err = d.number()
		q.size = uint64(n)
	case "keys":
		q.has |= hasKeys
		q.keys = make([]string, 0, 64)
		err = d.list(maxBatch, func() error {
			key, err := d.key()
			q.keys = append(q.keys, key)
			return err
		})
	case "entries":
		q.has |= hasEntries
		if kind == typeReport {
			return d.reports(q)
		}
		err = d.list(maxBatch, func() error {
			var k server.MaruKey
			var has field
			err := d.fields(func(name string) error { return d.keyField(&k, &has, name) })
			q.entries = append(q.entries, k)
			return errors.Join(err, has.check(required[typeRegister]))
		})
	default:
		err = d.keyField(&q.key, &q.has, name)
	}
	return err
}

func (d *decoder) keyField(k *server.MaruKey, has *field, name string) (err error) {
	var n int64
	switch name {
	case "key":
		*has |= hasKey
		k.Key, err = d.key()
	case "region_id":
		*has |= hasRegion
		n, err = d.number()
		k.Region = uint64(n)
	case "kv_offset":
		*has |= hasOffset
		k.Offset, err = d.number()
	case "kv_length":
		*has |= hasLength
		k.Length, err = d.number()
	default:
		err = d.skip(0)
	}
	return err
}

// reports reads the entries of a report, and keeps the first maxReports of them.
func (d *decoder) reports(q *request) error {
	return d.list(math.MaxInt, func() error {
		if len(q.reports) >= maxReports {
			return d.skip(0)
		}
		r := report{client: "_unknown", op: "unknown", result: "none"}
		err := d.fields(func(name string) (err error) {
			switch name {
			case "client_id":
				r.client, err = d.text(maxText)
			case "op_type":
				r.op, err = d.text(maxText)
			case "result":
				r.result, err = d.text(maxText)
			case "size":
				r.size, err = d.number()
			case "latency_us":
				r.micros, err = d.float()
			default:
				err = d.skip(0)
			}
			return err
		})
		if r.size < 0 || math.IsNaN(r.micros) || r.micros < 0 || r.micros > 1e12 {
			r.size, r.micros = 0, 0
		}
		q.reports = append(q.reports, r)
		return err
	})
}

// list calls f for each element of a list. F reads it.
func (d *decoder) list(most int, f func() error) error {
	n, err := d.listLen()
	if err == nil && n > most {
		return fmt.Errorf("a list of %d, at most %d are taken", n, most)
	}
	for ; n > 0 && err == nil; n-- {
		err = f()
	}
	return err
}

// text reads a string that may be kept.
func (d *decoder) text(most int) (string, error) {
	s, err := d.part(most)
	return strings.Clone(s), err
}

// key reads a key. Maru's keys are strings or integers. An integer is another key than the string of its digits: it
// is kept as a byte that is in no string, and its digits.
func (d *decoder) key() (string, error) {
	if d.atNumber() {
		n, negative, err := d.integer()
		if negative {
			return fmt.Sprintf("\xff%d", int64(n)), err
		}
		return fmt.Sprintf("\xff%d", n), err
	}
	return d.part(maxFrame)
}

// encoder writes a message.
type encoder struct{ out []byte }

func newEncoder() *encoder { return &encoder{} }

// begin begins a message of a kind, and end ends it.
func (e *encoder) begin(h header) {
	if cap(e.out) > smallFrame {
		e.out = nil
	}
	e.out = h.append(e.out[:0])
}

func (e *encoder) end() []byte {
	binary.BigEndian.PutUint32(e.out[12:], uint32(len(e.out)-headerSize))
	return e.out
}

func (e *encoder) object(n int)  { e.out = lengthOf(e.out, 0x80, 0xde, n) }
func (e *encoder) array(n int)   { e.out = lengthOf(e.out, 0x90, 0xdc, n) }
func (e *encoder) text(s string) { e.out = appendText(e.out, s) }
func (e *encoder) uint(n uint64) { e.out = appendUint(e.out, n) }

func (e *encoder) bool(b bool) {
	c := byte(0xc2)
	if b {
		c++
	}
	e.out = append(e.out, c)
}

func (e *encoder) float(f float64) {
	e.out = binary.BigEndian.AppendUint64(append(e.out, 0xcb), math.Float64bits(f))
}

func (e *encoder) boolField(name string, b bool) { e.text(name); e.bool(b) }

// intField adds a field whose value must not be negative.
func (e *encoder) intField(name string, n int64) { e.text(name); e.uint(uint64(n)) }
func (e *encoder) textField(name, s string)      { e.text(name); e.text(s) }

// fail begins the message anew, as an answer that says what is wrong.
func (e *encoder) fail(h header, err error) {
	e.begin(h)
	e.object(1)
	e.textField("error", err.Error())
}

// handle writes a region.
func (e *encoder) handle(r server.MaruRegion) { e.out = appendHandle(e.out, r) }

// appendHandle appends a region. None of its numbers may be left out.
func appendHandle(b []byte, r server.MaruRegion) []byte {
	b = lengthOf(b, 0x80, 0xde, 4)
	b = appendUint(appendText(b, "region_id"), r.ID)
	b = appendUint(appendText(b, "offset"), 0) // every region has a file of its own
	b = appendUint(appendText(b, "length"), uint64(r.Length))
	return appendUint(appendText(b, "auth_token"), r.Token)
}

func (e *encoder) bools(name string, bs []bool) {
	e.text(name)
	e.array(len(bs))
	for _, b := range bs {
		e.bool(b)
	}
}

// found writes the answer to a lookup. It is the hot path of batches, and so it touches
// e.out once.
func (e *encoder) found(ok bool, f server.Found) {
	if !ok {
		e.object(1)
		e.boolField("found", false)
		return
	}
	b := lengthOf(e.out, 0x80, 0xde, 4)
	b = append(appendText(b, "found"), 0xc3)
	b = appendHandle(appendText(b, "handle"), f.MaruRegion)
	b = appendUint(appendText(b, "kv_offset"), uint64(f.At))
	e.out = appendUint(appendText(b, "kv_length"), uint64(f.Size))
}
