package ibv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// The hello is what each end sends first, little-endian:
//
//	 0  8 bytes  "polderIB"
//	 8  u32      version
//	12  u16      LID, 0 if the port has a GID
//	14  u8       MTU, as InfiniBand counts: 1 is 256 bytes, 5 is 4096
//	15  u8       READs and atomics that a queue pair answers at a time
//	16  16 bytes GID, 0 if the port has none
//	32  u32      CRC32C of bytes 0 to 32
const (
	helloSize  = 36
	helloMagic = "polderIB"

	protocolVersion = 1
	maxMTU          = 5
)

var (
	errNotPolder     = errors.New("peer does not speak this protocol")
	errVersion       = errors.New("peer speaks another version")
	errHelloChecksum = errors.New("hello fails its checksum")
	errHelloContent  = errors.New("hello makes no sense")
)

// address is where a port is and what may be sent to it.
type address struct {
	gid    [16]byte
	lid    uint16
	mtu    int
	rdAtom int
}

// global reports whether the port is reached by its GID.
func (a address) global() bool { return a.gid != [16]byte{} }

func (a address) encode() [helloSize]byte {
	var b [helloSize]byte
	copy(b[:], helloMagic)
	binary.LittleEndian.PutUint32(b[8:], protocolVersion)
	binary.LittleEndian.PutUint16(b[12:], a.lid)
	b[14], b[15] = uint8(a.mtu), uint8(a.rdAtom)
	copy(b[16:], a.gid[:])
	binary.LittleEndian.PutUint32(b[32:], crc32.Checksum(b[:32], castagnoli))
	return b
}

func decodeHello(b *[helloSize]byte) (address, error) {
	if string(b[:8]) != helloMagic {
		return address{}, fmt.Errorf("%w: it says %q", errNotPolder, b[:8])
	}
	// Before the checksum, which another version may place elsewhere.
	if v := binary.LittleEndian.Uint32(b[8:]); v != protocolVersion {
		return address{}, fmt.Errorf("%w: %d, this end %d", errVersion, v, protocolVersion)
	}
	if crc32.Checksum(b[:32], castagnoli) != binary.LittleEndian.Uint32(b[32:]) {
		return address{}, errHelloChecksum
	}
	a := address{lid: binary.LittleEndian.Uint16(b[12:]), mtu: int(b[14]), rdAtom: int(b[15])}
	copy(a.gid[:], b[16:])
	if a.mtu < 1 || a.mtu > maxMTU || a.rdAtom < 1 || !a.global() && a.lid == 0 {
		return address{}, fmt.Errorf("%w: LID %d, GID %x, MTU %d, %d outstanding reads", errHelloContent, a.lid, a.gid, a.mtu, a.rdAtom)
	}
	return a, nil
}

// exchangeHello sends ours and returns the peer's. The caller has set a
// deadline on rw.
func exchangeHello(rw io.ReadWriter, ours address) (address, error) {
	b := ours.encode()
	// Sent before the peer's is checked, so that either end of a mismatch
	// can tell what is wrong.
	if _, err := rw.Write(b[:]); err != nil {
		return address{}, fmt.Errorf("cannot send hello: %w", err)
	}
	if _, err := io.ReadFull(rw, b[:]); err != nil {
		return address{}, fmt.Errorf("cannot read the peer's hello: %w", err)
	}
	theirs, err := decodeHello(&b)
	if err == nil && theirs.global() != ours.global() {
		err = fmt.Errorf("%w: one end is on Ethernet or has a GID, the other has a LID only", errHelloContent)
	}
	if err != nil {
		return address{}, fmt.Errorf("cannot agree with the peer: %w", err)
	}
	return theirs, nil
}
