package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A frame is a header, the payload, and the payload's CRC32C. The header has
// a checksum of its own, so that a damaged length is known for what it is and
// not taken for the end of the file. All integers are little-endian.
//
//	 0  4  length of the payload, at least 1
//	 4  4  number of the write that carried the frame (its group), from 1
//	 8  8  log sequence number
//	16  8  sequence number up to which the log was on the medium by then
//	24  4  CRC32C of bytes 0 to 24
//	28  n  payload
//	..  4  CRC32C of the payload
const (
	headerSize = 28
	frameSize  = headerSize + 4 // without the payload
	sectorSize = 512            // what a disk writes whole or not at all
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type frame struct {
	group   uint32
	lsn     uint64
	synced  uint64
	payload []byte
}

func (f frame) size() int64 { return frameSize + int64(len(f.payload)) }

func appendFrame(b []byte, f frame) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.payload)))
	b = binary.LittleEndian.AppendUint32(b, f.group)
	b = binary.LittleEndian.AppendUint64(b, f.lsn)
	b = binary.LittleEndian.AppendUint64(b, f.synced)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
	b = append(b, f.payload...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(f.payload, castagnoli))
}

var (
	errEnd   = errors.New("end of the log")               // zeros, or nothing
	errShort = errors.New("the frame is cut off")         // the bytes end within it
	errCRC   = errors.New("the checksum does not match")  // of header or payload
	errEmpty = errors.New("the frame has no payload")     // never written
	errSeq   = errors.New("the sequence number is wrong") // frame of another place
)

// parseFrame reads the frame at the start of b. The payload aliases b.
func parseFrame(b []byte) (frame, error) {
	if allZero(b[:min(len(b), headerSize)]) {
		return frame{}, errEnd
	}
	if len(b) < headerSize {
		return frame{}, errShort
	}
	if crc32.Checksum(b[:24], castagnoli) != binary.LittleEndian.Uint32(b[24:]) {
		return frame{}, errCRC
	}
	n := int64(binary.LittleEndian.Uint32(b))
	if n == 0 {
		return frame{}, errEmpty
	}
	if int64(len(b)) < n+frameSize {
		return frame{}, errShort
	}
	f := frame{
		group:   binary.LittleEndian.Uint32(b[4:]),
		lsn:     binary.LittleEndian.Uint64(b[8:]),
		synced:  binary.LittleEndian.Uint64(b[16:]),
		payload: b[headerSize : headerSize+n : headerSize+n],
	}
	if crc32.Checksum(f.payload, castagnoli) != binary.LittleEndian.Uint32(b[headerSize+n:]) {
		return frame{}, errCRC
	}
	return f, nil
}

// torn reports whether the bad frame at data[off:], of the record lsn, is what a
// crash leaves of the last write: it is cut off by the end of the file, or a
// whole sector of it was never written, and no later write is behind it.
// Anything else is damage to what had been acknowledged.
//
// If the machine has restarted, writes that were not synced may be missing in
// any order; only what a later frame says was on the medium must be there.
func torn(data []byte, off int, cause error, lsn uint64, lastGroup uint32, restarted bool) bool {
	rest := data[off:]
	for i := 1; i+frameSize < len(rest); i++ {
		if rest[i] == 0 && rest[i+1] == 0 && rest[i+2] == 0 && rest[i+3] == 0 {
			continue // a length of zero begins no frame
		}
		if f, err := parseFrame(rest[i:]); err == nil && (f.synced >= lsn || f.group > lastGroup+1 && !restarted) {
			return false
		}
	}
	switch {
	case errors.Is(cause, errShort), errors.Is(cause, errEnd):
		return true
	case errors.Is(cause, errCRC):
		return lostSector(data, off)
	}
	return false
}

// lostSector reports whether a sector that the frame at data[off:] lies in
// reads as zeros from the frame's start on, or throughout.
func lostSector(data []byte, off int) bool {
	var end int
	if hdr := data[off:min(len(data), off+headerSize)]; len(hdr) == headerSize &&
		crc32.Checksum(hdr[:24], castagnoli) == binary.LittleEndian.Uint32(hdr[24:]) {
		end = off + frameSize + int(binary.LittleEndian.Uint32(hdr))
	} else {
		end = off + headerSize
	}
	end = min(end, len(data))
	for at := off; at < end; {
		next := min((at/sectorSize+1)*sectorSize, end)
		if next-at >= 8 && allZero(data[at:next]) {
			return true
		}
		at = next
	}
	return false
}

func allZero(b []byte) bool {
	for len(b) >= 8 {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// CorruptError says where a log or a checkpoint is damaged.
type CorruptError struct {
	File   string
	Offset int64 // of the first frame that cannot be trusted
	Err    error
}

// Error names the file and the offset.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is corrupted at offset %d: %v", e.File, e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }
