package saved

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"testing"
)

// aFile is a small snapshot, of parts that are right for this package.
func aFile(t testing.TB) []byte {
	t.Helper()
	var file bytes.Buffer
	w := NewWriter(&file)
	b := AppendStart(nil, 7, 1<<17)
	b = Append(b, Part{Kind: Segment, Of: 1<<40 | 1, Body: []byte("a segment's first records")})
	b = Append(b, Part{Kind: Segment, Of: 1<<40 | 2, Body: []byte("another one's")})
	b = Append(b, Part{Kind: Segment, Of: 1<<40 | 1, Off: 25, Body: []byte(", and more of them")})
	b = Append(b, Part{Kind: Checkpoint, Of: 9, Body: []byte("a check")})
	b = Append(b, Part{Kind: Checkpoint, Of: 9, Off: 7, Body: []byte("point")})
	b = Append(b, Part{Kind: Root, Of: 9, Body: []byte("a root")})
	if err := w.Add(b); err != nil {
		t.Fatal(err)
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// mend makes the checksums of parts right, as whoever makes a file on purpose can.
func mend(b []byte) {
	for b = b[min(8, len(b)):]; len(b) >= HeaderSize; {
		n := min(int(binary.LittleEndian.Uint32(b[12:])), len(b)-HeaderSize)
		binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[HeaderSize:HeaderSize+n], castagnoli))
		binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:HeaderSize], castagnoli))
		b = b[HeaderSize+n:]
	}
}

// readAll reads a file, and returns what is in it and how far it came.
func readAll(b []byte) (parts []Part, r *Reader, err error) {
	if r, err = NewReader(bytes.NewReader(b)); err != nil {
		return nil, nil, err
	}
	for {
		p, err := r.Next()
		if err == io.EOF {
			return parts, r, nil
		}
		if err != nil {
			return parts, r, err
		}
		p.Body = bytes.Clone(p.Body)
		parts = append(parts, p)
	}
}

// A file may be anything. What is read of it are parts that follow each other, what is taken as whole is exactly what was written, and
// what was cut or damaged is continued behind a part.
func FuzzReader(f *testing.F) {
	all := aFile(f)
	f.Add(all, false)
	f.Add(all[:len(all)-20], true)
	f.Add(append(bytes.Clone(all), all[8:]...), true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, mended bool) {
		b = bytes.Clone(b)
		if mended {
			mend(b)
		}
		parts, r, err := readAll(b)
		var damaged *DamagedError
		if errors.As(err, &damaged) && (damaged.Off > int64(len(b)) || damaged.Off < 0) {
			t.Fatalf("damage at %d of %d bytes", damaged.Off, len(b))
		}
		if err == nil {
			// Whoever writes the same parts gets the same file.
			var again bytes.Buffer
			w := NewWriter(&again)
			raw := AppendStart(nil, r.Heap(), r.SegmentSize())
			for _, p := range parts[:len(parts)-1] {
				raw = Append(raw, p)
			}
			if err := errors.Join(w.Add(raw), w.End()); err != nil || !bytes.Equal(again.Bytes(), b) {
				t.Fatalf("written again: %v, %d bytes of %d", err, again.Len(), len(b))
			}
		}
		w, err := Continue(bytes.NewReader(b), io.Discard)
		if err != nil {
			return
		}
		if w.Offset() > int64(len(b)) {
			t.Fatalf("%d bytes are continued at %d", len(b), w.Offset())
		}
		rest := bytes.NewBuffer(bytes.Clone(b[:w.Offset()]))
		w.w = rest
		if w.n == 0 {
			return
		}
		more := Append(nil, Part{Kind: Checkpoint, Of: 5, Body: []byte("c")})
		more = Append(more, Part{Kind: Root, Of: 5, Body: []byte("r")})
		if err := errors.Join(w.Add(more), w.End()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := readAll(rest.Bytes()); err != nil {
			t.Fatalf("continued at %d of %d bytes: %v", w.Offset(), len(b), err)
		}
	})
}

// A file says where it is wrong, whatever is: a bit anywhere, an end anywhere, parts that are missing or in another order.
func TestDamageIsFound(t *testing.T) {
	all := aFile(t)
	if _, _, err := readAll(all); err != nil {
		t.Fatal(err)
	}
	// Parts from 8 on: the first, three of segments, ...
	var at []int
	for off := 8; off < len(all); off += HeaderSize + int(binary.LittleEndian.Uint32(all[off+12:])) {
		at = append(at, off)
	}
	var damaged *DamagedError
	for wrong := range all {
		b := bytes.Clone(all)
		b[wrong] ^= 0x10
		_, _, err := readAll(b)
		if err == nil {
			t.Errorf("with a wrong bit at byte %d it is taken", wrong)
		}
		if part, _ := slices.BinarySearch(at, wrong+1); part > 0 && (!errors.As(err, &damaged) || damaged.Part != part || damaged.Off != int64(at[part-1])) {
			t.Errorf("with a wrong bit at byte %d, which is of part %d at byte %d: %v", wrong, part, at[part-1], err)
		}
		if _, _, err := readAll(all[:wrong]); !errors.Is(err, ErrCut) {
			t.Errorf("cut at byte %d: %v", wrong, err)
		}
	}
	other := bytes.Clone(all)
	other[at[1]+HeaderSize] ^= 0x10
	if mend(other); !errors.As(func() error { _, _, err := readAll(other); return err }(), &damaged) || damaged.Part != len(at) {
		t.Errorf("with other bytes of a segment, whose own checksums are right: part %d, want the last one, which has the hash of all", damaged.Part)
	}
	without := append(bytes.Clone(all[:at[2]]), all[at[3]:]...)
	if _, _, err := readAll(without); !errors.As(err, &damaged) || damaged.Part != len(at)-1 {
		t.Errorf("without a part: %v", err)
	}
	if b := append(bytes.Clone(all[:at[3]]), all[at[4]:]...); true {
		if _, _, err := readAll(b); err == nil {
			t.Error("without the rest of a segment it is taken")
		}
	}
	newer := bytes.Clone(all)
	newer[0]++
	if _, err := NewReader(bytes.NewReader(newer)); !errors.Is(err, ErrNewer) {
		t.Errorf("a newer one: %v", err)
	}
}

// Of what comes for a file only what follows is written, and an end only behind a root.
func TestOnlyWhatFollowsIsWritten(t *testing.T) {
	var file bytes.Buffer
	w := NewWriter(&file)
	start := AppendStart(nil, 7, 1<<17)
	segment := func(off uint64) []byte {
		return Append(nil, Part{Kind: Segment, Of: 1, Off: off, Body: []byte("four")})
	}
	for _, bad := range [][]byte{segment(0), []byte("nonsense"), start[:20], append(bytes.Clone(start[:39]), 1)} {
		if err := w.Add(bad); err == nil || file.Len() > 0 {
			t.Errorf("%q is written first", bad)
		}
	}
	if err := errors.Join(w.Add(start), w.Add(segment(0))); err != nil {
		t.Fatal(err)
	}
	n := file.Len()
	for what, bad := range map[string][]byte{"what is there": segment(0), "with a gap": segment(8), "an end": AppendEnd(nil, 7, 1, 1, make([]byte, 32))} {
		if err := w.Add(bad); err == nil || file.Len() != n {
			t.Errorf("%s is written", what)
		}
	}
	if err := w.End(); err == nil || file.Len() != n {
		t.Error("it ends without a root")
	}
}
