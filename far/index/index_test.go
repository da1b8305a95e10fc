package index

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A leaf says what it was given, and nothing that was changed or lay elsewhere passes for one.
func TestALeafIsThatOfItsPlaceOrRefused(t *testing.T) {
	k := NewKey(NewSecret())
	rapid.Check(t, func(rt *rapid.T) {
		slots := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) Slot {
			return Slot{Word(rapid.Uint64().Draw(rt, "word")), rapid.Uint32Range(0, 50).Draw(rt, "tag")}
		}), 0, 60).Draw(rt, "slots")
		slices.SortStableFunc(slots, func(a, b Slot) int { return int(a.Tag) - int(b.Tag) })
		b := make([]byte, Size(slots))
		k.Seal(b, slots, 7, 4096)
		l, err := k.Open(b, 7, 4096)
		if err != nil {
			rt.Fatal(err)
		}
		if l.Len() != len(slots) {
			rt.Fatalf("%d slots, want %d", l.Len(), len(slots))
		}
		for i, s := range slots {
			if l.At(i) != s {
				rt.Fatalf("slot %d is %v, want %v", i, l.At(i), s)
			}
		}
		tag := rapid.Uint32Range(0, 51).Draw(rt, "find")
		if got, want := l.Find(tag), slices.IndexFunc(slots, func(s Slot) bool { return s.Tag >= tag }); got != want && (want >= 0 || got != len(slots)) {
			rt.Fatalf("found tag %d at %d, want %d", tag, got, want)
		}
		other := bytes.Clone(b)
		other[rapid.IntRange(0, len(b)-1).Draw(rt, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		for what, err := range map[string]error{
			"changed":          second(k.Open(other, 7, 4096)),
			"of another place": second(k.Open(b, 7, 4112)),
			"of another life":  second(k.Open(b, 8, 4096)),
			"of another key":   second(NewKey(NewSecret()).Open(b, 7, 4096)),
			"cut short":        second(k.Open(b[:len(b)-1], 7, 4096)),
		} {
			if err == nil {
				rt.Errorf("a leaf that is %s is taken", what)
			}
		}
	})
}

func second(_ Leaf, err error) error { return err }

// However often a directory is doubled, its ranges are all tags, each once, and refer to what they did before.
func TestADirectoryThatIsDoubledRefersToTheSameLeaves(t *testing.T) {
	var d Dir
	defer d.Close()
	if err := d.Double(); err != nil {
		t.Fatal(err)
	}
	for i := range d.Len() {
		if i%3 != 0 {
			d.Set(i, NewRef(uint64(1000+i), 20).WithCount(i))
		}
	}
	for range 7 {
		was := make([]Ref, d.Len())
		for i := range was {
			was[i] = d.At(i)
		}
		if err := d.Double(); err != nil {
			t.Fatal(err)
		}
		if d.Len() != 2*len(was) {
			t.Fatalf("%d ranges, want %d", d.Len(), 2*len(was))
		}
		var next uint64
		for i := range d.Len() {
			r, old := d.At(i), was[i/2]
			if lo, hi := d.Range(i); lo != next || hi <= lo || d.Of(uint32(lo)) != i || d.Of(uint32(hi-1)) != i {
				t.Fatalf("range %d is from %#x to %#x, want it from %#x", i, lo, hi, next)
			} else {
				next = hi
			}
			first, n := d.Group(i)
			switch {
			case old == 0 && (r != 0 || n != 1):
				t.Fatalf("range %d is %#x, want none", i, r)
			case old != 0 && (r.Addr() != old.Addr() || r.Class() != old.Class() || first != i&^1 || n != 2 ||
				d.At(first).Count()+d.At(first+1).Count() != old.Count()):
				t.Fatalf("range %d is %#x, want the leaf of %#x, shared", i, r, old)
			}
		}
		if next != 1<<32 {
			t.Fatalf("the ranges end at %#x", next)
		}
		for i := range d.Len() {
			if r := d.At(i); r != 0 {
				d.Set(i, NewRef(r.Addr(), r.Class()).WithCount(r.Count()))
			}
		}
	}
}

// The format is written down in the package's comment, and nobody changes it unawares: another one needs another version of
// the root (package record), without which whoever has this one would take leaves for what they are not.
func TestTheFormatIsWhatItWas(t *testing.T) {
	slots := []Slot{{NewWord(0x12345, 112, Far), 0x87654321}, {NewWord(0x6789a, 112, Far), 0x87654399}, {NewWord(0x1b, 4096, Far|TTL), 0x87655000}}
	b := make([]byte, Size(slots))
	Leaf(b).fill(slots)
	if got, want := hex.EncodeToString(b), "00000000000000000000000000000000214365870710000a03000c13008007df0c4523d1c4f306000000007023"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What has come from far memory may be anything.
func FuzzOpen(f *testing.F) {
	k := NewKey(NewSecret())
	slots := []Slot{{1, 2}, {3, 4}}
	good := make([]byte, Size(slots))
	k.Seal(good, slots, 7, 64)
	f.Add(good, uint64(7), 64)
	f.Add([]byte{}, uint64(0), 0)
	f.Add(make([]byte, 16), uint64(7), 64)
	f.Fuzz(func(t *testing.T, b []byte, position uint64, off int) {
		if l, err := k.Open(b, position, off); err == nil && !bytes.Equal(l, good) {
			t.Fatalf("%x was never sealed, and is taken", b)
		}
	})
}

// Whoever has no key reads of anything only what is there.
func FuzzUnchecked(f *testing.F) {
	for _, slots := range [][]Slot{nil, {{1, 2}}, {{1, 2}, {3, 4}, {Far | 1<<40 | 1<<39, 1<<32 - 1}}} {
		b := make([]byte, Size(slots))
		Leaf(b).fill(slots)
		f.Add(b, uint32(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, tag uint32) {
		l, ok := Unchecked(b)
		if !ok {
			return
		}
		if i := l.Find(tag); i < 0 || i > l.Len() {
			t.Fatalf("found at %d of %d", i, l.Len())
		}
		for i := range l.Len() {
			l.At(i)
		}
	})
}

// What a leaf takes is what decides how much is moved for an index that is far.
func TestALeafTakesAFewBytesForEachSlot(t *testing.T) {
	var slots []Slot
	for i := range uint64(Most) {
		slots = append(slots, Slot{NewWord(i*104729%(1<<26), 112, Far), uint32(7<<21 + i<<15)})
	}
	if got, want := Size(slots), headSize+Most*6; got > want {
		t.Errorf("a leaf of %d entries of one size takes %d bytes, want %d at the most", Most, got, want)
	}
	slots[3].Word |= TTL
	slots[4].Word = NewWord(5, 4096, Far)
	if got, want := Size(slots), headSize+Most*15/2; got > want {
		t.Errorf("a leaf of %d entries of several sizes takes %d bytes, want %d at the most", Most, got, want)
	}
}
