package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"polder/verbs/softnic"
)

// Both ends send a hello of 32 bytes as soon as they are connected, and read
// the other's before anything else:
//
//	 0  8 bytes  "polderTC"
//	 8  u32      version
//	12  u32      reserved, 0
//	16  u64      features
//	24  u16      most KiB of payload in one packet
//	26  u16      most READs and atomics outstanding on one queue pair
//	28  u32      CRC32C of bytes 0 to 28
//
// The magic and the version keep their places in every version to come. The
// limits are what an end accepts; one that accepts less than the other may send
// is refused. The connection uses the features that both have.
const (
	helloSize  = 32
	helloMagic = "polderTC"

	protocolVersion = 1
)

// featureGuest: a listener with it accepts peers with it that want something other than queue pairs. They decide what
// follows the hellos.
const featureGuest = 1

// ourHello is what this end says, but for features.
var ourHello = hello{version: protocolVersion, mtu: softnic.MaxPayload, maxRdAtm: softnic.MaxRdAtom}

// What is wrong with a peer's hello.
var (
	errNotPolder     = errors.New("peer does not speak this protocol")
	errVersion       = errors.New("peer speaks another version")
	errHelloChecksum = errors.New("hello fails its checksum")
	errHelloLimits   = errors.New("peer accepts too little")
)

// hello is what the ends tell each other first.
type hello struct {
	version  uint32
	features uint64
	mtu      int // bytes; a multiple of 1 KiB
	maxRdAtm int
}

func (h hello) encode() [helloSize]byte {
	var b [helloSize]byte
	copy(b[:], helloMagic)
	binary.LittleEndian.PutUint32(b[8:], h.version)
	binary.LittleEndian.PutUint64(b[16:], h.features)
	binary.LittleEndian.PutUint16(b[24:], uint16(h.mtu>>10))
	binary.LittleEndian.PutUint16(b[26:], uint16(h.maxRdAtm))
	binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
	return b
}

func decodeHello(b *[helloSize]byte) (hello, error) {
	if string(b[:8]) != helloMagic {
		return hello{}, fmt.Errorf("%w: it says %q", errNotPolder, b[:8])
	}
	h := hello{
		version:  binary.LittleEndian.Uint32(b[8:]),
		features: binary.LittleEndian.Uint64(b[16:]),
		mtu:      int(binary.LittleEndian.Uint16(b[24:])) << 10,
		maxRdAtm: int(binary.LittleEndian.Uint16(b[26:])),
	}
	// Before the checksum, which another version may place elsewhere.
	if h.version != protocolVersion {
		return hello{}, fmt.Errorf("%w: %d, this end %d", errVersion, h.version, protocolVersion)
	}
	if crc32.Checksum(b[:28], castagnoli) != binary.LittleEndian.Uint32(b[28:]) {
		return hello{}, errHelloChecksum
	}
	return h, nil
}

// exchangeHello sends ours, reads the peer's and returns what both can do.
// The caller has set a deadline on rw.
func exchangeHello(rw io.ReadWriter, ours hello) (hello, error) {
	b := ours.encode()
	// Sent before the peer's is checked, so that either end of a mismatch
	// can tell what is wrong.
	if _, err := rw.Write(b[:]); err != nil {
		return hello{}, fmt.Errorf("cannot send hello: %w", err)
	}
	if _, err := io.ReadFull(rw, b[:]); err != nil {
		return hello{}, fmt.Errorf("cannot read the peer's hello: %w", err)
	}
	theirs, err := decodeHello(&b)
	if err == nil && (theirs.mtu < ours.mtu || theirs.maxRdAtm < ours.maxRdAtm) {
		err = fmt.Errorf("%w: packets of %d bytes and %d outstanding reads, this end sends %d and %d",
			errHelloLimits, theirs.mtu, theirs.maxRdAtm, ours.mtu, ours.maxRdAtm)
	}
	if err != nil {
		return hello{}, fmt.Errorf("cannot agree with the peer: %w", err)
	}
	theirs.features &= ours.features
	return theirs, nil
}
