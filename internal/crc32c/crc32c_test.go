package crc32c

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

func randomBytes(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Whatever the length, the alignment and what came before, it is what hash/crc32
// says.
func TestUpdateIsThatOfHashCRC32(t *testing.T) {
	b := randomBytes(3000)
	for n := range len(b) - 64 {
		p := b[n%64:][:n]
		before := uint32(n) * 0x9e3779b9
		if got, want := Update(before, p), crc32.Update(before, table, p); got != want {
			t.Fatalf("%d bytes: got %08x, want %08x", n, got, want)
		}
	}
	if got := Checksum([]byte("123456789")); got != 0xe3069283 {
		t.Errorf("the check value is %08x, want e3069283", got)
	}
}

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), []byte("a"), uint8(3))
	f.Add(^uint32(0), make([]byte, 700), uint8(9))
	f.Fuzz(func(t *testing.T, before uint32, p []byte, repeat uint8) {
		var b []byte
		for range int(repeat) + 1 {
			b = append(b, p...)
		}
		if got, want := Update(before, b), crc32.Update(before, table, b); got != want {
			t.Errorf("%d bytes: got %08x, want %08x", len(b), got, want)
		}
	})
}

func TestUpdateDoesNotAllocate(t *testing.T) {
	b := randomBytes(4096)
	if n := testing.AllocsPerRun(100, func() { Update(1, b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{256, 512, 1024, 4096, 64 << 10} {
		p := randomBytes(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				Update(0, p)
			}
		})
		b.Run(fmt.Sprint(n, " hash/crc32"), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				crc32.Update(0, table, p)
			}
		})
	}
}
