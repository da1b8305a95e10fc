package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A frame is a header of 8 bytes and a body:
//
//	0  u32  CRC32C of the frame's number, bytes 4 to 8, and the body
//	4  u32  type in the top 8 bits, length of the body in the low 24
//	8  body
//
// All integers are little-endian. The frame's number counts the frames of one
// direction from 0 and is not sent: the checksum starts from it, so that a
// frame that is replayed, dropped or moved fails its checksum.
const frameHeader = 8

type frameType uint8

const (
	framePacket  frameType = 1 + iota // a softnic packet
	frameConnect                      // connection management: see package cm
	frameAccept
	frameReject
	framePing
	framePong
	frameBye  // the sender closes the connection on purpose
	frameFile // a file comes with it, over a Unix socket only: see files.go

	frameTypeEnd
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// beginFrame appends room for a frame's header. The body is appended next,
// and then endFrame is called with the length that b had before.
func beginFrame(b []byte) []byte { return append(b, 0, 0, 0, 0, 0, 0, 0, 0) }

// endFrame fills in the header of the frame that starts at b[start:].
func endFrame(b []byte, start int, t frameType, number uint32) {
	f := b[start:]
	binary.LittleEndian.PutUint32(f[4:], uint32(t)<<24|uint32(len(f)-frameHeader))
	binary.LittleEndian.PutUint32(f, crc32.Update(number, castagnoli, f[4:]))
}

// What is wrong with a stream of frames.
var (
	errFrameType     = errors.New("unknown frame type")
	errFrameTooLarge = errors.New("frame is larger than was agreed")
	errFrameChecksum = errors.New("frame fails its checksum")
	errTruncated     = errors.New("stream ends inside a frame")
)

// frameReader cuts a stream into frames. It reads as much as it can get at
// once into one buffer; the frames it returns lie in that buffer.
type frameReader struct {
	buf     []byte
	r, w    int // buf[r:w] has been read and not yet returned
	maxBody int
	number  uint32 // of the next frame
}

// newFrameReader returns a reader of frames with bodies of at most maxBody
// bytes, which buffers at least size bytes.
func newFrameReader(maxBody, size int) *frameReader {
	return &frameReader{buf: make([]byte, max(size, frameHeader+maxBody)), maxBody: maxBody}
}

// next returns the next whole frame in the buffer, and false if there is
// none. Body is valid until the next call of fill.
func (f *frameReader) next() (t frameType, body []byte, ok bool, err error) {
	b := f.buf[f.r:f.w]
	if len(b) < frameHeader {
		return 0, nil, false, nil
	}
	word := binary.LittleEndian.Uint32(b[4:])
	t = frameType(word >> 24)
	n := int(word & (1<<24 - 1))
	if t == 0 || t >= frameTypeEnd {
		return 0, nil, false, fmt.Errorf("cannot read frame %d: %w (%d)", f.number, errFrameType, t)
	}
	if n > f.maxBody {
		return 0, nil, false, fmt.Errorf("cannot read frame %d: %w: %d bytes, at most %d",
			f.number, errFrameTooLarge, n, f.maxBody)
	}
	if len(b) < frameHeader+n {
		return 0, nil, false, nil
	}
	b = b[:frameHeader+n]
	if crc32.Update(f.number, castagnoli, b[4:]) != binary.LittleEndian.Uint32(b) {
		return 0, nil, false, fmt.Errorf("cannot read frame %d: %w", f.number, errFrameChecksum)
	}
	f.r += len(b)
	f.number++
	return t, b[frameHeader:], true, nil
}

// fill reads more of the stream. It ends what next returned before. At the
// end of the stream it returns io.EOF, or errTruncated inside a frame.
//
// Preconditions: next has just returned false and no error.
func (f *frameReader) fill(src io.Reader) error {
	// A long part of a frame stays where it is if the rest fits behind it.
	if f.w-f.r <= 4<<10 || f.r+f.need() > len(f.buf) {
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	n, err := src.Read(f.buf[f.w:])
	f.w += n
	if n > 0 {
		return nil // if there is an error, the next read returns it again
	}
	if err == io.EOF && f.w > f.r {
		return fmt.Errorf("cannot read frame %d: %w", f.number, errTruncated)
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// need returns how many bytes from r the frame there takes, or must take at
// least as long as its length is unknown.
func (f *frameReader) need() int {
	if f.w-f.r < frameHeader {
		return frameHeader
	}
	return frameHeader + int(binary.LittleEndian.Uint32(f.buf[f.r+4:])&(1<<24-1))
}
