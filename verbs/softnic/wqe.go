package softnic

import (
	"encoding/binary"
	"fmt"

	"polder/verbs"
)

// wqe is a decoded work-queue entry. See verbs.WQESize for the layout.
type wqe struct {
	op      verbs.Opcode
	flags   verbs.SendFlags
	numSGE  uint8
	access  verbs.Access
	qpn     uint32
	id      uint64
	addr    uint64
	rkey    verbs.RKey
	lkey    verbs.LKey
	length  uint64 // shares its bytes with the first SGE
	compare uint64 // shares its bytes with the second SGE
	swap    uint64
}

// ring is a work queue: entries in registered memory, and the indexes that
// count them from the queue's creation.
type ring struct {
	mem     []byte
	depth   uint64
	mask    uint64 // depth-1 if that is a power of two, else 0
	managed bool
	posted  uint64 // index of the next entry to be posted
	enabled uint64 // managed: entries before it may be executed
	next    uint64 // index of the next entry to execute
	done    uint64 // entries before it have retired and may be overwritten

	fetched []byte // Config.Prefetch: entries as they were when they were read; else nil
	ahead   uint64 // entries before it have been read into fetched

	mr    *region // that the ring lies in, nil if it is the NIC's own memory
	spill *region // for SGLs that an entry has no room for; made when needed
}

// limit is the index that execution stops at.
func (r *ring) limit() uint64 {
	if r.managed {
		return r.enabled
	}
	return r.posted
}

// offset is where the entry of an index begins.
func (r *ring) offset(index uint64) uint64 {
	if r.mask != 0 {
		return (index & r.mask) * verbs.WQESize
	}
	return index % r.depth * verbs.WQESize
}

func (r *ring) entry(index uint64) []byte {
	off := r.offset(index)
	return r.mem[off : off+verbs.WQESize : off+verbs.WQESize]
}

// prefetch reads the entries that may be executed, as far as fetched has room.
func (r *ring) prefetch() {
	if r.fetched == nil {
		return
	}
	for r.ahead = max(r.ahead, r.next); r.ahead < min(r.limit(), r.next+r.depth); r.ahead++ {
		copy(r.fetched[r.offset(r.ahead):], r.entry(r.ahead))
	}
}

// execute returns the next entry to execute, as the NIC has read it.
func (r *ring) execute(index uint64) []byte {
	if r.fetched == nil {
		return r.entry(index)
	}
	r.prefetch()
	off := r.offset(index)
	return r.fetched[off : off+verbs.WQESize]
}

// room reports whether k more entries can be posted.
func (r *ring) room(k int) bool {
	r.posted = max(r.posted, r.next) // a managed ring may have run ahead
	return uint64(k) <= r.depth-(r.posted-r.done)
}

// id is the id in the entry of an index.
func (r *ring) id(index uint64) uint64 {
	return binary.LittleEndian.Uint64(r.mem[r.offset(index)+verbs.WQEID:])
}

// read decodes the entry of an index.
func (r *ring) read(index uint64, w *wqe) {
	le, b := binary.LittleEndian, r.execute(index)
	_ = b[verbs.WQESize-1]
	w.op = verbs.Opcode(b[verbs.WQEOpcode])
	w.flags = verbs.SendFlags(b[verbs.WQEFlags])
	w.numSGE = b[verbs.WQENumSGE]
	w.access = verbs.Access(b[verbs.WQEAccess])
	w.qpn = le.Uint32(b[verbs.WQEQPN:])
	w.id = le.Uint64(b[verbs.WQEID:])
	w.addr = le.Uint64(b[verbs.WQEAddr:])
	w.rkey = verbs.RKey(le.Uint32(b[verbs.WQERKey:]))
	w.lkey = verbs.LKey(le.Uint32(b[verbs.WQELKey:]))
	w.length = le.Uint64(b[verbs.WQELength:])
	w.compare = le.Uint64(b[verbs.WQECompare:])
	w.swap = le.Uint64(b[verbs.WQESwap:])
}

// readSGL appends the SGEs of the entry of an index, w, to sgl.
func (n *NIC) readSGL(sgl []verbs.SGE, pd *domain, r *ring, index uint64, w *wqe) ([]verbs.SGE, verbs.Status) {
	b := r.execute(index)
	if w.flags&verbs.SendSGLIndirect == 0 {
		switch w.numSGE {
		case 0:
		case 1:
			sgl = append(sgl, verbs.GetSGE(b[verbs.WQESGE0:]))
		case 2:
			sgl = append(sgl, verbs.GetSGE(b[verbs.WQESGE0:]), verbs.GetSGE(b[verbs.WQESGE1:]))
		default:
			return sgl, verbs.StatusLocQPOpErr
		}
		return sgl, verbs.StatusSuccess
	}
	table := verbs.GetSGE(b[verbs.WQESGE0:])
	if w.numSGE != 1 || table.Length%verbs.SGESize != 0 || int(table.Length/verbs.SGESize) > n.cfg.MaxSGE {
		return sgl, verbs.StatusLocQPOpErr
	}
	if table.Length == 0 {
		return sgl, verbs.StatusSuccess
	}
	mem := n.local(pd, table.LKey, table.Addr, uint64(table.Length), 0)
	if mem == nil {
		return sgl, verbs.StatusLocProtErr
	}
	for ; len(mem) > 0; mem = mem[verbs.SGESize:] {
		sgl = append(sgl, verbs.GetSGE(mem))
	}
	return sgl, verbs.StatusSuccess
}

// sglLength is how many bytes an SGL has, which may exceed 32 bits.
func sglLength(sgl []verbs.SGE) uint64 {
	var sum uint64
	for i := range sgl {
		sum += uint64(sgl[i].Length)
	}
	return sum
}

// checkSend says what is wrong with a work request, apart from what only its
// execution can tell.
func (n *NIC) checkSend(wr *verbs.SendWR) error {
	switch {
	case int(wr.Op) >= verbs.NumOpcodes || wr.Op == verbs.OpRecv:
		return fmt.Errorf("opcode %v: %w", wr.Op, verbs.ErrInvalid)
	case !wr.Flags.Valid():
		return fmt.Errorf("flags %v: %w", wr.Flags, verbs.ErrInvalid)
	}
	most := n.cfg.MaxSGE
	switch wr.Op {
	case verbs.OpSend, verbs.OpRead, verbs.OpWrite, verbs.OpAlloc:
		if wr.Flags&verbs.SendSGLIndirect != 0 && len(wr.SGL) != 1 {
			return fmt.Errorf("%d SGEs with %v, not 1: %w", len(wr.SGL), verbs.SendSGLIndirect, verbs.ErrInvalid)
		}
	case verbs.OpCmpSwap, verbs.OpFetchAdd, verbs.OpMaskedFetchAdd:
		if len(wr.SGL) != 1 || wr.SGL[0].Length != 8 {
			return fmt.Errorf("%v needs one SGE of 8 bytes: %w", wr.Op, verbs.ErrInvalid)
		}
	default:
		most = 0
	}
	if len(wr.SGL) > most {
		return fmt.Errorf("%v with %d SGEs, not at most %d: %w", wr.Op, len(wr.SGL), most, verbs.ErrInvalid)
	}
	return nil
}

// writeSend encodes wr, which checkSend accepts, into the entry of an index.
func (n *NIC) writeSend(q *qp, index uint64, wr *verbs.SendWR) error {
	le, b := binary.LittleEndian, q.sq.entry(index)
	flags, sgl := wr.Flags, wr.SGL
	var spilled [1]verbs.SGE
	if len(sgl) > 2 {
		s, err := n.spillSGL(q, &q.sq, index, sgl)
		if err != nil {
			return err
		}
		spilled[0] = s
		sgl, flags = spilled[:], flags|verbs.SendSGLIndirect
	}
	_ = b[verbs.WQESize-1]
	qpn, addr := wr.QPN, wr.RemoteAddr
	switch wr.Op {
	case verbs.OpWait:
		qpn, addr = wr.CQN, wr.Count
	case verbs.OpEnable, verbs.OpEnableRecv:
		addr = wr.Count
	}
	b[verbs.WQEOpcode] = byte(wr.Op)
	b[verbs.WQEFlags] = byte(flags)
	b[verbs.WQENumSGE] = byte(len(sgl))
	b[verbs.WQEAccess] = byte(wr.BindAccess)
	le.PutUint32(b[verbs.WQEQPN:], qpn)
	le.PutUint64(b[verbs.WQEID:], wr.ID)
	le.PutUint64(b[verbs.WQEAddr:], addr)
	le.PutUint32(b[verbs.WQERKey:], uint32(wr.RKey))
	le.PutUint32(b[verbs.WQELKey:], uint32(wr.BindLKey))
	clear(b[verbs.WQESGE0:])
	for i := range sgl {
		verbs.PutSGE(b[verbs.WQESGE0+i*verbs.SGESize:], sgl[i])
	}
	switch wr.Op {
	case verbs.OpBindMW:
		le.PutUint64(b[verbs.WQELength:], wr.BindLength)
	case verbs.OpCmpSwap, verbs.OpFetchAdd, verbs.OpMaskedFetchAdd:
		le.PutUint64(b[verbs.WQECompare:], wr.Compare)
		le.PutUint64(b[verbs.WQESwap:], wr.Swap)
	}
	return nil
}

// writeRecv encodes wr into the entry of an index.
func (n *NIC) writeRecv(q *qp, index uint64, wr *verbs.RecvWR) error {
	b, sgl := q.rq.entry(index), wr.SGL
	var spilled [1]verbs.SGE
	var flags verbs.SendFlags
	if len(sgl) > 2 {
		s, err := n.spillSGL(q, &q.rq, index, sgl)
		if err != nil {
			return err
		}
		spilled[0] = s
		sgl, flags = spilled[:], verbs.SendSGLIndirect
	}
	clear(b)
	b[verbs.WQEOpcode] = byte(verbs.OpRecv)
	b[verbs.WQEFlags] = byte(flags)
	b[verbs.WQENumSGE] = byte(len(sgl))
	binary.LittleEndian.PutUint64(b[verbs.WQEID:], wr.ID)
	for i := range sgl {
		verbs.PutSGE(b[verbs.WQESGE0+i*verbs.SGESize:], sgl[i])
	}
	return nil
}

// spillSGL stores an SGL of more than two SGEs beside the ring and returns the
// SGE that names it.
func (n *NIC) spillSGL(q *qp, r *ring, index uint64, sgl []verbs.SGE) (verbs.SGE, error) {
	each := uint64(n.cfg.MaxSGE * verbs.SGESize)
	if r.spill == nil {
		m, err := n.regMR(q.pd, make([]byte, r.depth*each), 0)
		if err != nil {
			return verbs.SGE{}, fmt.Errorf("no room for SGLs: %w", err)
		}
		r.spill = m
	}
	off := index % r.depth * each
	for i, s := range sgl {
		verbs.PutSGE(r.spill.mem[off+uint64(i*verbs.SGESize):], s)
	}
	return verbs.SGE{
		Addr:   r.spill.base + off,
		Length: uint32(len(sgl) * verbs.SGESize),
		LKey:   verbs.LKey(r.spill.key),
	}, nil
}
