package farbench

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"math/rand/v2"

	"github.com/klauspost/compress/s2"

	"polder/pages"
)

// program is a program that works on plain memory, in one goroutine.
type program struct {
	name string
	// prepare fills the memory.
	prepare func(mem []byte)
	// run is what is measured. It returns what it has found, which must be the same for
	// each memory.
	run func(mem []byte) uint64
	// check, if not nil, looks at what run has left in the memory.
	check func(mem []byte) error
	// again: run leaves the memory as it was, and can run again without prepare.
	again bool
}

// programs returns programs for size bytes of memory: some read pages in an order, accesses of them in all; the
// others compute.
func programs(size int64, accesses int) (list []program) {
	n := int(size / pages.Size)
	for _, order := range []struct {
		name  string
		pages []uint32
	}{
		{"sequential", pageOrder(accesses, func(_ *rand.Rand, i int) int { return i % n })},
		{"strided", pageOrder(accesses, func(_ *rand.Rand, i int) int { return i * pageStride % n })},
		{"random", pageOrder(accesses, func(r *rand.Rand, _ int) int { return r.IntN(n) })},
		{"Zipf", newZipf(n, 0.99).sequence(accesses, 5)},
	} {
		list = append(list, program{name: order.name, prepare: preparePages, run: func(mem []byte) uint64 { return readPages(mem, order.pages) }, again: true})
	}
	return append(list,
		program{name: "k-means", prepare: preparePoints, run: kmeans, again: true},
		program{name: "quicksort", prepare: prepareWords, check: checkSorted, run: func(mem []byte) uint64 {
			quicksort(words{mem}, 0, words{mem}.len()-1)
			return 0
		}},
		program{name: "snappy", prepare: prepareText, run: compressText, check: checkText},
		program{name: "hash join", prepare: prepareJoin, run: hashJoin})
}

// pageStride is the distance between strided accesses, in pages. It does not divide the number of pages, so the
// accesses come to all of them.
const pageStride = 7

func pageOrder(accesses int, page func(r *rand.Rand, i int) int) []uint32 {
	r, order := rand.New(rand.NewPCG(3, 4)), make([]uint32, accesses)
	for i := range order {
		order[i] = uint32(page(r, i))
	}
	return order
}

// preparePages numbers the pages.
func preparePages(mem []byte) {
	for off := 0; off < len(mem); off += pages.Size {
		binary.LittleEndian.PutUint64(mem[off:], uint64(off)+1)
	}
}

// readPages reads pages in an order, and returns the sum of their words.
func readPages(mem []byte, order []uint32) (sum uint64) {
	for _, page := range order {
		p := mem[int(page)*pages.Size:][:pages.Size]
		for i := 0; i < len(p); i += 8 {
			sum += binary.LittleEndian.Uint64(p[i:])
		}
	}
	return sum
}

// words is memory as numbers.
type words struct{ mem []byte }

func (w words) get(i int) uint64    { return binary.LittleEndian.Uint64(w.mem[8*i:]) }
func (w words) set(i int, v uint64) { binary.LittleEndian.PutUint64(w.mem[8*i:], v) }
func (w words) len() int            { return len(w.mem) / 8 }

// scrambled is number i of a series of numbers that look random and are all different.
func scrambled(i int) uint64 { return bits.ReverseBytes64(uint64(i+1) * 0x9e3779b97f4a7c15) }

func prepareWords(mem []byte) {
	for i := range len(mem) / 8 {
		words{mem}.set(i, scrambled(i))
	}
}

func quicksort(w words, lo, hi int) {
	for hi-lo > 16 {
		a, b, c := w.get(lo), w.get(lo+(hi-lo)/2), w.get(hi)
		pivot := max(min(a, b), min(max(a, b), c))
		i, j := lo, hi
		for i <= j {
			for w.get(i) < pivot {
				i++
			}
			for w.get(j) > pivot {
				j--
			}
			if i <= j {
				x, y := w.get(i), w.get(j)
				w.set(i, y)
				w.set(j, x)
				i++
				j--
			}
		}
		quicksort(w, lo, j)
		lo = i
	}
	for i := lo + 1; i <= hi; i++ {
		v, at := w.get(i), i
		for ; at > lo && w.get(at-1) > v; at-- {
			w.set(at, w.get(at-1))
		}
		w.set(at, v)
	}
}

func checkSorted(mem []byte) error {
	w, last, xor := words{mem}, uint64(0), uint64(0)
	for i := range w.len() {
		v := w.get(i)
		if v < last {
			return fmt.Errorf("number %d is %d, after %d", i, v, last)
		}
		last = v
		xor ^= v ^ scrambled(i)
	}
	if xor != 0 {
		return fmt.Errorf("what is sorted is not what was there before")
	}
	return nil
}

// A point has so many coordinates; k-means has so many centers and rounds.
const (
	coordinates = 8
	centers     = 16
	kmeansTurns = 4
)

func preparePoints(mem []byte) {
	for i := range len(mem) / 8 {
		words{mem}.set(i, math.Float64bits(float64(scrambled(i)>>11)/(1<<53)))
	}
}

// kmeans returns the bits of the centers that it finds.
func kmeans(mem []byte) uint64 {
	w := words{mem}
	n := w.len() / coordinates
	var at [centers][coordinates]float64
	for c := range at {
		for k := range at[c] {
			at[c][k] = math.Float64frombits(w.get(c*(n/centers)*coordinates + k))
		}
	}
	for range kmeansTurns {
		var sum [centers][coordinates]float64
		var count [centers]float64
		for i := range n {
			var p [coordinates]float64
			for k := range p {
				p[k] = math.Float64frombits(w.get(i*coordinates + k))
			}
			nearest, least := 0, math.Inf(1)
			for c := range at {
				d := 0.0
				for k := range p {
					d += (p[k] - at[c][k]) * (p[k] - at[c][k])
				}
				if d < least {
					nearest, least = c, d
				}
			}
			count[nearest]++
			for k := range p {
				sum[nearest][k] += p[k]
			}
		}
		for c := range at {
			for k := range at[c] {
				at[c][k] = sum[c][k] / max(count[c], 1)
			}
		}
	}
	found := uint64(0)
	for c := range at {
		for k := range at[c] {
			found = bits.RotateLeft64(found, 1) ^ math.Float64bits(at[c][k])
		}
	}
	return found
}

// textBytes is how much of the memory is text. The compressed text goes behind it, block by block, with room for each
// block in the worst case.
func textBytes(mem []byte) int { return len(mem) / 9 * 4 / snappyBlock * snappyBlock }

func packedBlock(mem []byte, off int) []byte {
	size := 4 + s2.MaxEncodedLen(snappyBlock)
	at := textBytes(mem) + off/snappyBlock*size
	return mem[at : at+size]
}

// prepareText fills the text with words of 8 bytes, half of which are often used.
func prepareText(mem []byte) {
	r, w := rand.New(rand.NewPCG(8, 9)), words{mem[:textBytes(mem)]}
	for i := range w.len() {
		v := r.Uint64()
		if v&1 == 0 {
			v = scrambled(int(v >> 56))
		}
		w.set(i, v)
	}
}

func compressText(mem []byte) (size uint64) {
	for off := 0; off < textBytes(mem); off += snappyBlock {
		to := packedBlock(mem, off)
		packed := s2.EncodeSnappy(to[4:], mem[off:][:snappyBlock])
		binary.LittleEndian.PutUint32(to, uint32(len(packed)))
		size += uint64(len(packed))
	}
	return size
}

func checkText(mem []byte) error {
	block := make([]byte, snappyBlock)
	for off := 0; off < textBytes(mem); off += snappyBlock {
		from := packedBlock(mem, off)
		got, err := s2.Decode(block, from[4:][:binary.LittleEndian.Uint32(from)])
		if err != nil {
			return fmt.Errorf("the block at %d cannot be decompressed: %w", off, err)
		}
		if crc32.ChecksumIEEE(got) != crc32.ChecksumIEEE(mem[off:][:snappyBlock]) {
			return fmt.Errorf("the block at %d came back from compression as another one", off)
		}
	}
	return nil
}

// joinRow is the size of a row of a table, in bytes: a key and its payload. Half of the memory of a join is a hash
// table, with twice as many slots as the smaller table has rows; the other half is the larger table.
const joinRow = 1 << 10

func joinSlots(mem []byte) int { return 1 << (bits.Len(uint(len(mem)/2/joinRow)) - 1) }

func joinRows(mem []byte, i int) words { return words{mem[i*joinRow:][:joinRow]} }

func prepareJoin(mem []byte) {
	slots := joinSlots(mem)
	clear(mem[:slots*joinRow])
	for i := slots; i < len(mem)/joinRow; i++ {
		joinRows(mem, i).set(0, scrambled(i*7%slots)) // half of these keys are in the smaller table
	}
}

// hashJoin builds the hash table of the smaller table, and returns the sum of the payloads that the keys of the
// larger table have in it.
func hashJoin(mem []byte) (sum uint64) {
	slots := joinSlots(mem)
	slot := func(key uint64) words {
		for at := int(key>>20) & (slots - 1); ; at = (at + 1) & (slots - 1) {
			if row := joinRows(mem, at); row.get(0) == key || row.get(0) == 0 {
				return row
			}
		}
	}
	for i := range slots / 2 {
		key := scrambled(i)
		row := slot(key)
		row.set(0, key)
		for k := 1; k < row.len(); k++ {
			row.set(k, uint64(i)+1)
		}
	}
	for i := slots; i < len(mem)/joinRow; i++ {
		row := slot(joinRows(mem, i).get(0))
		if row.get(0) == 0 {
			continue
		}
		for k := 1; k < row.len(); k++ {
			sum += row.get(k)
		}
	}
	return sum
}
