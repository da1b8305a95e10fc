package scan

import (
	"encoding/binary"
	"errors"
	"fmt"

	"polder/far/record"
	"polder/far/store"
	"polder/internal/offload"
)

// Limits of a request, in bytes.
const (
	// MaxBytes is the most that the records of a request have together. A node looks through that much in a fraction
	// of a millisecond, during which it does nothing else for the client's connection.
	MaxBytes = 1 << 20
	// MaxRecord is the most that one record has.
	MaxRecord = 256 << 10
	// MaxRuns is the most runs of a request: together with the conditions they fit into a message.
	MaxRuns = 2048
	// MaxAnswer is the most that the bits of a filter have, or the elements that are gathered.
	MaxAnswer = 48 << 10
)

// Opcodes of the component.
const (
	Aggregate = 1
	Filter    = 2
	Lookup    = 3
	Gather    = 4
)

// A Request says which objects are to be looked through, and for what.
type Request struct {
	Scan    offload.Scan
	Objects store.Objects
	Runs    []Run
}

// A Run is records that are adjacent in a segment, of objects with consecutive numbers.
type Run struct {
	Chunk uint32 // the node's number of the first chunk of the segment
	Seed  uint32 // the segment's
	Off   uint32 // in the segment, in units
	// N is how many records there are; of an entry, the most bytes that its record has; of Gather, which element of
	// the object is wanted.
	N      uint32
	Number uint64 // of the first object
}

// sameRecord reports whether r is an element of the same object as q.
func (r *Run) sameRecord(q *Run) bool {
	return r.Chunk == q.Chunk && r.Seed == q.Seed && r.Off == q.Off && r.Number == q.Number
}

const (
	headerSize    = 32
	conditionSize = 16
	runSize       = 24

	ofEntries = 1 // the request is of entries
)

var errMalformed = errors.New("malformed request")

// Append appends r's encoding to b.
func (r *Request) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, r.Objects.Born)
	b = le.AppendUint32(b, uint32(r.Objects.Size))
	b = le.AppendUint16(b, r.Objects.Owner)
	b = append(b, byte(r.Scan.Kind), byte(len(r.Scan.Conditions)))
	b = le.AppendUint32(b, uint32(r.Scan.Stride))
	b = le.AppendUint32(b, uint32(r.Scan.Off))
	b = le.AppendUint32(b, uint32(len(r.Runs)))
	var of uint32
	if r.Objects.Entries {
		of = ofEntries
	}
	b = le.AppendUint32(b, of)
	for i := range r.Scan.Conditions {
		c := &r.Scan.Conditions[i]
		b = append(b, c.Operand[:]...)
		b = le.AppendUint32(b, uint32(c.Off))
		b = append(b, byte(c.Kind), byte(c.Compare), 0, 0)
	}
	for _, run := range r.Runs {
		b = le.AppendUint32(b, run.Chunk)
		b = le.AppendUint32(b, run.Seed)
		b = le.AppendUint32(b, run.Off)
		b = le.AppendUint32(b, run.N)
		b = le.AppendUint64(b, run.Number)
	}
	return b
}

// Decode sets r from b, a request of the operation op, which may be anything, and may change meanwhile: nothing in it
// is looked at twice. It refuses what is beyond the limits.
func (r *Request) Decode(op uint16, b []byte) error {
	le := binary.LittleEndian
	if len(b) < headerSize {
		return fmt.Errorf("%w: %d bytes, want at least %d", errMalformed, len(b), headerSize)
	}
	r.Objects = store.Objects{Born: le.Uint64(b), Size: int(le.Uint32(b[8:])), Owner: le.Uint16(b[12:])}
	r.Scan.Kind, r.Scan.Stride, r.Scan.Off = offload.Kind(b[14]), int(le.Uint32(b[16:])), int(le.Uint32(b[20:]))
	conditions, runs := int(b[15]), int(le.Uint32(b[24:]))
	switch {
	case conditions > offload.MaxConditions || runs > MaxRuns:
		return fmt.Errorf("%w: %d conditions and %d runs, want at most %d and %d", errMalformed, conditions, runs, offload.MaxConditions, MaxRuns)
	case len(b) != headerSize+conditions*conditionSize+runs*runSize:
		return fmt.Errorf("%w: %d bytes with %d conditions and %d runs", errMalformed, len(b), conditions, runs)
	}
	switch of := le.Uint32(b[28:]); of {
	case 0:
	case ofEntries:
		r.Objects.Entries = true
	default:
		return fmt.Errorf("%w: objects of kind %d", errMalformed, of)
	}
	b = b[headerSize:]
	r.Scan.Conditions = r.Scan.Conditions[:0]
	for range conditions {
		if b[14] != 0 || b[15] != 0 {
			return fmt.Errorf("%w: reserved bytes are not zero", errMalformed)
		}
		r.Scan.Conditions = append(r.Scan.Conditions, offload.Condition{
			Operand: [8]byte(b), Off: int(le.Uint32(b[8:])), Kind: offload.Kind(b[12]), Compare: offload.Compare(b[13]),
		})
		b = b[conditionSize:]
	}
	if err := r.Scan.Check(); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	if n := r.Objects.Size; n < 1 || n > MaxRecord-record.HeaderSize || n%r.Scan.Stride != 0 || r.Objects.Entries && n != r.Scan.Stride {
		return fmt.Errorf("%w: objects of %d bytes, with elements of %d", errMalformed, n, r.Scan.Stride)
	}
	if op == Gather && (r.Objects.Entries || r.Scan.Kind != 0 || conditions != 0 || runs*r.Scan.Stride > MaxAnswer) {
		return fmt.Errorf("%w: %d elements of %d bytes with %d conditions, want at most %d bytes of objects, and no condition", errMalformed, runs, r.Scan.Stride, conditions, MaxAnswer)
	}
	r.Runs = r.Runs[:0]
	left, least := MaxBytes/r.recordSize(), 1
	switch {
	case r.Objects.Entries:
		left, least = MaxBytes, record.HeaderSize
	case op == Gather:
		least = 0
	}
	for i := range runs {
		run := Run{Chunk: le.Uint32(b), Seed: le.Uint32(b[4:]), Off: le.Uint32(b[8:]), N: le.Uint32(b[12:]), Number: le.Uint64(b[16:])}
		n := run.N
		if op == Gather {
			if run.N >= uint32(r.perRecord()) {
				return fmt.Errorf("%w: element %d of an object that has %d", errMalformed, run.N, r.perRecord())
			}
			if n = 1; i > 0 && run.sameRecord(&r.Runs[i-1]) {
				n = 0 // the record has been counted
			}
		}
		if n < uint32(least) || uint64(n) > uint64(left) || r.Objects.Entries && n > MaxRecord {
			return fmt.Errorf("%w: a run of %d, of at most %d that are left", errMalformed, n, left)
		}
		left -= int(n)
		r.Runs = append(r.Runs, run)
		b = b[runSize:]
	}
	return nil
}

func (r *Request) recordSize() int { return record.Size(r.Objects.Size) }

// perRecord is how many elements a record has.
func (r *Request) perRecord() int { return r.Objects.Size / r.Scan.Stride }

// Op is the opcode of a request for a part.
func Op(p *store.ScanPart) uint16 {
	switch {
	case p.Elements != nil:
		return Gather
	case p.Out != nil:
		return Filter
	}
	return Aggregate
}

// PartSize is how many bytes the records of a part have, and how many the answer has for them unless that is an
// Aggregate.
func PartSize(o store.Objects, stride int, p *store.ScanPart) (records, answer int) {
	switch {
	case o.Entries:
		return p.N, 1
	case p.Elements != nil:
		return record.Size(o.Size), len(p.Elements) * stride
	}
	return p.N * record.Size(o.Size), p.N * offload.BitsSize(o.Size/stride)
}

// AppendRuns appends the runs of a part. Chunk is the node's number of the first chunk of its segment.
func AppendRuns(runs []Run, p *store.ScanPart, chunk uint32) []Run {
	run := Run{Chunk: chunk, Seed: p.Seed, Off: uint32(p.Off / record.Unit), N: uint32(p.N), Number: p.Number}
	if p.Elements == nil {
		return append(runs, run)
	}
	for _, run.N = range p.Elements {
		runs = append(runs, run)
	}
	return runs
}

// look calls fn with the data of every record, in order, after it has checked the record. It reads with read, which
// copies what lies at an offset of a run's segment to b; it reads as many records at a time as scratch has room for.
//
// Preconditions: Decode has set r; scratch has MaxRecord bytes, and is aligned.
func (r *Request) look(read func(run *Run, off uint64, b []byte) error, scratch []byte, fn func(data []byte)) error {
	for i := range r.Runs {
		run := &r.Runs[i]
		var err error
		if r.Objects.Entries {
			err = r.lookEntry(read, run, scratch, fn)
		} else {
			err = r.lookRun(read, run, int(run.N), scratch, fn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lookRun is look for the first records of a run. The parameter records says how many.
func (r *Request) lookRun(read func(run *Run, off uint64, b []byte) error, run *Run, records int, scratch []byte, fn func(data []byte)) error {
	size := r.recordSize()
	for k := 0; k < records; {
		n := min(records-k, len(scratch)/size)
		off := uint64(run.Off)*record.Unit + uint64(k)*uint64(size)
		if err := read(run, off, scratch[:n*size]); err != nil {
			return err
		}
		for j := range n {
			rec, err := record.Decode(scratch[j*size:(j+1)*size], run.Seed, int(off)+j*size)
			if err == nil {
				err = r.check(rec, run.Number+uint64(k+j))
			}
			if err != nil {
				return fmt.Errorf("cannot use the bytes at %d of chunk %d: %w", off+uint64(j*size), run.Chunk, err)
			}
			fn(rec.Value())
		}
		k += n
	}
	return nil
}

// lookEntry is look for an entry.
func (r *Request) lookEntry(read func(run *Run, off uint64, b []byte) error, run *Run, scratch []byte, fn func(data []byte)) error {
	off := uint64(run.Off) * record.Unit
	if err := read(run, off, scratch[:run.N]); err != nil {
		return err
	}
	rec, err := record.Decode(scratch[:run.N], run.Seed, int(off))
	if err == nil {
		err = checkEntry(rec, &r.Objects, run.Number)
	}
	if err != nil {
		return fmt.Errorf("cannot use the bytes at %d of chunk %d: %w", off, run.Chunk, err)
	}
	fn(scratch[:copy(scratch, rec.Value())]) // at the front of scratch, where it is aligned
	return nil
}

// checkEntry refuses a record that is not of an entry as o says, or whose number differs from number in the lowest 32
// bits.
func checkEntry(rec record.Record, o *store.Objects, number uint64) error {
	if rec.Kind() != record.Entry || rec.Owner() != o.Owner || uint32(rec.Number()) != uint32(number) ||
		rec.Flags()&^record.Moved != 0 || len(rec.Value()) != o.Size {
		return errors.New("they are not those of the entry that was looked for")
	}
	return nil
}

// check refuses a record that is not of the object with that number.
func (r *Request) check(rec record.Record, number uint64) error {
	if rec.Kind() != record.Object || rec.Owner() != r.Objects.Owner || rec.Number() != number || rec.Version() <= r.Objects.Born ||
		rec.KeyLen() != 0 || rec.Flags()&^record.Moved != 0 || rec.Len() != r.Objects.Size {
		return errors.New("they are not those of the object that was looked for")
	}
	return nil
}

// Aggregate adds up what the request asks for.
func (r *Request) Aggregate(read func(run *Run, off uint64, b []byte) error, scratch []byte) (a offload.Aggregate, err error) {
	err = r.look(read, scratch, func(data []byte) { r.Scan.Aggregate(&a, data) })
	return a, err
}

// Filter appends the bits of every record to out, each record's in bytes of its own.
func (r *Request) Filter(read func(run *Run, off uint64, b []byte) error, scratch, out []byte) ([]byte, error) {
	per := offload.BitsSize(r.perRecord())
	err := r.look(read, scratch, func(data []byte) {
		n := len(out)
		out = out[:n+per]
		r.Scan.Filter(out[n:], data)
	})
	return out, err
}

// FilterSize is how many bytes Filter appends.
func (r *Request) FilterSize() (n int) {
	for i := range r.Runs {
		_, bits := PartSize(r.Objects, r.Scan.Stride, &store.ScanPart{N: int(r.Runs[i].N)})
		n += bits
	}
	return n
}

// Gather appends to out the elements that the runs ask for. If several runs in a row are of the same record, it reads
// and checks that record once.
//
// Preconditions: those of look.
func (r *Request) Gather(read func(run *Run, off uint64, b []byte) error, scratch, out []byte) ([]byte, error) {
	var data []byte
	for i := range r.Runs {
		run := &r.Runs[i]
		if i == 0 || !run.sameRecord(&r.Runs[i-1]) {
			if err := r.lookRun(read, run, 1, scratch, func(b []byte) { data = b }); err != nil {
				return nil, err
			}
		}
		at := int(run.N) * r.Scan.Stride
		out = append(out, data[at:at+r.Scan.Stride]...)
	}
	return out, nil
}
