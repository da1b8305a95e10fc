package named

import (
	"context"
	"encoding/binary"
	"time"
)

// SetClock has owners take now for the time, until undo.
func SetClock(now func() time.Duration) (undo func()) {
	was := clock
	clock = now
	return func() { clock = was }
}

// Moved is what copies.Keep.Moved calls.
func (o *Owner) Moved(ctx context.Context, number uint64, name func() string) error {
	return o.moved(ctx, number, name)
}

// ScanLog is scanLog.
func ScanLog(b []byte, segment, next uint64, yield func(rec []byte) bool) uint64 {
	end, _ := scanLog(b, segment, next, yield)
	return end
}

// LogSegment is a segment of a log with those records, numbered from first on.
func LogSegment(segment, first uint64, recs ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, logMagic), segment)
	for i, r := range recs {
		b = appendFrame(b, frame{first + uint64(i), r}, segment, len(b))
	}
	return b
}

// Identity is identity.
func Identity(pid int) string { return identity(pid) }

// HasEnded is hasEnded.
func HasEnded(identity string) bool { return hasEnded(identity) }
