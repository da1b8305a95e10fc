package arena

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"
)

// A Pagemap tells which pages of this process's memory have content. It is for one
// goroutine at a time.
type Pagemap struct {
	f     *os.File
	words []byte
}

// Bits of a word of the kernel's page map.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
)

// OpenPagemap opens the page map.
func OpenPagemap() (*Pagemap, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, fmt.Errorf("cannot open the page map: %w", err)
	}
	return &Pagemap{f: f}, nil
}

// Touched sets touched[i] to whether page i of mem, which lies in an anonymous
// mapping and begins with a page, has content, be it in memory or swapped out. A page
// that has none reads as zero.
func (p *Pagemap) Touched(mem []byte, touched []bool) error {
	const word = 8
	n := word * len(touched)
	if len(p.words) < n {
		p.words = make([]byte, n)
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(mem))) / uintptr(PageSize)
	if _, err := p.f.ReadAt(p.words[:n], word*int64(first)); err != nil {
		return fmt.Errorf("cannot read the page map: %w", err)
	}
	for i := range touched {
		v := binary.NativeEndian.Uint64(p.words[word*i:])
		touched[i] = v&(pagePresent|pageSwapped) != 0
	}
	return nil
}

// Close closes the page map.
func (p *Pagemap) Close() error { return p.f.Close() }
