package clientmem

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"polder/internal/invariants"
)

func TestBuffersKeepTheirContents(t *testing.T) {
	var b, want []byte
	for i := range 300 {
		p := bytes.Repeat([]byte{byte(i)}, i*13)
		b, want = Append(b, p), append(want, p...)
	}
	if !bytes.Equal(b, want) {
		t.Error("appended bytes are not those that were given")
	}
	b = Grow(b, 2<<20)
	if !bytes.Equal(b, want) || cap(b) < 2<<20 {
		t.Errorf("grown, it has room for %d bytes and other contents", cap(b))
	}
	Free(b)
	Free(nil)
	Free(make([]byte, mapped)) // the heap's
}

// TestLargeBuffersAreGivenBackAtOnce looks at the process's mappings.
func TestLargeBuffersAreGivenBackAtOnce(t *testing.T) {
	mappings := func() int {
		b, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, c := range strings.Fields(string(b))[0] {
			n = n*10 + int(c-'0')
		}
		return n * os.Getpagesize()
	}
	const size = 1 << 30 // never touched
	before := mappings()
	b := Grow(nil, size)
	if got := mappings() - before; got < size {
		t.Errorf("a buffer of %d bytes takes %d of address space", size, got)
	}
	Free(b)
	if got := mappings() - before; got >= size/2 {
		t.Errorf("%d bytes are still mapped", got)
	}
}

// TestSmallBuffersAreUsedAgain has no other goroutine that could take the buffer.
func TestSmallBuffersAreUsedAgain(t *testing.T) {
	in := bytes.Repeat([]byte("x"), 1100)
	if n := testing.AllocsPerRun(1000, func() { Free(Copy(in)) }); n > 0.5 && !invariants.Enabled { // the race detector has pools lose things
		t.Errorf("%v allocations for a buffer that was there", n)
	}
	for size := 1; size < 2*mapped; size = size*3/2 + 1 {
		in := bytes.Repeat([]byte{byte(size)}, size)
		b := Copy(in)
		other := Copy(in)
		if &b[0] == &other[0] {
			t.Fatalf("of %d bytes: two are the same", size)
		}
		Free(other)
		if !bytes.Equal(b, in) {
			t.Fatalf("of %d bytes: the copy is another", size)
		}
		if most := max(2<<10, 2*size); cap(b) > most {
			t.Errorf("of %d bytes: the copy takes %d, want at most %d", size, cap(b), most)
		}
		if b = Grow(b, 3*size); !bytes.Equal(b, in) {
			t.Fatalf("of %d bytes: grown, it is another", size)
		}
		Free(b)
	}
}
