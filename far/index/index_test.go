package index

import (
	"bytes"
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
		b := make([]byte, Size(len(slots)))
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

// What has come from far memory may be anything.
func FuzzOpen(f *testing.F) {
	k := NewKey(NewSecret())
	good := make([]byte, Size(2))
	k.Seal(good, []Slot{{1, 2}, {3, 4}}, 7, 64)
	f.Add(good, uint64(7), 64)
	f.Add([]byte{}, uint64(0), 0)
	f.Add(make([]byte, 16), uint64(7), 64)
	f.Fuzz(func(t *testing.T, b []byte, position uint64, off int) {
		if l, err := k.Open(b, position, off); err == nil && !bytes.Equal(l, good) {
			t.Fatalf("%x was never sealed, and is taken", b)
		}
	})
}
