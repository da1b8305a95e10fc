package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Recovery says what Open found.
type Recovery struct {
	Checkpoint uint64 // last record that the checkpoint stands for, or 0
	Records    int    // records replayed from segments
	Torn       int64  // bytes of a last write that was cut off
}

// Open opens the log in dir, which it creates if need be, and replays it:
// first the records of the checkpoint, then those that came after it. A record
// passed to replay is valid during the call only. An error of replay ends the
// recovery.
func Open(dir string, opt Options, replay func(rec []byte) error) (*Log, Recovery, error) {
	var found Recovery
	if opt.SegmentSize == 0 {
		opt.SegmentSize = 4 << 20
	}
	if opt.SegmentSize < 4<<10 {
		return nil, found, fmt.Errorf("cannot use a log segment of %d bytes: the least is 4096", opt.SegmentSize)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, found, fmt.Errorf("cannot open the log: %w", err)
	}
	names, err := list(dir)
	if err != nil {
		return nil, found, err
	}
	l := &Log{
		dir: dir, segSize: opt.SegmentSize, noSync: opt.noSync, starve: opt.Starved, restarted: opt.Restarted, group: 1,
		quit: make(chan struct{}), freed: make(chan struct{}, 1),
	}
	l.flushed.L = &l.mu
	upto := uint64(0)
	if n := len(names.checkpoints); n > 0 {
		upto = names.checkpoints[n-1]
		if l.saved, err = readCheckpoint(ckptPath(dir, upto), upto, replay); err != nil {
			return nil, found, err
		}
		found.Checkpoint = upto
	}

	segs := names.segments
	// Segments that the checkpoint stands for may have survived a crash.
	for len(segs) > 1 && segs[1] <= upto+1 {
		segs = segs[1:]
	}
	switch {
	case len(segs) > 0 && segs[0] > upto+1:
		return nil, found, &CorruptError{File: segPath(dir, segs[0]), Err: fmt.Errorf("it begins with record %d, and %d is missing", segs[0], upto+1)}
	case len(segs) == 0 && upto > 0:
		return nil, found, &CorruptError{File: ckptPath(dir, upto), Err: errors.New("no log segment follows the checkpoint")}
	}
	l.next = upto + 1
	for i, first := range segs {
		rest := segs[i+1:]
		end, err := l.replaySegment(first, upto, rest, &found, replay)
		if err != nil {
			return nil, found, err
		}
		if len(rest) > 0 && l.next == rest[0] {
			continue
		}
		// Here the log ends: replaySegment has made sure that nothing of what
		// was promised is behind.
		for _, lost := range rest {
			if st, err := os.Stat(segPath(dir, lost)); err == nil {
				found.Torn += st.Size()
			}
			if err := os.Remove(segPath(dir, lost)); err != nil {
				return nil, found, fmt.Errorf("cannot repair the end of the log: %w", err)
			}
		}
		if err := l.resume(first, end); err != nil {
			return nil, found, err
		}
		break
	}
	if l.seg == nil {
		f, err := l.newSegment()
		if err != nil {
			return nil, found, err
		}
		if err := l.startSegment(f, l.next); err != nil {
			f.Close()
			return nil, found, err
		}
		l.seg = &segment{file: f, off: segHeaderSize, named: true}
		l.room = l.segSize - segHeaderSize
	}
	l.committed.Store(l.next - 1)
	l.synced.Store(l.next - 1)
	l.findReserve()
	l.dropOld(upto)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prepareNext()
	return l, found, nil
}

// findReserve finds the reserve of an earlier process, or the file of a checkpoint that it could not finish, which
// will do as well.
func (l *Log) findReserve() {
	if st, err := os.Stat(filepath.Join(l.dir, reserveName)); err == nil {
		l.reserve = st.Size()
	}
	unfinished, err := filepath.Glob(filepath.Join(l.dir, "*.ckpt.tmp"))
	if err != nil {
		return
	}
	for _, path := range unfinished {
		l.recycle(path)
	}
}

// replaySegment replays one segment, which the segments rest follow, and returns
// where its records end. If l.next is not the first record of rest then, the
// log ends here.
func (l *Log) replaySegment(first, upto uint64, rest []uint64, found *Recovery, replay func([]byte) error) (int64, error) {
	path := segPath(l.dir, first)
	last := len(rest) == 0
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("cannot read the log: %w", err)
	}
	if len(data) < segHeaderSize && last && bytes.Equal(data, segHeader(first)[:len(data)]) {
		l.next = first
		found.Torn += int64(len(data))
		return 0, nil
	}
	if len(data) >= segHeaderSize && allZero(data[:segHeaderSize]) && l.restarted && first > upto &&
		!l.promised(append([]uint64{first}, rest...), first) {
		l.next = first // the segment was started, and nothing of it was ever synced
		found.Torn += int64(len(data))
		return 0, nil
	}
	if len(data) < segHeaderSize || !bytes.Equal(data[:segHeaderSize], segHeader(first)) {
		return 0, &CorruptError{File: path, Err: errors.New("this is not the header of a log segment")}
	}
	off, lsn := segHeaderSize, first
	for off < len(data) {
		f, err := parseFrame(data[off:])
		if err == nil && f.lsn != lsn {
			err = errSeq
		}
		if errors.Is(err, errEnd) && allZero(data[off:]) {
			break
		}
		if err != nil {
			// Segments are synced in order, but the system writes as it likes:
			// after a restart of the machine, what was never synced may be
			// missing although later segments are there.
			if !(last || l.restarted && lsn > upto && !l.promised(rest, lsn)) || !torn(data, off, err, lsn, l.group-1, l.restarted) {
				if errors.Is(err, errEnd) {
					err = errCRC
				}
				return 0, &CorruptError{File: path, Offset: int64(off), Err: err}
			}
			found.Torn += int64(len(data) - off)
			break
		}
		if lsn > upto {
			if err := replay(f.payload); err != nil {
				return 0, fmt.Errorf("cannot replay record %d at offset %d of %s: %w", lsn, off, path, err)
			}
			found.Records++
			l.since += f.size()
		}
		l.group = f.group + 1
		lsn++
		off += int(f.size())
	}
	l.next = max(lsn, upto+1)
	if lsn < l.next && last {
		return 0, &CorruptError{File: path, Offset: int64(off), Err: fmt.Errorf("records %d to %d are missing", lsn, upto)}
	}
	if !last && l.next != rest[0] && (!l.restarted || l.next > rest[0] || lsn < l.next || l.promised(rest, l.next)) {
		return 0, &CorruptError{File: path, Offset: int64(off), Err: fmt.Errorf("records %d to %d are missing", l.next, rest[0]-1)}
	}
	return int64(off), nil
}

// promised reports whether some record of the segments says that the record lsn
// was on the medium when it was appended.
func (l *Log) promised(segments []uint64, lsn uint64) bool {
	for _, first := range segments {
		data, err := os.ReadFile(segPath(l.dir, first))
		if err != nil {
			return true // nobody knows
		}
		for i := range data {
			if f, err := parseFrame(data[i:]); err == nil && f.synced >= lsn {
				return true
			}
		}
	}
	return false
}

// resume makes the last segment ready for writing from end on.
func (l *Log) resume(first uint64, end int64) error {
	f, err := os.OpenFile(segPath(l.dir, first), os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open the log: %w", err)
	}
	size := l.segSize
	if st, err := f.Stat(); err == nil {
		size = max(size, st.Size())
	}
	if end == 0 { // not even the header was whole
		if _, err = f.WriteAt(segHeader(first), 0); err != nil {
			f.Close()
			return fmt.Errorf("cannot repair the log: %w", err)
		}
		end = segHeaderSize
	}
	if err := zeroFill(f, end, size); err != nil {
		f.Close()
		return fmt.Errorf("cannot repair the end of the log: %w", err)
	}
	// Records that are replayed count as durable from now on; and what was behind them must not reappear behind a
	// record that is written now.
	if !l.noSync {
		if err := errors.Join(f.Sync(), syncDir(l.dir)); err != nil {
			f.Close()
			return fmt.Errorf("cannot sync the log: %w", err)
		}
	}
	l.seg, l.room = &segment{file: f, off: end, named: true}, size-end
	return nil
}

type listing struct{ segments, checkpoints []uint64 }

func list(dir string) (listing, error) {
	var found listing
	entries, err := os.ReadDir(dir)
	if err != nil {
		return found, fmt.Errorf("cannot open the log: %w", err)
	}
	for _, e := range entries {
		base, ext, _ := strings.Cut(e.Name(), ".")
		n, err := strconv.ParseUint(base, 16, 64)
		if err != nil || len(base) != 16 {
			continue
		}
		switch ext {
		case "log":
			found.segments = append(found.segments, n)
		case "ckpt":
			found.checkpoints = append(found.checkpoints, n)
		}
	}
	slices.Sort(found.segments)
	slices.Sort(found.checkpoints)
	return found, nil
}

// A checkpoint is a magic, the number of the last record that it stands for,
// frames numbered from 1, and a last frame with the payload ckptEnd.
const (
	ckptMagic = "PLDRCKP2"
	ckptEnd   = "end of the checkpoint"
)

func ckptPath(dir string, upto uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%016x.ckpt", upto))
}

func ckptHeader(upto uint64) []byte {
	b := append(make([]byte, 0, segHeaderSize), ckptMagic...)
	b = binary.LittleEndian.AppendUint64(b, upto)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readCheckpoint replays a checkpoint and returns how large it is.
func readCheckpoint(path string, upto uint64, replay func([]byte) error) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("cannot read the checkpoint: %w", err)
	}
	if !bytes.HasPrefix(data, ckptHeader(upto)) {
		return 0, &CorruptError{File: path, Err: errors.New("this is not the header of a checkpoint")}
	}
	// Everything is checked before anything is replayed.
	var recs [][]byte
	for off, lsn := segHeaderSize, uint64(1); ; lsn++ {
		f, err := parseFrame(data[off:])
		if err == nil && f.lsn != lsn {
			err = errSeq
		}
		if err != nil {
			return 0, &CorruptError{File: path, Offset: int64(off), Err: err}
		}
		off += int(f.size())
		if string(f.payload) == ckptEnd {
			if off != len(data) {
				return 0, &CorruptError{File: path, Offset: int64(off), Err: errors.New("there are bytes behind the end")}
			}
			break
		}
		recs = append(recs, f.payload)
	}
	for i, rec := range recs {
		if err := replay(rec); err != nil {
			return 0, fmt.Errorf("cannot replay record %d of %s: %w", i+1, path, err)
		}
	}
	return int64(len(data)), nil
}
