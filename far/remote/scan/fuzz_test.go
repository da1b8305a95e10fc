package scan_test

import (
	"bytes"
	"errors"
	"testing"

	"polder/far/record"
	"polder/far/remote/scan"
	"polder/internal/offload"
)

// FuzzRequest decodes what anybody may send, and carries it out on memory of which the bytes are the request's, too.
func FuzzRequest(f *testing.F) {
	r := question()
	f.Add(r.Append(nil), []byte{})
	r.Scan.Conditions = []offload.Condition{{Off: 8, Kind: offload.Int16, Compare: offload.Less, Operand: [8]byte{9}}}
	r.Runs = []scan.Run{{Chunk: 1, Seed: 2, Off: 4, N: 1, Number: 7}}
	rec := record.Put(make([]byte, record.Size(objectSize)), record.Header{Kind: record.Object, Owner: owner, Number: 7}, make([]byte, objectSize))
	rec.SetVersion(6)
	rec.Seal(2, 64)
	f.Add(r.Append(nil), []byte(rec))
	r.Scan.Kind, r.Scan.Conditions, r.Runs = 0, nil, append(r.Runs, r.Runs[0], r.Runs[0])
	r.Runs[1].N, r.Runs[2].Number = 3, 8
	f.Add(r.Append(nil), []byte(rec))
	f.Fuzz(func(t *testing.T, b, mem []byte) {
		scratch := make([]byte, scan.MaxRecord)
		read := func(_ *scan.Run, _ uint64, b []byte) error {
			if len(mem) == 0 {
				return errors.New("there is nothing")
			}
			for n := 0; n < len(b); {
				n += copy(b[n:], mem)
			}
			return nil
		}
		var r scan.Request
		if r.Decode(scan.Gather, b) == nil {
			gather(t, &r, b, read, scratch)
		}
		if r.Decode(scan.Aggregate, b) != nil {
			return
		}
		if again := r.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x is encoded as %x", b, again)
		}
		total := 0
		for _, run := range r.Runs {
			if r.Objects.Entries {
				total += int(run.N) // bytes
			} else {
				total += int(run.N) * record.Size(r.Objects.Size)
			}
		}
		if total > scan.MaxBytes || len(r.Runs) > scan.MaxRuns {
			t.Fatalf("%d runs of %d bytes were taken", len(r.Runs), total)
		}
		a, err := r.Aggregate(read, scratch)
		one := r.Objects.Entries || len(r.Runs) == total/record.Size(r.Objects.Size) // record in every run
		if n := len(r.Runs) * r.Objects.Size / r.Scan.Stride; err == nil && one && a.Count > uint64(n) {
			t.Fatalf("%d of %d elements count", a.Count, n)
		}
		if n := r.FilterSize(); n <= scan.MaxAnswer {
			if out, err := r.Filter(read, scratch, make([]byte, 0, n)); err == nil && len(out) != n {
				t.Fatalf("a filter has %d bytes, want %d", len(out), n)
			}
		}
	})
}

// gather carries r out, which was decoded from b.
func gather(t *testing.T, r *scan.Request, b []byte, read func(*scan.Run, uint64, []byte) error, scratch []byte) {
	if again := r.Append(nil); !bytes.Equal(again, b) {
		t.Fatalf("%x is encoded as %x", b, again)
	}
	n := len(r.Runs) * r.Scan.Stride
	if n > scan.MaxAnswer || len(r.Runs) > scan.MaxRuns {
		t.Fatalf("%d elements of %d bytes were taken", len(r.Runs), r.Scan.Stride)
	}
	bytesRead := 0
	out, err := r.Gather(func(run *scan.Run, off uint64, b []byte) error {
		bytesRead += len(b)
		return read(run, off, b)
	}, scratch, make([]byte, 0, n))
	if bytesRead > scan.MaxBytes || err == nil && len(out) != n {
		t.Fatalf("%d bytes were read and %d bytes are the answer, want at most %d and just %d", bytesRead, len(out), scan.MaxBytes, n)
	}
}
