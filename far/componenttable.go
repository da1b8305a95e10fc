package far

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"polder/far/heap"
	"polder/internal/offload"
)

// A RemoteTable is a hash table that lies at a memory node all of it, index and
// entries (AIFM, section 8.1.3). Get, Put and Delete take one round trip each,
// whether the key exists or not, and nothing of the table is in the heap's memory.
// With a node on the same machine they take none: the table is in memory that the
// node has lent, and that is mapped here.
//
// # A Map, or a RemoteTable
//
// A [Map] keeps its index here, about 16 bytes a key. So its miss is one READ of
// exactly the entry, and not two that wait for each other; an absent key costs no
// round trip; and what is used often is local. Take a Map as long as its index
// fits into the budget: no component makes its miss any faster.
//
// A RemoteTable is for more keys than that: 1,000 million would take 16 GB here
// before there was any value. What a one-sided index at the node would answer with
// two dependent READs, a RemoteTable does with one request. It is a type of its
// own, and not an option of NewMap, because it promises something else: it has no
// part in the budget, keeps nothing local, holds values of up to 60 KiB, is full when
// the node's memory for components is, and ends with the client's session. The
// example of package far/remote has a small Map before it, for what is
// asked for again and again.
//
// Values carry a checksum of their own and their keys' from Put to Get.
//
// It may be used by any number of goroutines. Operations are linearizable,
// except that a Put or Delete that fails with an error that is not ErrNotFound
// may or may not have happened.
type RemoteTable struct{ object Component }

// Limits of a RemoteTable, in bytes.
const (
	MaxTableKey   = offload.MaxKey
	MaxTableValue = offload.MaxValue - tableSum
)

// tableSum is the bytes behind a value: CRC32C of its key and of itself.
const tableSum = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func tableSumOf(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}

// NewRemoteTable makes an empty table at a node of d's.
func NewRemoteTable(ctx context.Context, d Device) (*RemoteTable, error) {
	o, err := d.Construct(ctx, offload.Table, nil, nil)
	if err != nil {
		return nil, err
	}
	return &RemoteTable{o}, nil
}

// Get appends the value of key to buf. It fails with ErrNotFound, and with a
// *CorruptError if the node answers with something else than was put there.
func (t *RemoteTable) Get(ctx context.Context, key, buf []byte) ([]byte, error) {
	out, err := t.object.Read(ctx, key, buf)
	if err != nil {
		return out, err
	}
	n := len(out) - tableSum
	if n < len(buf) {
		return buf, wrongAnswer(t.object, out[len(buf):])
	}
	if got, want := tableSumOf(key, out[len(buf):n]), binary.LittleEndian.Uint32(out[n:]); got != want {
		return buf, &heap.CorruptError{Segment: t.object.Name(), Err: fmt.Errorf("CRC32C of the key and the value is %08x, want %08x", got, want)}
	}
	return out[:n], nil
}

// Put sets the value of key. It fails with ErrTooLarge, and with ErrStoreFull
// when the node has no more memory for this client.
func (t *RemoteTable) Put(ctx context.Context, key, value []byte) error {
	if len(key) > MaxTableKey || len(value) > MaxTableValue {
		return fmt.Errorf("cannot put a key of %d bytes and a value of %d, want at most %d and %d: %w",
			len(key), len(value), MaxTableKey, MaxTableValue, ErrTooLarge)
	}
	b := append(make([]byte, 0, len(value)+tableSum), value...)
	return t.object.Write(ctx, key, binary.LittleEndian.AppendUint32(b, tableSumOf(key, value)))
}

// Delete removes key. It fails with ErrNotFound.
func (t *RemoteTable) Delete(ctx context.Context, key []byte) error {
	return t.object.Delete(ctx, key)
}

// Len is how many keys there are.
func (t *RemoteTable) Len(ctx context.Context) (int, error) {
	out, err := t.object.Compute(ctx, Computation{Op: offload.TableLen, Repeat: true}, nil)
	if err != nil {
		return 0, err
	}
	return decodeLen(t.object, out)
}

// Clear removes every key.
func (t *RemoteTable) Clear(ctx context.Context) error {
	_, err := t.object.Compute(ctx, Computation{Op: offload.TableClear}, nil)
	return err
}

// Close gives the table's memory back.
func (t *RemoteTable) Close(ctx context.Context) error { return t.object.Destruct(ctx) }

func decodeLen(o Component, out []byte) (int, error) {
	if len(out) != 8 {
		return 0, wrongAnswer(o, out)
	}
	return int(binary.LittleEndian.Uint64(out)), nil
}

// wrongAnswer is the error of an answer that makes no sense.
func wrongAnswer(o Component, out []byte) error {
	return &heap.CorruptError{Segment: o.Name(), Err: fmt.Errorf("an answer of %d bytes that makes no sense", len(out))}
}
