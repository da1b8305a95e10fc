package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The application's hello is 12 bytes:
//
//	0  8 bytes  "polderBK"
//	8  u32      version
//
// The broker's begins the same, and goes on:
//
//	12  u16  memory nodes; 0 if the connection is refused
//	14       for each node: u16 length, and its address; or the reason, to the end
//
// With it comes the ring's memfd, if the connection is not refused. The magic and the
// version keep their places in every version to come.
const (
	helloMagic   = "polderBK"
	helloSize    = 12
	helloVersion = 1

	// MaxNodes is the most memory nodes of a broker.
	MaxNodes = 64

	maxAddress = 1024
	maxReason  = 512
)

var errNotBroker = errors.New("the other end does not speak the broker's protocol")

func appendHello(b []byte) []byte {
	b = append(b, helloMagic...)
	return binary.LittleEndian.AppendUint32(b, helloVersion)
}

func checkHello(b []byte) error {
	if len(b) < helloSize || string(b[:8]) != helloMagic {
		return errNotBroker
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != helloVersion {
		return malformed("version %d, want %d", v, helloVersion)
	}
	return nil
}

// appendWelcome appends the hello of a broker that has nodes at addrs.
func appendWelcome(b []byte, addrs []string) []byte {
	b = binary.LittleEndian.AppendUint16(appendHello(b), uint16(len(addrs)))
	for _, a := range addrs {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(a)))
		b = append(b, a...)
	}
	return b
}

// appendRefusal appends the hello of a broker that refuses.
func appendRefusal(b []byte, reason string) []byte {
	b = binary.LittleEndian.AppendUint16(appendHello(b), 0)
	return append(b, reason[:min(len(reason), maxReason)]...)
}

// decodeWelcome returns the addresses in a broker's hello, or an error that Is
// ErrDenied if it refuses.
func decodeWelcome(b []byte) ([]string, error) {
	if err := checkHello(b); err != nil {
		return nil, err
	}
	if len(b) < helloSize+2 {
		return nil, malformed("hello of %d bytes", len(b))
	}
	n, b := int(binary.LittleEndian.Uint16(b[helloSize:])), b[helloSize+2:]
	switch {
	case n == 0 && len(b) > maxReason:
		return nil, malformed("reason of %d bytes, want at most %d", len(b), maxReason)
	case n == 0:
		return nil, fmt.Errorf("%w: %s", ErrDenied, b)
	case n > MaxNodes:
		return nil, malformed("%d nodes, want at most %d", n, MaxNodes)
	}
	addrs := make([]string, 0, n)
	for range n {
		if len(b) < 2 {
			return nil, malformed("hello ends within an address")
		}
		size := int(binary.LittleEndian.Uint16(b))
		if size == 0 || size > maxAddress || len(b) < 2+size {
			return nil, malformed("address of %d bytes in %d", size, len(b))
		}
		addrs, b = append(addrs, string(b[2:2+size])), b[2+size:]
	}
	if len(b) > 0 {
		return nil, malformed("%d bytes after the last address", len(b))
	}
	return addrs, nil
}
