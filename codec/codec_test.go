package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

type item struct {
	Name  string
	Count int32
	Tags  []string
}

// order has a field of each kind that a planned type may have.
type order struct {
	ID      uint64
	Open    bool
	_       int16
	Note    string
	Raw     []byte
	Prices  []float64
	Items   []item
	Pairs   [2]item
	Grid    [][]int16
	At      time.Time
	Empty   []struct{}
	private map2
}

type map2 struct{ a, b string }

func drawItem(t *rapid.T) item {
	i := item{Name: rapid.String().Draw(t, "name"), Count: rapid.Int32().Draw(t, "count")}
	if rapid.Bool().Draw(t, "tags") {
		i.Tags = rapid.SliceOfN(rapid.String(), 0, 3).Draw(t, "tags")
	}
	return i
}

func drawOrder(t *rapid.T) order {
	o := order{
		ID: rapid.Uint64().Draw(t, "id"), Open: rapid.Bool().Draw(t, "open"), Note: rapid.String().Draw(t, "note"),
		Pairs:   [2]item{drawItem(t), drawItem(t)},
		At:      time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "s"), rapid.Int64Range(0, 999999999).Draw(t, "ns")).In(time.FixedZone("", 60*rapid.IntRange(-700, 700).Draw(t, "zone"))),
		private: map2{rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")},
	}
	// A nil slice and an empty one are told apart.
	if rapid.Bool().Draw(t, "slices") {
		o.Raw = rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "raw")
		o.Prices = rapid.SliceOfN(rapid.Float64(), 0, 4).Draw(t, "prices")
		o.Grid = rapid.SliceOfN(rapid.SliceOfN(rapid.Int16(), 0, 3), 0, 3).Draw(t, "grid")
		o.Items = []item{}
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			o.Items = append(o.Items, drawItem(t))
		}
		o.Empty = make([]struct{}, rapid.IntRange(0, 1000).Draw(t, "empty"))
	}
	return o
}

func must[T any](c Coder[T], err error) *Coder[T] {
	if err != nil {
		panic(err)
	}
	return &c
}

func TestValuesRoundTrip(t *testing.T) {
	c := must(For[order](nil))
	rapid.Check(t, func(t *rapid.T) {
		o := drawOrder(t)
		b := c.View(&o, nil)
		var got order
		if err := c.Decode(bytes.Clone(b), &got); err != nil {
			t.Fatal(err)
		}
		_, zone := o.At.Zone()
		if !got.At.Equal(o.At) || zone != -60 && got.At.Format(time.RFC3339Nano) != o.At.Format(time.RFC3339Nano) { // -60 has no encoding
			t.Fatalf("got time %v, want %v", got.At, o.At)
		}
		got.At = o.At // their locations are not the same pointer
		if !reflect.DeepEqual(got, o) {
			t.Fatalf("got  %#v\nwant %#v", got, o)
		}
		for n := range b { // what is cut off is no value
			if err := c.Decode(b[:n], new(order)); err == nil {
				t.Fatalf("the first %d of %d bytes are taken for a value", n, len(b))
			}
		}
		if c.Decode(append(b, 0), new(order)) == nil {
			t.Fatal("a value with a byte more is taken for one")
		}
	})
}

// TestWhatIsDecodedKeepsNothingOfTheBytes: they lie in memory that is used again.
func TestWhatIsDecodedKeepsNothingOfTheBytes(t *testing.T) {
	c := must(For[order](nil))
	o := order{Note: "note", Raw: []byte("raw"), Prices: []float64{1}, Items: []item{{Name: "i", Tags: []string{"t"}}}}
	b := bytes.Clone(c.View(&o, nil))
	var got order
	if err := c.Decode(b, &got); err != nil {
		t.Fatal(err)
	}
	clear(b)
	if got.At = o.At; !reflect.DeepEqual(got, o) {
		t.Errorf("got %+v, want %+v", got, o)
	}
	text, raw := must(For[string](nil)), must(For[[]byte](nil))
	in := []byte("word")
	var s string
	var r []byte
	if err := text.Decode(in, &s); err != nil {
		t.Fatal(err)
	}
	if err := raw.Decode(in, &r); err != nil {
		t.Fatal(err)
	}
	clear(in)
	if s != "word" || string(r) != "word" {
		t.Errorf("got %q and %q, want word", s, r)
	}
	in = []byte("word")
	if err := raw.Adopt(in, &r); err != nil || &r[0] != &in[0] {
		t.Error("Adopt has copied")
	}
}

// TestALengthIsBelievedAsFarAsBytesFollow: bytes that are wrong make no slice of a terabyte.
func TestALengthIsBelievedAsFarAsBytesFollow(t *testing.T) {
	long := binary.AppendUvarint(nil, 1<<40)
	for name, err := range map[string]error{
		"numbers": must(For[[]int](nil)).Decode(long, new([]int)),
		"strings": must(For[[]string](nil)).Decode(long, new([]string)),
		"hidden":  must(For[[]struct{ _ string }](nil)).Decode(long, new([]struct{ _ string })),
		"text":    must(For[[1]string](nil)).Decode(long, new([1]string)),
	} {
		if err != errLong {
			t.Errorf("%s: got %v, want %v", name, err, errLong)
		}
	}
}

type key struct {
	A int8
	_ [3]byte
	B int64
	S string
	C [2]struct {
		X uint8
		Y uint16
	}
}

// TestKeysAreEqualIfTheirBytesAre, whatever lies between their fields.
func TestKeysAreEqualIfTheirBytesAre(t *testing.T) {
	c := must(ForKey[key](nil))
	draw := func(t *rapid.T) (k key) {
		for i := range Bytes(&k) { // dirt in the gaps
			if i < 16 || i >= 32 { // not in the string's header
				Bytes(&k)[i] = rapid.Byte().Draw(t, "dirt")
			}
		}
		k.A, k.B = rapid.Int8Range(0, 1).Draw(t, "A"), rapid.Int64Range(0, 1).Draw(t, "B")
		k.S = rapid.StringOfN(rapid.RuneFrom([]rune{0, 'a'}), 0, 2, -1).Draw(t, "S")
		for i := range k.C {
			k.C[i].X, k.C[i].Y = rapid.Uint8Range(0, 1).Draw(t, "X"), rapid.Uint16Range(0, 1).Draw(t, "Y")
		}
		return k
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t), draw(t)
		x, y := c.View(&a, nil), c.View(&b, nil)
		if (a == b) != bytes.Equal(x, y) {
			t.Fatalf("%+v and %+v are equal: %v, their encodings %x and %x", a, b, a == b, x, y)
		}
		var got key
		if err := c.Decode(x, &got); err != nil || got != a {
			t.Fatalf("got %+v, %v, want %+v", got, err, a)
		}
	})
}

func TestHowTypesAreStored(t *testing.T) {
	type plainKey struct{ A, B int32 }
	type padded struct {
		A int8
		B int64
	}
	type named string
	for _, c := range []struct {
		name string
		got  any
		form form
		size int
	}{
		{"int", must(For[int](nil)).shape(), formPlain, 8},
		{"padded value", must(For[padded](nil)).shape(), formPlain, 16},
		{"padded key", must(ForKey[padded](nil)).shape(), formPlanned, 9},
		{"key", must(ForKey[plainKey](nil)).shape(), formPlain, 8},
		{"string", must(For[named](nil)).shape(), formText, -1},
		{"bytes", must(For[[]byte](nil)).shape(), formBytes, -1},
		{"bools", must(For[[]bool](nil)).shape(), formPlanned, -1},
		{"nothing", must(ForKey[struct{}](nil)).shape(), formPlanned, 0},
		{"array of keys", must(ForKey[[3]padded](nil)).shape(), formPlanned, 27},
	} {
		if want := (shape{c.form, c.size}); c.got != want {
			t.Errorf("%s: got %+v, want %+v", c.name, c.got, want)
		}
	}
}

type shape struct {
	form form
	size int
}

func (c *Coder[T]) shape() shape { return shape{c.form, c.size} }

type chain struct {
	Next []chain
}

// TestWhatCannotBeStoredIsNamed, with the field.
func TestWhatCannotBeStoredIsNamed(t *testing.T) {
	type inner struct{ Peers []map[string]int }
	type outer struct {
		Name string
		In   [2]inner
	}
	type withFloat struct{ In struct{ F [2]float64 } }
	errOf := func(_ any, err error) error { return err }
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"map":       {errOf(For[outer](nil)), "outer.In[].Peers[] is of type map[string]int, which holds a Go pointer that the garbage collector would not see; give a Codec"},
		"pointer":   {errOf(For[*int](nil)), "*int holds a Go pointer"},
		"any":       {errOf(For[any](nil)), "interface {} holds a Go pointer"},
		"interface": {errOf(For[struct{ E error }](nil)), ".E is of type error, which holds a Go pointer"},
		"recursion": {errOf(For[chain](nil)), "chain.Next[] is a codec.chain within a codec.chain, which may have no end; give a Codec"},
		"float key": {errOf(ForKey[withFloat](nil)), "withFloat.In.F[] is a float64, which is no key"},
		"time key":  {errOf(ForKey[time.Time](nil)), "time.Time.loc is of type *time.Location"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, c.err, c.want)
		}
	}
	if err := Pointerless(reflect.TypeFor[outer]()); err == nil || !strings.Contains(err.Error(), "field Name of codec.outer is a string") {
		t.Errorf("got %v", err)
	}
}

// upper is a Codec of a type that has no other way to be stored.
type upper struct{}

func (upper) Append(b []byte, v *string) []byte { return append(b, strings.ToUpper(*v)...) }

func (upper) Decode(b []byte) (*string, error) {
	if s := string(b); s != "BAD" {
		return &s, nil
	}
	return nil, fmt.Errorf("it is bad")
}

func TestACodecStoresAnything(t *testing.T) {
	c := must(For[*string](upper{}))
	word := "word"
	in := &word
	var out *string
	if err := c.Decode(c.View(&in, nil), &out); err != nil || *out != "WORD" {
		t.Errorf("got %v, %v", out, err)
	}
	if err := c.Decode([]byte("BAD"), &out); err == nil {
		t.Error("its error is not passed on")
	}
}

// TestKeysMakeNoGarbage, nor do values in place.
func TestKeysMakeNoGarbage(t *testing.T) {
	c, v := must(ForKey[key](nil)), must(For[[4]int](nil))
	n, stored := 0, make([]byte, 32)
	if got := testing.AllocsPerRun(100, func() {
		var small [128]byte
		k := key{A: 1, S: "text"}
		k.B = int64(n)
		n += len(c.View(&k, small[:0]))
		x := [4]int{n}
		n += len(v.View(&x, nil))
		if err := v.Decode(stored, &x); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("got %v allocations, want none", got)
	}
}

// FuzzDecode: no bytes make Decode panic or take memory out of proportion, and what is a
// value is encoded to the same value again.
func FuzzDecode(f *testing.F) {
	c := must(For[order](nil))
	for _, o := range []order{{}, {Note: "n", Raw: []byte{1}, Items: []item{{Tags: []string{"a", ""}}}, Empty: make([]struct{}, 1<<40), Grid: [][]int16{nil, {}}}} {
		f.Add(c.View(&o, nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var o, again order
		if c.Decode(b, &o) != nil {
			return
		}
		first := c.View(&o, nil)
		if err := c.Decode(first, &again); err != nil {
			t.Fatalf("%v: its own encoding: %x", err, first)
		}
		if second := c.View(&again, nil); !bytes.Equal(first, second) {
			t.Fatalf("got %x, then %x", first, second)
		}
	})
}

// TestAValueInPlaceIsWhatItsBytesSay: one that is not aligned, has another length, or is encoded, is not to be had in place.
func TestAValueInPlaceIsWhatItsBytesSay(t *testing.T) {
	pair, text, raw, planned := coderOf[[2]uint64](t), coderOf[string](t), coderOf[[]byte](t), coderOf[[]string](t)
	mem := [4]uint64{1, 2, 3, 4}
	b := Bytes(&mem)
	if v, ok := pair.InPlace(b[8:24]); !ok || *v != [2]uint64{2, 3} || &v[0] != &mem[1] {
		t.Errorf("a pair is %v, %v, want the one in place", v, ok)
	}
	for _, off := range []int{1, 2, 4} {
		if _, ok := pair.InPlace(b[off : off+16]); ok {
			t.Errorf("a pair is used at an address that is %d behind one that is aligned", off)
		}
	}
	if _, ok := pair.InPlace(b[:8]); ok {
		t.Error("a half is used as a pair")
	}
	word := []byte("word")
	if v, ok := text.InPlace(word); !ok || *v != "word" {
		t.Errorf("a string is %v, %v", v, ok)
	}
	if v, ok := raw.InPlace(word); !ok || string(*v) != "word" || &(*v)[0] != &word[0] {
		t.Errorf("a byte slice is %v, %v, want the one in place", v, ok)
	}
	if _, ok := planned.InPlace(planned.View(&[]string{"a"}, nil)); ok {
		t.Error("what is encoded is used in place")
	}
	if _, ok := coderOf[struct{}](t).InPlace(nil); ok {
		t.Error("nothing is used in place")
	}
}

func coderOf[T any](t *testing.T) *Coder[T] {
	t.Helper()
	c, err := For[T](nil)
	if err != nil {
		t.Fatal(err)
	}
	return &c
}
