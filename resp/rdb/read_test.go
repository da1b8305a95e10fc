package rdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// builder writes what Redis of any version could have written.
type builder struct{ b []byte }

func build(version int) *builder { return &builder{fmt.Appendf(nil, "REDIS%04d", version)} }

func (f *builder) raw(parts ...any) *builder {
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			f.b = append(f.b, byte(p))
		case string:
			f.b = AppendString(f.b, p)
		case []byte:
			f.b = append(f.b, p...)
		}
	}
	return f
}

func (f *builder) end() []byte { return AppendEnd(f.b, Sum(0, f.b)) }

// blob is a string whose bytes are these.
func blob(b []byte) string { return string(b) }

func ziplist(entries ...[]byte) string {
	b := make([]byte, ziplistHead)
	before := 0
	for _, e := range entries {
		at := len(b)
		if before < 254 {
			b = append(b, byte(before))
		} else {
			b = binary.LittleEndian.AppendUint32(append(b, 254), uint32(before))
		}
		binary.LittleEndian.PutUint32(b[4:], uint32(at))
		b = append(b, e...)
		before = len(b) - at
	}
	b = append(b, 255)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	binary.LittleEndian.PutUint16(b[8:], uint16(len(entries)))
	return blob(b)
}

func listpack(entries ...[]byte) string {
	b := make([]byte, listpackHead)
	for _, e := range entries {
		b = append(b, e...)
		switch n := len(e); { // backwards, seven bits each
		case n < 1<<7:
			b = append(b, byte(n))
		default:
			b = append(b, byte(n>>7), byte(n&127)|128)
		}
	}
	b = append(b, 255)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	binary.LittleEndian.PutUint16(b[4:], uint16(len(entries)))
	return blob(b)
}

func text(head []byte, s string) []byte { return append(head, s...) }

// old is a file with every encoding that strings and hashes have had, and what is in it.
func old() (file []byte, want []string) {
	f := build(8)
	add := func(typ int, key string, text string, parts ...any) {
		f.raw(typ, key).raw(parts...)
		want = append(want, key+" "+text)
	}
	f.raw(opAux, "redis-ver", "4.0.14").raw(opSelect, 0, opResize, 14, 2)
	add(typeString, "plain", "hello", "hello")
	add(typeString, "int8", "-7", 0xc0, 0xf9)
	add(typeString, "int16", "-30000", 0xc1, []byte{0xd0, 0x8a})
	add(typeString, "int32", "-2000000000", 0xc2, []byte{0x00, 0x6c, 0xca, 0x88})
	add(typeString, "lzf", strings.Repeat("a", 100), 0xc3, 5, []byte{0x40, 100}, []byte{0, 'a', 0xe0, 90, 0})
	add(typeString, "long", strings.Repeat("b", 20_000), 0x80, []byte{0, 0, 0x4e, 0x20}, []byte(strings.Repeat("b", 20_000)))
	f.raw(opExpire, []byte{0xff, 0xff, 0xff, 0x7f})
	add(typeString, "seconds", "x until 2147483647000", "x")
	f.raw(opIdle, 17, opExpireMs, []byte{0xff, 0x3f, 0x07, 0x0e, 0x18, 0x09, 0, 0})
	add(typeString, "milliseconds", "y until 9998919221247", "y")
	f.raw(opFreq, 200)
	add(typeHash, "hash", "a=1 b=-7", 2, "a", "1", "b", 0xc0, 0xf9)
	long := strings.Repeat("l", 300)
	add(typeHashZiplist, "ziplist", "f=0 "+long+"=12 i8=-100 i16=-300 i24=-70000 i32=-20000000 i64=-20000000000 big="+strings.Repeat("c", 17_000),
		ziplist(text([]byte{1}, "f"), []byte{0xf1}, text([]byte{0x41, 0x2c}, long), []byte{0xfd},
			text([]byte{2}, "i8"), []byte{0xfe, 0x9c}, text([]byte{3}, "i16"), []byte{0xc0, 0xd4, 0xfe},
			text([]byte{3}, "i24"), []byte{0xf0, 0x90, 0xee, 0xfe}, text([]byte{3}, "i32"), []byte{0xd0, 0x00, 0xd3, 0xce, 0xfe},
			text([]byte{3}, "i64"), []byte{0xe0, 0x00, 0x38, 0xe8, 0x57, 0xfb, 0xff, 0xff, 0xff},
			text([]byte{3}, "big"), text([]byte{0x80, 0, 0, 0x42, 0x68}, strings.Repeat("c", 17_000))))
	add(typeHashZipmap, "zipmap", "a=12 "+long+"=x",
		blob(slices.Concat([]byte{2, 1, 'a', 2, 3, '1', '2', 0, 0, 0, 254}, []byte{0x2c, 1, 0, 0}, []byte(long), []byte{1, 0, 'x', 255})))
	return f.end(), want
}

// packed is a file with every encoding in a listpack.
func packed() (file []byte, want []string) {
	long := strings.Repeat("l", 200)
	f := build(10).raw(opSelect, 0, typeHashListpack, "listpack",
		listpack(text([]byte{0x81}, "f"), []byte{127}, text([]byte{0x83}, "i13"), []byte{0xdf, 0x9c}, text([]byte{0x83}, "i16"), []byte{0xf1, 0xd0, 0x8a},
			text([]byte{0x83}, "i24"), []byte{0xf2, 0x90, 0xee, 0xfe}, text([]byte{0x83}, "i32"), []byte{0xf3, 0x00, 0xd3, 0xce, 0xfe},
			text([]byte{0x83}, "i64"), []byte{0xf4, 0x00, 0x38, 0xe8, 0x57, 0xfb, 0xff, 0xff, 0xff},
			text([]byte{0xe0, 200}, long), text([]byte{0xf0, 0x88, 0x13, 0, 0}, strings.Repeat("d", 5000))))
	return f.end(), []string{"listpack f=127 i13=-100 i16=-30000 i24=-70000 i32=-20000000 i64=-20000000000 " + long + "=" + strings.Repeat("d", 5000)}
}

// read is all that is in a file.
func read(file []byte) (all []string, err error) {
	r := NewReader(bytes.NewReader(file))
	for {
		k, err := r.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		text := string(k.Name)
		switch k.Kind {
		case String:
			v, err := r.Value(nil)
			if err != nil {
				return all, err
			}
			text += " " + string(v)
		case Hash:
			if err := r.Fields(func(f, v []byte) error { text += fmt.Sprintf(" %s=%s", f, v); return nil }); err != nil {
				return all, err
			}
		default:
			text += " " + k.Type
		}
		if !k.Expire.IsZero() {
			text += fmt.Sprint(" until ", k.Expire.UnixMilli())
		}
		all = append(all, text)
	}
}

func check(t *testing.T, file []byte, want []string) {
	t.Helper()
	got, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("key %d of the file: got %.300q, want %.300q", i, got[min(i, len(got)):], want[min(i, len(want)):])
		}
	}
}

func TestEveryEncodingIsRead(t *testing.T) {
	file, want := old()
	check(t, file, want)
	file, want = packed()
	check(t, file, want)
}

// The files in testdata are for the test of package resp that has Redis read them, too.
func TestTheFilesAreThoseOfTheTests(t *testing.T) {
	for name, made := range map[string]func() ([]byte, []string){"old.rdb": old, "packed.rdb": packed} {
		want, _ := made()
		name = "testdata/" + name
		if os.Getenv("POLDER_WRITE_TESTDATA") != "" {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the test makes (POLDER_WRITE_TESTDATA=1 writes it): %v", name, err)
		}
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	at := time.UnixMilli(1_900_000_000_123)
	var lengths []string
	b := AppendStart(nil, "7.0.15", at, 4)
	for _, n := range []int{0, 63, 64, 16383, 16384, 100_000} {
		v := strings.Repeat("x", n)
		b = AppendString(AppendStringKey(b, fmt.Append(nil, n), time.Time{}), v)
		lengths = append(lengths, fmt.Sprint(n, " ", v))
	}
	b = AppendHashKey(b, []byte("h"), at)
	PutHashLen(b[len(b)-HashLen:], 1)
	b = AppendString(AppendString(b, "f"), "v")
	check(t, AppendEnd(b, Sum(0, b)), append(lengths, "h f=v until 1900000000123"))
}

// What is neither a string nor a hash is skipped to where it ends.
func TestOtherTypesAreSkipped(t *testing.T) {
	id := make([]byte, 16)
	ms := make([]byte, 8)
	stream := func(about int, group ...any) []any {
		parts := []any{1, "node", "listpack"}
		for range about {
			parts = append(parts, 1)
		}
		return append(parts, group...)
	}
	for _, c := range []struct {
		typ   int
		name  string
		parts []any
	}{
		{typeList, "list", []any{2, "a", 0xc0, 1}},
		{typeSet, "set", []any{1, 0xc3, 5, []byte{0x40, 100}, []byte{0, 'a', 0xe0, 90, 0}}},
		{typeZSet, "sorted set", []any{3, "a", "1.5", "b", 253, "c", 255}},
		{typeZSet2, "sorted set", []any{1, "a", ms}},
		{typeSetIntset, "set", []any{"intset"}},
		{typeZSetListpack, "sorted set", []any{"listpack"}},
		{typeQuicklist, "list", []any{2, "a", "b"}},
		{typeQuicklist2, "list", []any{2, 1, "a", 2, "b"}},
		{typeStream, "stream", stream(3, 1, "group", 1, 2, 1, id, ms, 1, 1, "consumer", ms, 1, id)},
		{typeStream2, "stream", stream(8, 1, "group", 1, 2, 3, 0, 1, "consumer", ms, 0)},
		{typeStream3, "stream", stream(8, 1, "group", 1, 2, 3, 0, 1, "consumer", ms, ms, 1, id)},
		{typeModule2, "value of a module", []any{5, 1, 9, 2, 9, 3, []byte("flot"), 4, ms, 5, "text", 0}},
		{typeHashTTL, "hash whose fields expire", []any{ms, 1, 0, "f", "v"}},
		{typeHashListpackT, "hash whose fields expire", []any{ms, "listpack"}},
	} {
		f := build(12).raw(opFunction, "a library", opModuleAux, 1, 2, 2, 5, "text", 0, opSlot, 1, 2, 3)
		f.raw(c.typ, "other").raw(c.parts...).raw(typeString, "after", "it")
		got, err := read(f.end())
		if want := []string{"other " + c.name, "after it"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("type %d: got %q, %v, want %q", c.typ, got, err, want)
		}
	}
}

func TestWhatIsWrongWithAFileIsSaid(t *testing.T) {
	good, _ := old()
	damaged := slices.Clone(good)
	damaged[len(damaged)/2] ^= 1
	for _, c := range []struct {
		name string
		file []byte
		want error
		text string
	}{
		{"nothing", nil, ErrNotRDB, ""},
		{"text", []byte("*3\r\n$3\r\nSET"), ErrNotRDB, ""},
		{"no version", []byte("REDISabcd"), ErrNotRDB, ""},
		{"newer", build(13).end(), ErrNewer, "13, and up to 12 are read"},
		{"damaged", damaged, ErrChecksum, ""},
		{"no end", good[:len(good)-9], ErrShort, ""},
		{"more", append(slices.Clone(good), '*'), nil, "more follows the end"},
		{"too long", build(9).raw(typeString, "k", 0x81, []byte{255, 255, 255, 255, 255, 255, 255, 255}).end(), nil, "at most 536870912"},
		{"grows too much", build(9).raw(typeString, "k", 0xc3, 1, 0x80, []byte{1, 0, 0, 0}, 0).end(), nil, "cannot be"},
		{"unknown type", build(9).raw(99, "k").end(), nil, "unknown"},
		{"an old module", build(9).raw(typeModule, "k", 1).end(), nil, "module"},
		{"an odd list", build(9).raw(typeHashListpack, "k", listpack([]byte{1})).end(), nil, `key "k"`},
	} {
		_, err := read(c.file)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got the error %v, want %v %q", c.name, err, c.want, c.text)
		}
	}
	for n := range len(good) - 1 {
		if n > 300 && n < len(good)-300 && n%97 != 0 {
			continue
		}
		if _, err := read(good[:n]); !errors.Is(err, ErrShort) && !errors.Is(err, ErrNotRDB) {
			t.Fatalf("%d of %d bytes: got the error %v, want ErrShort", n, len(good), err)
		}
	}
	// Redis writes no checksum if it is told so.
	if _, err := read(append(good[:len(good)-8:len(good)-8], make([]byte, 8)...)); err != nil {
		t.Errorf("without a checksum: %v", err)
	}
}

// A file is believed as far as bytes follow.
func TestALengthCostsNoMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		file := build(9).raw(typeString, "k", 0x80, []byte{0x1f, 0xff, 0xff, 0xff}, "short").b
		if _, err := read(file); !errors.Is(err, ErrShort) {
			t.Fatalf("got %v, want ErrShort", err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 10<<20 {
		t.Errorf("10 files with a length of 512 MiB each and nothing behind it took %d bytes, want less than 10 MiB", n)
	}
}

func FuzzReader(f *testing.F) {
	for _, made := range []func() ([]byte, []string){old, packed} {
		b, _ := made()
		f.Add(b)
	}
	f.Add(build(12).raw(typeStream3, "s", 1, "n", "l", 1, 1, 1, 1, 1, 1, 1, 1, 0, typeHashTTL, "h", make([]byte, 8), 1, 0, "f", "v", typeModule2, "m", 5, 1, 9, 0).end())
	f.Add(build(9).raw(typeString, "k", 0xc3, 5, 0x40, 100, []byte{0, 'a', 0xe0, 90, 0}).end())
	f.Fuzz(func(t *testing.T, file []byte) {
		got, err := read(file)
		size := 0
		for _, s := range got {
			size += len(s)
		}
		if size > lzfMost*len(file)+64*len(got)+1<<10 && err == nil {
			t.Errorf("%d bytes are said to hold %d", len(file), size)
		}
	})
}
