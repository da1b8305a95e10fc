package chain

import "polder/verbs"

// The layout of a page chain's memory: its ring, some words, and a page.
const (
	pageTrash   = 3072 // takes results that nobody needs
	pageZero    = 3080 // 0
	pageElement = 3088 // what was taken from the queue
	pageCurrent = 3096 // the entry that is being worked on, or 0
	pageStaging = 4096 // a page to be written

	PageRingSize = 8192 // size of all of it
	MaxPage      = PageRingSize - pageStaging
)

// PageConfig is what a page chain is built from; see Config.
type PageConfig struct {
	Write              bool // pages are stored, not sent
	Chain, Front       Region
	FrontQP            uint32
	RecvCQ, SentCQ     uint32
	TableKey, QueueKey verbs.RKey
	// Head is the address of the head of the client's queue of free pages, a
	// ring of Size bytes.
	Head, Size uint64
	Memory     verbs.LKey // of the region of the pages
	PageSize   int        // at most MaxPage
}

// A PageProgram has the requests that are posted for a page chain.
type PageProgram struct {
	Chain []verbs.SendWR
	Reply verbs.SendWR // to be posted once on the front's send queue
	Recv  []verbs.SGE  // of each of the front's two receives, to be posted once

	conditions []condition
}

// A condition is a request that is executed only if the request at index flip has changed its opcode.
type condition struct{ request, flip int }

// Condition turns the requests that are executed only for an entry without a page into NOPs. The chain itself gives
// them their opcodes and flags back when it needs them. memory is the chain's, whose requests have been posted.
func (p *PageProgram) Condition(memory []byte) {
	for _, c := range p.conditions {
		header := memory[c.request*verbs.WQESize:]
		Store(memory[c.flip*verbs.WQESize+verbs.WQESwap:], Load(header))
		Store(header, 0)
	}
}

// Current reads from a page chain's memory the address of the table entry that the chain is working on, or 0.
func Current(memory []byte) uint64 { return Load(memory[pageCurrent:]) }

// Page builds the chain that serves requests for pages, in one direction (ODRP, section 2.2.3 of the paper). A
// request is the address of an entry of the client's translation table, followed by a page if it is to be written.
// The chain
//
//	WAIT       for the request, which the receive scatters into the fields below
//	WRITE      the entry's address to where the CPU sees it: see Current
//	FETCH_ADD  0 to the entry: a translation, or 0
//	CMP_SWAP   the headers of the next four from NOPs to their requests, if it was 0
//	  FETCH_ADD  on the head of the client's queue of free pages
//	  READ       the element
//	  WRITE      zero into the element
//	  WRITE      the page's address into the entry
//	FETCH_ADD  0 to the entry: now it is a translation
//	READ       the page that came with the request into it, or
//	ENABLE     a SEND of it; the SEND says that the chain is ready again
//	...        restores the opcodes and its own counts, and enables itself
//
// The entry is read by an atomic operation because that must be aligned: half of one entry and half of the next would
// make an address that the client can choose.
func Page(c *PageConfig) *PageProgram {
	out := &PageProgram{Reply: verbs.SendWR{Op: verbs.OpSend, Flags: signaled}}
	p := &program{chain: c.Chain, trashAt: pageTrash}
	word := func(off int) verbs.SGE { return c.Chain.sge(off, 8) }
	put := func(from, to verbs.SGE, flags verbs.SendFlags) {
		p.add(verbs.SendWR{Op: verbs.OpWrite, Flags: flags, RemoteAddr: to.Addr, RKey: c.Chain.RKey, SGL: []verbs.SGE{from}})
	}
	const conditional, entry = 4, 4 // requests; the index of the first look at the entry
	wait := p.add(verbs.SendWR{Op: verbs.OpWait, CQN: c.RecvCQ, Count: 1})
	flip := entry + conditional
	pop := flip + conditional
	element, zero, install, again := pop+2, pop+3, pop+4, pop+5
	addr := p.field(entry, verbs.WQEAddr, 8)
	put(addr, word(pageCurrent), 0)
	put(addr, p.field(install, verbs.WQEAddr, 8), 0)
	put(addr, p.field(again, verbs.WQEAddr, 8), 0)
	found := p.field(flip, verbs.WQECompare, 8)
	p.add(verbs.SendWR{Op: verbs.OpFetchAdd, RKey: c.TableKey, SGL: []verbs.SGE{found}})
	for i := 1; i < conditional; i++ {
		put(found, p.field(flip+i, verbs.WQECompare, 8), fence)
	}
	for i, request := range []int{pop, element, zero, install} {
		out.conditions = append(out.conditions, condition{request, flip + i})
		p.add(verbs.SendWR{Op: verbs.OpCmpSwap, RemoteAddr: p.field(request, 0, 8).Addr, RKey: c.Chain.RKey,
			SGL: []verbs.SGE{p.trash()}})
	}
	p.add(verbs.SendWR{Op: verbs.OpMaskedFetchAdd, RemoteAddr: c.Head, RKey: c.QueueKey,
		Swap: 8, Compare: c.Size >> 1, SGL: []verbs.SGE{p.field(element, verbs.WQEAddr, 8)}})
	put(p.field(element, verbs.WQEAddr, 8), p.field(zero, verbs.WQEAddr, 8), fence)
	p.add(verbs.SendWR{Op: verbs.OpRead, RKey: c.QueueKey, SGL: []verbs.SGE{word(pageElement)}})
	p.add(verbs.SendWR{Op: verbs.OpWrite, Flags: fence, RKey: c.QueueKey, SGL: []verbs.SGE{word(pageZero)}})
	p.add(verbs.SendWR{Op: verbs.OpWrite, Flags: fence, RKey: c.TableKey, SGL: []verbs.SGE{word(pageElement)}})
	translated := c.Front.sge(verbs.WQESGE0, 8)
	if c.Write {
		translated = p.field(again+1, verbs.WQESGE0, 8)
	}
	p.add(verbs.SendWR{Op: verbs.OpFetchAdd, Flags: fence, RKey: c.TableKey, SGL: []verbs.SGE{translated}})
	page := verbs.SGE{Length: uint32(c.PageSize), LKey: c.Memory} // the address is filled in
	out.Recv = []verbs.SGE{addr}
	if c.Write {
		p.add(verbs.SendWR{Op: verbs.OpRead, Flags: fence, RemoteAddr: c.Chain.Addr + pageStaging, RKey: c.Chain.RKey,
			SGL: []verbs.SGE{page}})
		out.Recv = append(out.Recv, c.Chain.sge(pageStaging, c.PageSize))
	} else {
		out.Reply.SGL = []verbs.SGE{page}
	}
	// The next receive is enabled only when the page that came with this request has been used.
	open := p.add(verbs.SendWR{Op: verbs.OpEnableRecv, Flags: fence, QPN: c.FrontQP, Count: 2})
	reply := p.add(verbs.SendWR{Op: verbs.OpEnable, Flags: fence, QPN: c.FrontQP, Count: 1})
	sent := p.add(verbs.SendWR{Op: verbs.OpWait, CQN: c.SentCQ, Count: 1})
	put(word(pageZero), word(pageCurrent), 0)
	for _, c := range out.conditions {
		put(word(pageZero), p.field(c.request, 0, 8), 0)
	}
	for _, i := range []int{wait, open, reply, sent} {
		p.bump(i, 1)
	}
	p.again(pageTrash / verbs.WQESize)
	out.Chain = p.wrs
	return out
}
