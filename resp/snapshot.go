package resp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"polder/far"
	"polder/far/saved"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

// A snapshot is for polder heap save: the heap as it is at one moment, in parts as package far/saved has them. POLDER
// SNAPSHOT takes it. Each POLDER PART replies with the next part, or after the last one with nil. The snapshot ends
// with the connection, with the next POLDER SNAPSHOT, or when its partition goes to another server. The client asks
// for part after part, so that a slow client holds up nobody: a part that it has not asked for is not read, and stays
// in far memory as long as there is room.

const (
	// mostSnapshots is how many clients may read snapshots at a time.
	mostSnapshots = 4
	// haveEntry is the size in bytes of what a client says that it has of one segment: u64 position, u64 bytes.
	haveEntry = 16
)

const errNoSnapshot reply.Error = "ERR there is no snapshot: POLDER SNAPSHOT takes one"

var errManySnapshots = reply.Error(fmt.Sprintf("TRYAGAIN %d snapshots are being read already", mostSnapshots))

// snapshotError is why a snapshot cannot be taken or read, as a reply. Its first word tells the client whether it is
// worth while to take another snapshot.
func snapshotError(err error) error {
	var lacks *far.LackingError
	switch {
	case errors.As(err, &lacks):
		return reply.Error("LOST " + err.Error())
	case errors.Is(err, saved.ErrOvertaken):
		return reply.Error("OVERTAKEN " + err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return reply.Error("TRYAGAIN " + err.Error())
	}
	return reply.Error("ERR " + err.Error())
}

// copied is the snapshot that a session's client reads.
type copied struct {
	*saved.Snapshot
	of *part // whose heap it is of
}

// source returns the data whose heap is to be copied, and keeps it from leaving until EndUse. For a server of
// partitions, args begin with PARTITION and its number. Rest is what follows them.
func (s *session) source(args [][]byte) (at *part, rest [][]byte, err error) {
	if s.srv.parts == nil && s.part.Stay() {
		return s.part, args, nil
	}
	if len(args) < 2 || !proto.Is(args[0], "partition") {
		return nil, nil, errWhichPartition
	}
	number, ok := proto.ParseInt(args[1])
	if !ok || number < 0 || number >= int64(len(s.srv.parts)) {
		return nil, nil, errWhichPartition
	}
	if at = s.srv.use(int(number)); at == nil {
		return nil, nil, errPartitionAway
	}
	return at, args[2:], nil
}

const (
	errWhichPartition reply.Error = "ERR the server has partitions of a heap: expected PARTITION and the number of one"
	errPartitionAway  reply.Error = "TRYAGAIN the partition is not here"
	errPartitionGone  reply.Error = "OVERTAKEN the partition has gone to another server"
)

// endSnapshot ends the session's snapshot, if it has one.
func (s *session) endSnapshot() {
	if s.snap != nil {
		s.snap.Close()
		s.snap = nil
		s.srv.snapshots.Add(-1)
	}
}

// cmdPolderSnapshot takes a snapshot. The arguments say what the client has from earlier snapshots: the position of a
// segment (u64), how many bytes of it (u64), and so on. For a server of partitions, PARTITION and its number come
// before them. The reply is the number of the heap in hexadecimal, and how many bytes there are to come.
func cmdPolderSnapshot(s *session, a [][]byte) error {
	at, args, err := s.source(a[2:])
	if err != nil {
		return err
	}
	defer at.EndUse()
	have := map[uint64]uint64{}
	for _, b := range args {
		if len(b)%haveEntry != 0 {
			return reply.ErrSyntax
		}
		for ; len(b) > 0; b = b[haveEntry:] {
			have[binary.LittleEndian.Uint64(b)] = binary.LittleEndian.Uint64(b[8:])
		}
	}
	switch {
	case at.IsLoading():
		return errLoading
	case !at.Kept():
		return keyspace.ErrNotKept
	}
	s.endSnapshot()
	if s.srv.snapshots.Add(1) > mostSnapshots {
		s.srv.snapshots.Add(-1)
		return errManySnapshots
	}
	if s.OnWait != nil {
		s.OnWait(nil)
	}
	snap, err := at.Snapshot(have)
	if err != nil {
		s.srv.snapshots.Add(-1)
		return snapshotError(err)
	}
	s.snap = &copied{snap, at}
	s.Array(2)
	s.Str(fmt.Sprintf("%016x", snap.Heap()))
	s.Int(snap.Left())
	return nil
}

// cmdPolderPart replies with the next part of the snapshot.
func cmdPolderPart(s *session, a [][]byte) error {
	if s.snap == nil {
		return errNoSnapshot
	}
	at := s.snap.of
	if !at.Stay() {
		s.endSnapshot()
		return errPartitionGone
	}
	defer at.EndUse()
	if s.OnWait != nil {
		s.OnWait(nil)
	}
	ctx, cancel := context.WithTimeout(at.Context(), s.srv.cfg.OpTimeout)
	defer cancel()
	b, err := s.snap.Next(ctx)
	switch {
	case errors.Is(err, io.EOF):
		s.endSnapshot()
		s.Null()
		return nil
	case err != nil:
		s.endSnapshot()
		return snapshotError(err)
	}
	s.Room(len(b) + 32)
	s.Bulk(b)
	return nil
}
