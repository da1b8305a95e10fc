package chain

import "polder/verbs"

// Sizes of messages.
const (
	HandleSize = 3 // of a request to free
)

// RequestSize is the size of a request to allocate: a u32 queue pair number for every access window, then a u64
// address and a u32 key for the answer.
func RequestSize(windows int) int { return 4*(windows-1) + 12 }

// RingSize is the size of the memory of each of a desk's two rings, the chain's and the front's: queue entries, and
// behind them a few words.
const RingSize = 4096

// Offsets in a ring's memory behind the entries.
const (
	ownerOff = RingSize - 8  // the client's number
	zeroOff  = RingSize - 16 // 0
	trashOff = RingSize - 24 // takes results that nobody needs
)

const maxRequests = (trashOff - verbs.MaxWindows*verbs.SlotSize) / verbs.WQESize

// A Region is registered memory as a chain sees it.
type Region struct {
	Addr uint64
	LKey verbs.LKey
	RKey verbs.RKey // of a window that is bound to the chain's queue pair
}

func (r Region) sge(off, size int) verbs.SGE {
	return verbs.SGE{Addr: r.Addr + uint64(off), Length: uint32(size), LKey: r.LKey}
}

// Config is what both programs are built from. The front is the queue pair that the client is connected to; the chain
// runs on one in loopback beside it.
type Config struct {
	Table *Table
	Queue *Queue
	// TableKey and QueueKey are keys of windows over the table and the
	// queue, bound to the chain's queue pair.
	TableKey, QueueKey verbs.RKey
	Chain, Front       Region // their rings; Front.RKey is not used
	FrontQP            uint32
	RecvCQ, SentCQ     uint32 // of the front; only WAITs count their completions
	// Done and Failed are how many requests have been served so far, and how many have been received in vain.
	Done, Failed uint64

	// Of an allocation chain.
	FreeQP    uint32
	ChunkSize uint64
	Access    verbs.Access
	// Budget is how many chunks the client may take beyond those that it frees. FreedCQ is the completion queue of
	// the client's free chain, and of nothing else. If FreedCQ is 0, the client may take all chunks.
	Budget  int
	FreedCQ uint32

	// Prefetched says that the device reads entries as soon as they are enabled
	// (verbs.DeviceAttr.Prefetches).
	Prefetched bool

	// Of a free chain: To is where chunks go, Queue.Tail or Queue.FreedTail. If chunks are zeroed first, Zeros is
	// where ChunkSize zeros are, and ZeroRKey opens the memory to be zeroed.
	To       uint64
	Zeros    *verbs.SGE
	ZeroRKey verbs.RKey // of a window over the memory
}

// SetOwner puts a client's number into the memory of a chain's ring.
func SetOwner(ring []byte, owner uint64) { Store(ring[ownerOff:], owner) }

// Received is how many requests a free chain has begun to serve, read from its ring's memory. It works for an
// allocation chain that keeps to a budget, too.
func Received(ring []byte) uint64 { return Load(ring[verbs.WQEAddr:]) - 1 }

// A Program has the requests that are posted for a chain.
type Program struct {
	Chain   []verbs.SendWR
	First   int            // how many of Chain are enabled at first
	Front   []verbs.SendWR // to be posted once on the front's send queue
	Recv    []verbs.SGE    // of each of the front's two receives, to be posted once
	Entry   int            // index of the READ of the entry, which fails if the queue is empty
	Element int            // index of the READ of the element
	Sent    int            // of an allocation chain: index of the WAIT for its answer to have been sent
}

// program builds a chain.
type program struct {
	chain   Region
	trashAt int // offset of the word that takes results that nobody needs
	wrs     []verbs.SendWR

	prefetched bool
	releases   []int // indexes of the ENABLEs of release
}

// add appends a request and returns its index, which is also its ID.
func (p *program) add(wr verbs.SendWR) int {
	wr.ID = uint64(len(p.wrs))
	p.wrs = append(p.wrs, wr)
	return len(p.wrs) - 1
}

// field is an SGE for a field of the chain's request at index.
func (p *program) field(index, off, size int) verbs.SGE {
	return p.chain.sge(index*verbs.WQESize+off, size)
}

func (p *program) trash() verbs.SGE { return p.chain.sge(p.trashAt, 8) }

// bump appends a FETCH_ADD to the count of the request at index.
func (p *program) bump(index int, by uint64) {
	p.add(verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: p.field(index, verbs.WQEAddr, 8).Addr,
		RKey: p.chain.RKey, Swap: by, SGL: []verbs.SGE{p.trash()}})
}

// copyAddr appends a WRITE that copies the address field of the request from into that of the request to.
func (p *program) copyAddr(from, to int, flags verbs.SendFlags) {
	p.add(verbs.SendWR{Op: verbs.OpWrite, Flags: flags, RemoteAddr: p.field(to, verbs.WQEAddr, 8).Addr,
		RKey: p.chain.RKey, SGL: []verbs.SGE{p.field(from, verbs.WQEAddr, 8)}})
}

// release ends a section: the requests that follow are rewritten by those before. If the device reads entries as soon
// as they are enabled, release appends an ENABLE of the next section, which must be enabled by nothing else, and
// before it a FETCH_ADD. The ENABLE waits until the FETCH_ADD has been answered; then the WRITEs before it have been
// executed, too. The FETCH_ADD also restores the count of the previous section's ENABLE, or, in the first section, of
// the chain's last ENABLE: a count must be restored in a section other than its own.
func (p *program) release() {
	if !p.prefetched {
		return
	}
	restored := 0 // the chain's last ENABLE; sections fills its address in
	if n := len(p.releases); n > 0 {
		restored = p.releases[n-1]
	}
	p.bump(restored, 0)
	p.releases = append(p.releases, p.add(verbs.SendWR{Op: verbs.OpEnable, Flags: verbs.SendFence}))
}

// released is how many requests release appends.
func (p *program) released() int {
	if p.prefetched {
		return 2
	}
	return 0
}

// sections fills in the counts of the ENABLEs that release appended, for a chain of length requests, and returns how
// many requests the first section has.
func (p *program) sections(length int) (first int) {
	for i, r := range p.releases {
		end := length
		if i+1 < len(p.releases) {
			end = p.releases[i+1] + 1
		}
		p.wrs[r].Count = uint64(end)
		p.wrs[r-1].Swap = uint64(length)
	}
	restore := &p.wrs[p.releases[0]-1]
	restore.RemoteAddr = p.field(length-1, verbs.WQEAddr, 8).Addr
	return p.releases[0] + 1
}

// again appends the requests that make the chain start over, and returns how many requests are to be enabled at
// first. It panics if the chain has more than room requests.
func (p *program) again(room int) (first int) {
	if p.prefetched {
		length := len(p.wrs) + 2
		p.bump(p.releases[len(p.releases)-1], uint64(length))
		first = p.sections(length)
		p.add(verbs.SendWR{Op: verbs.OpEnable, Flags: verbs.SendFence, Count: uint64(first)})
		p.fits(room)
		return first
	}
	length := uint64(len(p.wrs) + 2)
	p.bump(len(p.wrs)+1, length)
	p.add(verbs.SendWR{Op: verbs.OpEnable, Flags: verbs.SendFence, Count: length})
	p.fits(room)
	return int(length)
}

func (p *program) fits(room int) {
	if len(p.wrs) > room {
		panic("BUG: the chain does not fit into its ring")
	}
}

const (
	fence    = verbs.SendFence
	signaled = verbs.SendSignaled
)

// Alloc builds the allocation chain.
func Alloc(c *Config) *Program {
	p := &program{chain: c.Chain, trashAt: trashOff, prefetched: c.Prefetched}
	windows := c.Table.Windows
	wait := p.add(verbs.SendWR{Op: verbs.OpWait, CQN: c.RecvCQ, Count: c.Done + c.Failed + 1})
	credit := -1
	if c.FreedCQ != 0 {
		// Counted before the request is served, so that the CPU sees which client asks for too much.
		p.bump(wait, 1)
		credit = p.add(verbs.SendWR{Op: verbs.OpWait, CQN: c.FreedCQ, Count: c.Done + 1 - uint64(c.Budget)})
	}
	head := p.add(verbs.SendWR{Op: verbs.OpMaskedFetchAdd, RemoteAddr: c.Queue.Head(), RKey: c.QueueKey,
		Swap: 8, Compare: c.Queue.Wrap()})
	p.release()
	const dups = 2
	element := len(p.wrs) + 1
	entry := element + p.released() + dups
	zero := entry + p.released() + 1
	owner := zero + windows + 1
	p.copyAddr(element, zero, fence)
	p.add(verbs.SendWR{Op: verbs.OpRead, RKey: c.QueueKey, SGL: []verbs.SGE{p.field(entry, verbs.WQEAddr, 8)}})
	p.release()
	p.copyAddr(entry, owner, fence)
	p.wrs[head].SGL = []verbs.SGE{p.field(element, verbs.WQEAddr, 8)}
	p.add(verbs.SendWR{Op: verbs.OpRead, RKey: c.TableKey})
	p.release()
	p.add(verbs.SendWR{Op: verbs.OpWrite, Flags: fence, RKey: c.QueueKey, SGL: []verbs.SGE{c.Chain.sge(zeroOff, 8)}})
	answer := []verbs.SGE{{}, p.field(entry, verbs.WQEAddr, 8)}
	var recv []verbs.SGE
	for j := range windows {
		wr := verbs.SendWR{Op: verbs.OpBindMW, BindLength: c.ChunkSize, BindAccess: c.Access}
		// The fields of an entry's slot lie side by side in a request, too. In front of the first slot lies the
		// owner; in a request, the ID lies in front of the address.
		from, size := verbs.WQEAddr, verbs.SlotSize
		if j == 0 {
			wr.QPN = c.FreeQP
			from, size = verbs.WQEID, verbs.EntrySlots+verbs.SlotSize
		}
		i := p.add(wr)
		p.wrs[entry].SGL = append(p.wrs[entry].SGL, p.field(i, from, size))
		if j == 0 {
			answer[0] = p.field(i, verbs.WQEAddr, 8)
			continue
		}
		answer = append(answer, p.field(i, verbs.WQERKey, 4))
		recv = append(recv, p.field(i, verbs.WQEQPN, 4))
	}
	p.add(verbs.SendWR{Op: verbs.OpWrite, RKey: c.TableKey, SGL: []verbs.SGE{c.Chain.sge(ownerOff, 8)}})
	const depth = 2
	open := p.add(verbs.SendWR{Op: verbs.OpEnableRecv, QPN: c.FrontQP, Count: c.Done + c.Failed + 2})
	reply := p.add(verbs.SendWR{Op: verbs.OpEnable, QPN: c.FrontQP, Count: depth * (c.Done + 1)})
	sent := p.add(verbs.SendWR{Op: verbs.OpWait, CQN: c.SentCQ, Count: c.Done + 1})
	if credit >= 0 {
		p.bump(credit, 1)
	} else {
		p.bump(wait, 1)
	}
	p.bump(open, 1)
	p.bump(reply, depth)
	p.bump(sent, 1)
	first := p.again(maxRequests)
	return &Program{
		Chain: p.wrs,
		First: first,
		Front: []verbs.SendWR{
			{Op: verbs.OpWrite, SGL: answer},
			{Op: verbs.OpSend, Flags: signaled},
		},
		Recv:    append(recv, c.Front.sge(verbs.WQEAddr, 12)),
		Entry:   entry,
		Element: element,
		Sent:    sent,
	}
}

// Free builds the free chain.
func Free(c *Config) *Program {
	p := &program{chain: c.Chain, trashAt: trashOff, prefetched: c.Prefetched}
	windows := c.Table.Windows
	depth := uint64(windows + 1)
	wait := p.add(verbs.SendWR{Op: verbs.OpWait, CQN: c.RecvCQ, Count: c.Done + 1})
	// Counted before the client learns of it, so that the client never seems to have more chunks than it has.
	p.bump(wait, 1)
	p.release()
	read := p.add(verbs.SendWR{Op: verbs.OpRead, RKey: c.TableKey, RemoteAddr: c.Table.Addr})
	owner := len(p.wrs) + 1 + p.released() + 2 + windows
	if c.Zeros != nil {
		owner++
	}
	p.copyAddr(read, owner, 0)
	p.release()
	revoke := p.add(verbs.SendWR{Op: verbs.OpEnable, Flags: fence, QPN: c.FrontQP, Count: depth*c.Done + uint64(windows)})
	revoked := p.add(verbs.SendWR{Op: verbs.OpWait, CQN: c.SentCQ, Count: 2*c.Done + 1})
	sgl := []verbs.SGE{p.trash()} // the owner
	var keys []verbs.SGE
	front := make([]verbs.SendWR, windows, windows+1)
	for j := range windows {
		i := p.add(verbs.SendWR{Op: verbs.OpMaskedFetchAdd, RKey: c.TableKey, Swap: 1, Compare: 1 << 7, SGL: []verbs.SGE{p.trash()}})
		keys = append(keys, p.field(i, verbs.WQEAddr, 8))
		front[j] = verbs.SendWR{Op: verbs.OpLocalInv, Flags: verbs.SendAnyQP}
		inv := j * verbs.WQESize
		if j > 0 {
			sgl = append(sgl, c.Front.sge(inv+verbs.WQEAddr, verbs.SlotSize))
			continue
		}
		// The first window proves that the owner asks. Its address is used for zeroing.
		front[0].Flags = 0
		addr := p.trash()
		if c.Zeros != nil {
			addr = p.field(owner-1, verbs.WQEAddr, 8)
		}
		sgl = append(sgl, addr, c.Front.sge(inv+verbs.WQERKey, 8))
	}
	front[windows-1].Flags |= signaled
	front = append(front, verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
	if gap := verbs.EntryWords - verbs.EntrySlots - windows*verbs.SlotSize; gap > 0 {
		sgl = append(sgl, c.Chain.sge(trashOff-gap, gap)) // slots that are not used
	}
	p.wrs[read].SGL = append(sgl, keys...)
	if c.Zeros != nil {
		p.add(verbs.SendWR{Op: verbs.OpWrite, RKey: c.ZeroRKey, SGL: []verbs.SGE{*c.Zeros}})
	}
	p.add(verbs.SendWR{Op: verbs.OpWrite, RKey: c.TableKey, SGL: []verbs.SGE{c.Chain.sge(zeroOff, 8)}})
	tail := p.add(verbs.SendWR{Op: verbs.OpMaskedFetchAdd, RemoteAddr: c.To, RKey: c.QueueKey, Swap: 8, Compare: c.Queue.Wrap()})
	p.release()
	// An allocation beyond the budget waits for this completion.
	put := p.add(verbs.SendWR{Op: verbs.OpWrite, Flags: fence | signaled, RKey: c.QueueKey, SGL: []verbs.SGE{p.field(read, verbs.WQEAddr, 8)}})
	p.wrs[tail].SGL = []verbs.SGE{p.field(put, verbs.WQEAddr, 8)}
	open := p.add(verbs.SendWR{Op: verbs.OpEnableRecv, QPN: c.FrontQP, Count: c.Done + 2})
	reply := p.add(verbs.SendWR{Op: verbs.OpEnable, QPN: c.FrontQP, Count: depth * (c.Done + 1)})
	sent := p.add(verbs.SendWR{Op: verbs.OpWait, CQN: c.SentCQ, Count: 2*c.Done + 2})
	p.bump(revoke, depth)
	p.bump(revoked, 2)
	p.bump(open, 1)
	p.bump(reply, depth)
	p.bump(sent, 2)
	first := p.again(maxRequests)
	return &Program{
		Chain: p.wrs,
		First: first,
		Front: front,
		Recv:  []verbs.SGE{p.field(read, verbs.WQEAddr+1, HandleSize)},
		Entry: read,
	}
}
