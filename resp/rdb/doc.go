// Package rdb reads and writes the files in which Redis keeps a data set, as far as they are about strings and
// hashes.
//
// It writes version 9, which Redis reads from version 5 on. It reads versions 1 to 12, the latter of Redis 7.4, in
// every encoding that strings and hashes have had. A [Reader] takes a file as a stream. It holds one string at a
// time, whose memory grows as its bytes come and not by what a length claims; of a hash it gives one field after the
// other. Whatever the bytes are, it ends with an error that says where, or with the end of a file whose checksum is
// right.
//
// # Why not a library
//
// The one that was looked at, github.com/hdt3213/rdb 1.3.0, allocates whatever length the file claims, holds a hash
// as a whole, and checks no checksum.
package rdb

import "hash/crc64"

// Version is the version that is written, and newest the newest that is read.
const (
	Version = 9
	newest  = 12
)

const magic = "REDIS"

// A record that begins with one of these bytes is no key.
const (
	opSlot      = 244
	opFunction  = 245
	opFunction1 = 246 // of a release candidate of Redis 7
	opModuleAux = 247
	opIdle      = 248
	opFreq      = 249
	opAux       = 250
	opResize    = 251
	opExpireMs  = 252
	opExpire    = 253
	opSelect    = 254
	opEOF       = 255
)

// Types of values.
const (
	typeString         = 0
	typeList           = 1
	typeSet            = 2
	typeZSet           = 3
	typeHash           = 4
	typeZSet2          = 5
	typeModule         = 6
	typeModule2        = 7
	typeHashZipmap     = 9
	typeListZiplist    = 10
	typeSetIntset      = 11
	typeZSetZiplist    = 12
	typeHashZiplist    = 13
	typeQuicklist      = 14
	typeStream         = 15
	typeHashListpack   = 16
	typeZSetListpack   = 17
	typeQuicklist2     = 18
	typeStream2        = 19
	typeSetListpack    = 20
	typeStream3        = 21
	typeHashTTL1       = 22 // fields with expiry times, of a release candidate of Redis 7.4
	typeHashListpackT1 = 23
	typeHashTTL        = 24
	typeHashListpackT  = 25
)

// Encodings of strings. A string without an encoding begins with its length.
const (
	encInt8 = iota
	encInt16
	encInt32
	encLZF
)

// jones is the polynomial of Redis's checksum.
var jones = crc64.MakeTable(0x95ac9329ac4bc9b5)

// Sum returns the checksum of some bytes with the checksum crc (0 if there are none), followed by p.
func Sum(crc uint64, p []byte) uint64 { return ^crc64.Update(^crc, jones, p) }
