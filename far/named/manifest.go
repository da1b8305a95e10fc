package named

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"polder/far/copies"
	"polder/far/record"
)

// Manifest is what a register keeps about a heap.
type Manifest struct {
	Epoch uint64 // of the owner; each owner has a higher epoch than the owners before it
	Nonce uint64 // of the owner: tells it from another process that has raised the epoch at the same time
	Beat  uint64 // changes while the owner lives
	Owner string // what the owner calls itself, "" if the heap was closed
	// Process is the identity of the owner's process, by which others on its machine can tell when it has ended; ""
	// if it has none.
	Process string
	// Lease is the lease of the owner, or that of the previous owner if that is longer and may not be over.
	Lease time.Duration
	// Copies is how many copies of each segment there are to be, 0 if no owner has said it yet.
	Copies int

	// Sessions has what each node needs to be told to give its memory to another process, by the name of the node.
	Sessions map[string][]byte
	// Root is the root of the heap's last checkpoint, nil if there is none yet.
	Root []byte
	// Moved has the new names of segments, by number, whose copies have moved: the checkpoint of the root has old
	// names for them.
	Moved map[uint64]string
	// Tail lists the segments of the log, in the order in which they were or will be written to.
	Tail []Tail
}

// The encoding begins with u64 magic and version, and u32 CRC32C of the rest, which is compressed (deflate). That is
//
//	u64 epoch, u64 nonce, u64 beat, u64 lease in nanoseconds, u32 copies, string owner, string process
//	u32 sessions, and for each: string node, string session
//	u8 whether there is a root, string root
//	u32 moved segments, and for each: u64 number, string name
//	u32 segments of the log, and for each the same
//
// where a string is u32 length and that many bytes. Uncompressed it may have mostManifest bytes.
const (
	manifestMagic = 0x6e614d6c6f50<<8 | 3 // "PolMan"
	mostManifest  = 16 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// packer is used again and again: it takes a megabyte, too much to let it be collected and made anew, as happens in a
// sync.Pool.
var packer struct {
	mu sync.Mutex
	w  *flate.Writer // nil until it is first needed; guarded by mu
}

// pack appends b to out, compressed.
func pack(out *bytes.Buffer, b []byte) {
	packer.mu.Lock()
	defer packer.mu.Unlock()
	if packer.w == nil {
		packer.w, _ = flate.NewWriter(out, flate.BestSpeed) // fails only for a wrong level
	} else {
		packer.w.Reset(out)
	}
	_, _ = packer.w.Write(b) // a Buffer takes everything
	_ = packer.w.Close()
}

// Encode is the manifest as bytes.
func (m *Manifest) Encode() []byte {
	put32, put64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	str := func(b []byte, s string) []byte { return append(put32(b, uint32(len(s))), s...) }
	b := put64(put64(put64(put64(nil, m.Epoch), m.Nonce), m.Beat), uint64(m.Lease))
	b = str(str(put32(b, uint32(m.Copies)), m.Owner), m.Process)
	b = put32(b, uint32(len(m.Sessions)))
	for _, node := range slices.Sorted(maps.Keys(m.Sessions)) {
		b = str(str(b, node), string(m.Sessions[node]))
	}
	has := byte(0)
	if m.Root != nil {
		has = 1
	}
	b = str(append(b, has), string(m.Root))
	b = put32(b, uint32(len(m.Moved)))
	for _, n := range slices.Sorted(maps.Keys(m.Moved)) {
		b = str(put64(b, n), m.Moved[n])
	}
	b = put32(b, uint32(len(m.Tail)))
	for _, t := range m.Tail {
		b = str(put64(b, t.Number), t.Name)
	}
	var packed bytes.Buffer
	pack(&packed, b)
	out := put64(nil, manifestMagic)
	out = put32(out, crc32.Checksum(packed.Bytes(), castagnoli))
	return append(out, packed.Bytes()...)
}

// partitions is the beginning of an encoded map of partitions (package partition). This package knows no more of it.
const partitions = `{"magic":"polder partitions",`

// ErrPartitions says that a register has no manifest but a map of partitions: which server has which partition of a
// heap.
var ErrPartitions = errors.New("servers share its partitions, each of which is a heap of its own: it is opened by polder serve --partitions alone")

// DecodeManifest reads a manifest from bytes that may be anything. It fails with ErrPartitions if they are a map of
// partitions.
func DecodeManifest(b []byte) (*Manifest, error) {
	if bytes.HasPrefix(b, []byte(partitions)) {
		return nil, ErrPartitions
	}
	if len(b) < 12 {
		return nil, fmt.Errorf("a manifest of %d bytes, want at least 12", len(b))
	}
	if magic := binary.LittleEndian.Uint64(b); magic != manifestMagic {
		return nil, fmt.Errorf("the manifest begins with %#x, want %#x: it is none, or of another version of polder", magic, uint64(manifestMagic))
	}
	if got, want := crc32.Checksum(b[12:], castagnoli), binary.LittleEndian.Uint32(b[8:]); got != want {
		return nil, fmt.Errorf("CRC32C of the manifest is %08x, want %08x", got, want)
	}
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(b[12:])), mostManifest+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot unpack the manifest: %w", err)
	case len(plain) > mostManifest:
		return nil, fmt.Errorf("the manifest has more than %d bytes", mostManifest)
	}
	d := &record.Decoder{B: plain}
	str := func() string { return string(d.Bytes(int(d.U32()))) }
	m := &Manifest{Epoch: d.U64(), Nonce: d.U64(), Beat: d.U64(), Lease: time.Duration(d.U64()), Copies: int(d.U32()), Sessions: map[string][]byte{}, Moved: map[uint64]string{}}
	m.Owner, m.Process = str(), str()
	for range d.U32() {
		if d.Err != nil {
			break
		}
		node := str()
		m.Sessions[node] = []byte(str())
	}
	has := d.Bytes(1)
	if root := []byte(str()); len(has) == 1 && has[0] != 0 {
		m.Root = root
	}
	for range d.U32() {
		if d.Err != nil {
			break
		}
		n := d.U64()
		m.Moved[n] = str()
	}
	for range d.U32() {
		if d.Err != nil {
			break
		}
		m.Tail = append(m.Tail, Tail{d.U64(), str()})
	}
	switch {
	case d.Err != nil:
		return nil, fmt.Errorf("cannot read the manifest: %w", d.Err)
	case len(d.B) > 0:
		return nil, fmt.Errorf("%d bytes follow the manifest", len(d.B))
	case m.Lease < 0 || m.Lease > mostLease:
		return nil, fmt.Errorf("the manifest has a lease of %v, want up to %v", m.Lease, mostLease)
	case m.Copies > copies.MaxCopies:
		return nil, fmt.Errorf("the manifest has %d copies, want up to %d", m.Copies, copies.MaxCopies)
	case len(m.Root) > record.MaxRoot:
		return nil, errors.New("the root in the manifest is too long")
	}
	return m, nil
}

// clone is a copy that may be changed, except for the contents of byte slices, which it shares.
func (m *Manifest) clone() *Manifest {
	c := *m
	c.Sessions, c.Moved, c.Tail = maps.Clone(m.Sessions), maps.Clone(m.Moved), slices.Clone(m.Tail)
	if c.Sessions == nil {
		c.Sessions = map[string][]byte{}
	}
	if c.Moved == nil {
		c.Moved = map[uint64]string{}
	}
	return &c
}
