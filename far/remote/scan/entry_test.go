package scan_test

import (
	"encoding/binary"
	"testing"

	"polder/far/record"
	"polder/far/remote/scan"
	"polder/far/store"
	"polder/internal/offload"
)

// TestOnlyTheEntryThatIsAskedForIsLookedThrough: the value of an entry is added up, wherever its key ends; other records
// and requests are refused.
func TestOnlyTheEntryThatIsAskedForIsLookedThrough(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(q *scan.Request, h *record.Header, body []byte) []byte
		ok     bool
	}{
		{"the entry", func(_ *scan.Request, _ *record.Header, b []byte) []byte { return b }, true},
		{"another one", func(q *scan.Request, _ *record.Header, b []byte) []byte { q.Runs[0].Number++; return b }, false},
		{"another map's", func(_ *scan.Request, h *record.Header, b []byte) []byte { h.Owner++; return b }, false},
		{"an object", func(_ *scan.Request, h *record.Header, b []byte) []byte { h.Kind = record.Object; return b }, false},
		{"a longer value", func(_ *scan.Request, _ *record.Header, b []byte) []byte { return append(b, 0) }, false},
		{"one that may expire", func(_ *scan.Request, h *record.Header, b []byte) []byte {
			h.Flags = record.Expires
			return append(make([]byte, record.ExpirySize), b...)
		}, false},
		{"of another seed", func(q *scan.Request, _ *record.Header, b []byte) []byte { q.Runs[0].Seed++; return b }, false},
		{"less than a header", func(q *scan.Request, _ *record.Header, b []byte) []byte {
			q.Runs[0].N = record.HeaderSize - 1
			return b
		}, false},
		{"more than a record has", func(q *scan.Request, _ *record.Header, b []byte) []byte { q.Runs[0].N = scan.MaxRecord + 1; return b }, false},
		{"more than one value", func(q *scan.Request, _ *record.Header, b []byte) []byte { q.Scan.Stride = 8; return b }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := scan.Request{
				Scan:    offload.Scan{Stride: 16, Off: 8, Kind: offload.Uint64},
				Objects: store.Objects{Owner: owner, Size: 16, Entries: true},
				Runs:    []scan.Run{{Seed: seed, Off: 4, N: 80, Number: 12}},
			}
			body := append([]byte("key"), make([]byte, 16)...)
			binary.LittleEndian.PutUint64(body[3+8:], 42)
			h := record.Header{Kind: record.Entry, Owner: owner, Number: 7<<32 | 12, KeyLen: 3}
			body = c.change(&q, &h, body)
			mem := make([]byte, scan.MaxBytes)
			r := record.Put(mem[64:64+record.Size(len(body))], h, body)
			r.SetVersion(6)
			r.Seal(seed, 64)
			var got scan.Request
			err := got.Decode(scan.Aggregate, q.Append(nil))
			var a offload.Aggregate
			if err == nil {
				a, err = got.Aggregate(func(_ *scan.Run, off uint64, b []byte) error { copy(b, mem[off:]); return nil }, make([]byte, scan.MaxRecord))
			}
			if (err == nil) != c.ok || c.ok && (a.Count != 1 || a.Sum != 42) {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
}
