package component

import (
	"encoding/binary"
	"os"
	"sync/atomic"

	"polder/internal/arena"
)

// A lane is the memory that a node shares with a worker: a page of flags, then
// the buffers of requests, then those of replies.
type lane struct {
	mem *arena.Mapping
}

const (
	credits     = 32       // buffers for requests
	replies     = 40       // buffers for replies: some of these wait for an acknowledgement
	messageSize = 64 << 10 // bytes of a buffer
	flagSize    = 64       // a cache line for every flag and counter
	laneBuffers = 4096
	laneSize    = laneBuffers + (credits+replies)*messageSize
)

// newLane makes a lane, and the file to be passed to workers.
func newLane() (*lane, *arena.Memfd, error) {
	fd, err := arena.NewMemfd("polder-component", laneSize)
	if err != nil {
		return nil, nil, err
	}
	if err := fd.SealSize(); err != nil {
		fd.Close()
		return nil, nil, err
	}
	mem, err := fd.Map(0, laneSize, true)
	if err != nil {
		fd.Close()
		return nil, nil, err
	}
	return &lane{mem}, fd, nil
}

// openLane maps the lane in f.
func openLane(f *os.File) (*lane, error) {
	mem, err := arena.MapFile(f, 0, laneSize, true)
	if err != nil {
		return nil, err
	}
	return &lane{mem}, nil
}

// running is not zero while the worker executes the request of a slot.
func (l *lane) running(slot int) *atomic.Uint32 { return arena.Word32(l.mem.Bytes()[slot*flagSize:]) }

// used is how many bytes all of the client's objects use, and usedThere how many the objects in the worker use.
func (l *lane) used() *atomic.Int64      { return l.counter(credits + 1) }
func (l *lane) usedThere() *atomic.Int64 { return l.counter(credits + 2) }

// ready is not zero once the worker takes requests.
func (l *lane) ready() *atomic.Uint32 { return l.running(credits) }

func (l *lane) request(slot int) []byte {
	return l.mem.Bytes()[requestOffset(slot):][:messageSize:messageSize]
}

func (l *lane) reply(i int) []byte {
	return l.mem.Bytes()[replyOffset(i):][:messageSize:messageSize]
}

func requestOffset(slot int) int { return laneBuffers + slot*messageSize }

func replyOffset(i int) int { return requestOffset(credits + i) }

// A record goes over the socket. It says that the message in a slot has n bytes; to the worker it also says which
// buffer the reply goes into.
const recordSize = 8

func appendRecord(b []byte, slot, reply, n int) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(slot))
	b = binary.LittleEndian.AppendUint16(b, uint16(reply))
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

// record decodes b, and reports whether it makes sense.
func record(b []byte) (slot, reply, n int, ok bool) {
	s, r := binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:])
	k := binary.LittleEndian.Uint32(b[4:])
	return int(s), int(r), int(k), s < credits && r < replies && k <= messageSize
}
