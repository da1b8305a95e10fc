package verbs

import "encoding/binary"

// WQESize is the size in bytes of a work-queue entry.
const WQESize = 64

// The layout of a work-queue entry, little-endian. Work requests that rewrite
// other work requests aim at these offsets.
//
//	 0  u8   opcode
//	 1  u8   flags        SendFlags
//	 2  u8   number of SGEs, 0 to 2 (1 for atomics; 1, a table, with SendSGLIndirect)
//	 3  u8   access       BIND_MW
//	 4  u32  qpn          BIND_MW: the window's QP; ENABLE*: queue; WAIT: CQ number
//	 8  u64  id           returned in the completion
//	16  u64  address      READ, WRITE, atomics: remote; BIND_MW: start; WAIT, ENABLE*: count
//	24  u32  rkey         READ, WRITE, atomics, BIND_MW, LOCAL_INV
//	28  u32  lkey         BIND_MW: the MR that the window is bound to
//	32  SGE  first SGE: u64 address, u32 length, u32 lkey; BIND_MW: u64 length
//	48  SGE  second SGE; CMP_SWAP: u64 compare, u64 swap;
//	         FETCH_ADD: u64 (ignored; MASKED_FETCH_ADD: u64 mask), u64 addend
//
// An entry of a receive queue has the opcode RECV, an id and SGEs. Zeroed
// memory in a send queue is a NOP without completion.
const (
	WQEOpcode  = 0
	WQEFlags   = 1
	WQENumSGE  = 2
	WQEAccess  = 3
	WQEQPN     = 4
	WQEID      = 8
	WQEAddr    = 16
	WQERKey    = 24
	WQELKey    = 28
	WQESGE0    = 32
	WQELength  = 32
	WQESGE1    = 48
	WQECompare = 48
	WQESwap    = 56
)

// SGESize is the size in bytes of an SGE in a work-queue entry or a table.
const SGESize = 16

// PutSGE encodes s into b, which has at least SGESize bytes.
func PutSGE(b []byte, s SGE) {
	_ = b[SGESize-1]
	binary.LittleEndian.PutUint64(b, s.Addr)
	binary.LittleEndian.PutUint32(b[8:], s.Length)
	binary.LittleEndian.PutUint32(b[12:], uint32(s.LKey))
}

// GetSGE decodes what PutSGE encoded.
func GetSGE(b []byte) SGE {
	_ = b[SGESize-1]
	return SGE{
		Addr:   binary.LittleEndian.Uint64(b),
		Length: binary.LittleEndian.Uint32(b[8:]),
		LKey:   LKey(binary.LittleEndian.Uint32(b[12:])),
	}
}
