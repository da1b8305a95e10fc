package partition

import "bytes"

// Slots is how many slots Redis Cluster divides the keyspace into.
const Slots = 16384

// MaxPartitions is how many partitions there may be at most.
const MaxPartitions = 1024

// crc16 is the table of CRC-16/XMODEM: polynomial 0x1021, not reflected.
var crc16 = func() (t [256]uint16) {
	for i := range t {
		c := uint16(i) << 8
		for range 8 {
			if c&0x8000 != 0 {
				c = c<<1 ^ 0x1021
			} else {
				c <<= 1
			}
		}
		t[i] = c
	}
	return t
}()

// Slot is the slot of a key, as Redis Cluster's specification says: CRC-16/XMODEM of the hash tag, modulo Slots. The
// hash tag is what stands between the first { and the first } after it. If there is no such pair, or nothing between
// them, it is the whole key.
//
// It is on the path of every command, and does not allocate.
func Slot(key []byte) int {
	if open := bytes.IndexByte(key, '{'); open >= 0 {
		if n := bytes.IndexByte(key[open+1:], '}'); n > 0 {
			key = key[open+1 : open+1+n]
		}
	}
	var c uint16
	for _, b := range key {
		c = c<<8 ^ crc16[byte(c>>8)^b]
	}
	return int(c % Slots)
}

// Of is the partition that a slot belongs to when there are this many partitions.
func Of(slot, partitions int) int { return slot * partitions / Slots }

// Range returns the first and the last slot of partition p when there are this many partitions.
func Range(p, partitions int) (first, last int) {
	from := func(p int) int { return (p*Slots + partitions - 1) / partitions }
	return from(p), from(p+1) - 1
}
