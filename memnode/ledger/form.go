package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"polder/internal/arena"
	"polder/memnode/wire"
	"polder/verbs"
)

// A Form is what the first page says; where the rest lies follows from it.
type Form struct {
	Manager   string
	ChunkSize int // in bytes
	Chunks    int
	Sessions  int // how many sessions there is room for
}

const (
	magic    = 0x5247_4445_4c4e_4d50 // "PMNLEDGR"
	version  = 1
	formSize = 64
)

// errDamaged is the error for a first page, or for sessions, that no node can have written.
var errDamaged = errors.New("it is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (f *Form) encode() []byte {
	b := make([]byte, formSize)
	le := binary.LittleEndian
	le.PutUint64(b, magic)
	le.PutUint32(b[8:], version)
	copy(b[16:16+wire.MaxName], f.Manager)
	le.PutUint64(b[32:], uint64(f.ChunkSize))
	le.PutUint64(b[40:], uint64(f.Chunks))
	le.PutUint64(b[48:], uint64(f.Sessions))
	le.PutUint32(b[12:], crc32.Checksum(b[16:], castagnoli))
	return b
}

// decode sets f from the first page b of a file of size bytes.
func (f *Form) decode(b []byte, size int) error {
	if len(b) < formSize {
		return fmt.Errorf("%w: it has %d bytes", errDamaged, len(b))
	}
	b = b[:formSize]
	le := binary.LittleEndian
	switch {
	case le.Uint64(b) != magic:
		return fmt.Errorf("%w: it is not a memory node's", errDamaged)
	case le.Uint32(b[8:]) != version:
		return fmt.Errorf("its layout is version %d, and this program knows version %d: start the program that has written it, "+
			"or let go of the memory, which ends with its keeper, or when the service is stopped (and not restarted)", le.Uint32(b[8:]), version)
	case le.Uint32(b[12:]) != crc32.Checksum(b[16:], castagnoli):
		return fmt.Errorf("%w: its first page has another checksum", errDamaged)
	}
	name, _, _ := bytes.Cut(b[16:16+wire.MaxName], []byte{0})
	chunkSize, chunks, sessions := le.Uint64(b[32:]), le.Uint64(b[40:]), le.Uint64(b[48:])
	entry, ok := wire.ManagerNamed(string(name))
	switch {
	case !ok || !entry.Keeps:
		return fmt.Errorf("%w: the manager is %q", errDamaged, name)
	case chunkSize < wire.MinChunkSize || chunkSize > wire.MaxChunkSize || chunkSize&(chunkSize-1) != 0, chunks == 0 || chunks > wire.MaxChunks, sessions == 0 || sessions > 1<<24:
		return fmt.Errorf("%w: %d chunks of %d bytes, %d sessions", errDamaged, chunks, chunkSize, sessions)
	}
	*f = Form{string(name), int(chunkSize), int(chunks), int(sessions)}
	if want := f.size(); size != want {
		return fmt.Errorf("%w: it has %d bytes, want %d", errDamaged, size, want)
	}
	return nil
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// stride is the size of an entry of the table.
func (f *Form) stride() int {
	if f.Manager == wire.RPCMW {
		return rpcEntry
	}
	return verbs.EntrySize
}

// tableAt is where the table begins, and chunksAt where the chunks do, in bytes.
func (f *Form) tableAt() int {
	return arena.PageSize + roundUp(f.Sessions*sessionRecord, arena.PageSize)
}

func (f *Form) chunksAt() int {
	return roundUp(f.tableAt()+f.tableSize(), min(max(f.ChunkSize, arena.PageSize), arena.HugePageSize))
}

func (f *Form) tableSize() int { return roundUp(f.Chunks*f.stride(), arena.PageSize) }
func (f *Form) memSize() int   { return roundUp(f.Chunks*f.ChunkSize, arena.PageSize) }
func (f *Form) size() int      { return f.chunksAt() + f.memSize() }
