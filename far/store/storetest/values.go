package storetest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// noise is random bytes for values.
var noise = func() []byte {
	b := make([]byte, 1<<20)
	r := rand.New(rand.NewPCG(1, 1))
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
}()

// Value makes n bytes that can be told from those of other seeds.
func Value(seed uint64, n int) []byte {
	off := int(seed * 0x9e3779b97f4a7c15 >> 45) // 19 bits
	if off+n <= len(noise) {
		return noise[off : off+n : off+n]
	}
	b := append([]byte(nil), noise[off:]...)
	for len(b) < n {
		b = append(b, noise...)
	}
	return b[:n]
}

// Key is a key for a number.
func Key(i int) []byte { return fmt.Appendf(nil, "key:%08d", i) }
