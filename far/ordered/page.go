package ordered

import (
	"bytes"
	"encoding/binary"

	"polder/codec"
	"polder/far"
)

// page is a page of the tree: records in the order of their keys. The offsets of the records grow from the front of
// body, and the records from its end. A record is the lengths of key and value, 2 bytes each, key and value. In a
// leaf the values are the map's. In an inner page each value is a child, and its key is a bound: not above any key
// below the child, and above all keys below the child before it. The key of the first child is empty: below that
// child are all keys of the page that are below the second key. The zero page is an empty leaf.
type page struct {
	level   uint16 // above the leaves, which are 0
	n       uint16 // records
	records uint16 // bytes from the first record to the end of body
	dead    uint16 // bytes among these of records that were removed
	body    [bodySize]byte
}

const (
	// bodySize makes the far record of a page, with its header, one of 2 KiB, a size
	// that far words tell exactly.
	bodySize = 2<<10 - 32 - 8

	perRecord = 2 + 4        // bytes of a record beside key and value
	perChild  = 16           // bytes of a child
	mostSize  = bodySize / 4 // bytes of a record, so that one fits into half a page
	maxKey    = mostSize - perRecord - perChild
	maxRecord = mostSize - perRecord // key and value
)

// child is what an inner page keeps of a page below it.
type child struct {
	ref   far.Ref[page]
	count uint64 // keys below it
}

// cost is what a record takes of a page.
func cost(key, value []byte) int { return perRecord + len(key) + len(value) }

// used is the bytes that the records of p take.
func (p *page) used() int { return 2*int(p.n) + int(p.records) - int(p.dead) }

// at returns the key and the value of record i, which are parts of body.
func (p *page) at(i int) (key, value []byte) {
	b := p.body[binary.LittleEndian.Uint16(p.body[2*i:]):]
	k := 4 + int(binary.LittleEndian.Uint16(b))
	v := k + int(binary.LittleEndian.Uint16(b[2:]))
	return b[4:k:k], b[k:v:v]
}

func (p *page) key(i int) []byte {
	k, _ := p.at(i)
	return k
}

// search returns the first record whose key is not less than key, p.n if there is none, and whether its key is equal
// to key.
func (p *page) search(key []byte) (i int, found bool) {
	j := int(p.n)
	for i < j {
		m := int(uint(i+j) / 2)
		switch c := bytes.Compare(p.key(m), key); {
		case c == 0:
			return m, true
		case c < 0:
			i = m + 1
		default:
			j = m
		}
	}
	return i, false
}

// below returns which child leads to key or, with before set, to the last key that is less than key.
func (p *page) below(key []byte, before bool) int {
	i, found := p.search(key)
	if found && !before {
		return i
	}
	return max(i-1, 0)
}

// insert makes key and value record i.
//
// Preconditions: p has room for it.
func (p *page) insert(i int, key, value []byte) {
	if 2*int(p.n)+int(p.records)+cost(key, value) > bodySize {
		p.compact()
	}
	p.records += uint16(4 + len(key) + len(value))
	at := bodySize - int(p.records)
	b := p.body[at:]
	binary.LittleEndian.PutUint16(b, uint16(len(key)))
	binary.LittleEndian.PutUint16(b[2:], uint16(len(value)))
	copy(b[4+copy(b[4:], key):], value)
	copy(p.body[2*i+2:], p.body[2*i:2*p.n])
	binary.LittleEndian.PutUint16(p.body[2*i:], uint16(at))
	p.n++
}

// remove removes record i.
func (p *page) remove(i int) {
	key, value := p.at(i)
	p.dead += uint16(4 + len(key) + len(value))
	copy(p.body[2*i:], p.body[2*i+2:2*p.n])
	if p.n--; p.n == 0 {
		p.records, p.dead = 0, 0
	}
}

// compact gives up the room of removed records.
func (p *page) compact() {
	old := *p
	p.n, p.records, p.dead = 0, 0, 0
	for i := range int(old.n) {
		key, value := old.at(i)
		p.insert(i, key, value)
	}
}

// moveTo moves the records from i on to the end of to, which has room for them.
func (p *page) moveTo(to *page, i int) {
	for j := i; j < int(p.n); j++ {
		key, value := p.at(j)
		to.insert(int(to.n), key, value)
	}
	for int(p.n) > i {
		p.remove(int(p.n) - 1)
	}
}

// middle is the number of records in the first half of p, by their bytes.
func (p *page) middle() int {
	n, i := 0, 0
	for ; n < p.used()/2; i++ {
		key, value := p.at(i)
		n += cost(key, value)
	}
	return i
}

// child returns child i of an inner page.
func (p *page) child(i int) (c child) {
	_, value := p.at(i)
	copy(codec.Bytes(&c), value)
	return c
}

// setChild makes c child i of an inner page.
func (p *page) setChild(i int, c child) {
	_, value := p.at(i)
	copy(value, codec.Bytes(&c))
}

// bareFirst makes the key of the first child empty.
func (p *page) bareFirst() {
	c := p.child(0)
	p.remove(0)
	p.insert(0, nil, codec.Bytes(&c))
}

// addTo adds n to the count of child i.
func (p *page) addTo(i, n int) {
	c := p.child(i)
	c.count += uint64(n)
	p.setChild(i, c)
}

// keys is how many keys there are in p, or below it.
func (p *page) keys() int {
	if p.level == 0 {
		return int(p.n)
	}
	n := uint64(0)
	for i := range int(p.n) {
		n += p.child(i).count
	}
	return int(n)
}
