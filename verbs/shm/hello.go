package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/verbs"
)

// Messages over the socket are of 32 bytes:
//
//	 0  8 bytes  "polderSM"
//	 8  u32      version
//	12  u32      kind: 1 hello, 2 memory
//	16  u64      size of the memfd that comes with it, 0 without one
//	24  u64      0
//
// The client's hello brings no memfd, the server's the rings'. The magic and the
// version keep their places in every version to come.
const (
	messageSize  = 32
	messageMagic = "polderSM"

	protocolVersion = 1
)

type messageKind uint32

const (
	kindHello  messageKind = 1
	kindMemory messageKind = 2
)

var (
	errNotPolder = errors.New("peer does not speak this protocol")
	errVersion   = errors.New("peer speaks another version")
	errMessage   = errors.New("malformed message")
)

func encodeMessage(kind messageKind, size int) []byte {
	b := make([]byte, messageSize)
	copy(b, messageMagic)
	binary.LittleEndian.PutUint32(b[8:], protocolVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(kind))
	binary.LittleEndian.PutUint64(b[16:], uint64(size))
	return b
}

func decodeMessage(b []byte) (kind messageKind, size uint64, err error) {
	if len(b) < 12 || string(b[:8]) != messageMagic {
		return 0, 0, errNotPolder
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != protocolVersion {
		return 0, 0, fmt.Errorf("%w: %d, this end %d", errVersion, v, protocolVersion)
	}
	if len(b) != messageSize || binary.LittleEndian.Uint64(b[24:]) != 0 {
		return 0, 0, errMessage
	}
	return messageKind(binary.LittleEndian.Uint32(b[12:])), binary.LittleEndian.Uint64(b[16:]), nil
}

// receive takes a message that must be of the given kind. If mem, it must bring
// memory, and otherwise nothing.
func receive(sock *fdpass.Conn, want messageKind, mem bool) (*arena.Memfd, error) {
	b, files, err := sock.RecvFDs()
	if err != nil {
		return nil, fmt.Errorf("cannot read from the peer: %w", err)
	}
	kind, size, err := decodeMessage(b)
	count := 0
	if mem {
		count = 1
	}
	if err == nil && (kind != want || len(files) != count || !mem && size != 0) {
		err = fmt.Errorf("%w: of kind %d with %d descriptors", errMessage, kind, len(files))
	}
	if err != nil || !mem {
		fdpass.CloseAll(files)
		return nil, err
	}
	fd, err := arena.OpenMemfd(files[0])
	if err != nil {
		fdpass.CloseAll(files)
		return nil, err
	}
	if err := checkSealed(fd, size); err != nil {
		fd.Close()
		return nil, err
	}
	return fd, nil
}

// greetClient is the listening end's part of the handshake. It makes the rings.
func greetClient(sock *fdpass.Conn) (*region, error) {
	if _, err := receive(sock, kindHello, false); err != nil {
		return nil, err
	}
	fd, err := arena.NewMemfd("polder-rings", regionSize)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	if err := fd.SealForGood(); err != nil {
		return nil, err
	}
	mem, err := fd.Map(0, regionSize, true)
	if err != nil {
		return nil, err
	}
	if err := sock.SendFDs(encodeMessage(kindHello, regionSize), fd.File()); err != nil {
		mem.Close()
		return nil, fmt.Errorf("cannot pass the rings: %w", err)
	}
	return newRegion(mem, true), nil
}

// greetServer is the dialling end's part of the handshake.
func greetServer(sock *fdpass.Conn) (*region, error) {
	if err := sock.Send(encodeMessage(kindHello, 0)); err != nil {
		return nil, fmt.Errorf("cannot send hello: %w", err)
	}
	fd, err := receive(sock, kindHello, true)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	if fd.Size() != regionSize {
		return nil, fmt.Errorf("rings of %d bytes, want %d: %w", fd.Size(), regionSize, errMessage)
	}
	mem, err := fd.Map(0, regionSize, true)
	if err != nil {
		return nil, err
	}
	return newRegion(mem, false), nil
}

// admit says who the peer is, or refuses it.
func (c *Config) admit(sock *fdpass.Conn) (string, error) {
	p, err := sock.Peer()
	if err != nil {
		return "", err
	}
	if !c.AnyUser && !trusted(p.UID, os.Geteuid()) {
		return "", fmt.Errorf("the peer runs as user %d, not %d: %w", p.UID, os.Geteuid(), verbs.ErrInvalid)
	}
	return fmt.Sprintf("process %d of user %d", p.PID, p.UID), nil
}

// trusted reports whether a peer of user uid may connect to us, of user self.
func trusted(uid, self int) bool { return uid == self || uid == 0 }
