package baseline

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"polder/internal/arena"
	"polder/memnode/wire"
	"polder/pool/control"
	"polder/pool/manager"
	"polder/pool/rpcmw"
	"polder/verbs"
)

// odrpPage is the size of a page in bytes, unless chunks are smaller.
const odrpPage = 4096

// ODRP manages remote memory by pages that the memory node's NIC allocates when they are touched. A chunk is a range
// of addresses, which the node lends by messages, those of package rpcmw. Every access sends a request to a chain of
// work requests at the node (chain.Page). The chain translates an address by a table of the client's own, puts a page
// behind the address if there is none yet, and sends the page or stores one.
//
// Pages have 4 KiB, or the size of a chunk if that is smaller. To write less than a page, or to do an atomic
// operation, the client reads the page, changes it, and writes it back. That is right because a chunk has one
// borrower and its operations go one after the other. It is slow, and so is a chain: that is what ODRP is measured
// for.
//
// Lock order: none; poster.mu is never held across an operation of the device.
type ODRP struct{}

// Name implements manager.Manager.
func (ODRP) Name() string { return wire.ODRP }

// Attach implements manager.Manager. It does not use l.Access.
func (ODRP) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	p := &poster{link: l}
	l.Through(p)
	s, err := rpcmw.AttachWith(ctx, l, wire.ODRP, func(ctx context.Context, ch *control.Channel) (int, error) { return 1, p.open(ctx, ch) })
	if err != nil {
		p.Close()
		return nil, err
	}
	p.setPageSize(min(odrpPage, s.Info().ChunkSize))
	return s, nil
}

// The kinds of requests.
const (
	pageIn  = 0 // the node sends a page
	pageOut = 1 // the node stores one
)

// The layout of a poster's memory.
const (
	entryOff = 0  // the request: an entry's address, and the page behind it
	ackOff   = 64 // receives the answer to pageOut, which is empty
	pageOff  = 4096
	memory   = pageOff + odrpPage
)

// poster implements manager.Poster. It has one request under way at a time, and so have the chains.
type poster struct {
	link  manager.Link
	table uint64 // address of the translation table at the node
	cq    verbs.CQ
	qps   [2]verbs.QP
	mem   *arena.Mapping
	mr    verbs.MR

	mu       sync.Mutex // guards what follows, and mem and the link's buffer between requests
	page     int
	closed   bool
	broken   bool
	busy     bool // queue[0] is under way
	queue    []verbs.SendWR
	sges     []verbs.SGE // the SGE of each of queue
	off      int         // bytes of queue[0] that are done
	writes   bool        // the page has been changed, and is being written
	finished [1]verbs.WC
}

// open connects the queue pairs, and waits until the node is ready for them.
func (p *poster) open(ctx context.Context, ch *control.Channel) (err error) {
	l := &p.link
	if p.mem, err = arena.Anonymous(memory, false); err != nil {
		return err
	}
	if p.mr, err = l.PD.RegMR(p.mem.Bytes(), verbs.AccessLocalWrite); err != nil {
		return fmt.Errorf("cannot register a page: %w", err)
	}
	if p.cq, err = l.Device.CreateCQ(verbs.CQInit{Depth: 16, Handler: p.complete}); err != nil {
		return fmt.Errorf("cannot create a completion queue: %w", err)
	}
	for i := range p.qps {
		p.qps[i], err = l.PD.CreateQP(verbs.QPInit{SendCQ: p.cq, RecvCQ: p.cq, SendDepth: 4, RecvDepth: 4})
		if err != nil {
			return fmt.Errorf("cannot create a queue pair for pages: %w", err)
		}
		hello := wire.Hello{Version: ch.Version(), Kind: wire.KindAccess, Index: uint8(i), Manager: wire.ODRP}
		answer, err := l.Conn.Connect(ctx, p.qps[i], hello.Append(nil))
		if err != nil {
			return fmt.Errorf("cannot connect a queue pair for pages: %w", err)
		}
		if len(answer) != 8 {
			return ch.Violated("a translation table's address of %d bytes", len(answer))
		}
		p.table = binary.LittleEndian.Uint64(answer)
	}
	// The answer comes when the node has armed the chains.
	var r wire.Reply
	release, err := ch.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
		return wire.AppendRequest(b, wire.OpOwned, id, 1, 0)
	})
	if err != nil {
		return err
	}
	release()
	return nil
}

func (p *poster) setPageSize(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.page = n
}

// PostSend implements manager.Poster.
func (p *poster) PostSend(wrs ...verbs.SendWR) error {
	p.mu.Lock()
	if p.closed || p.broken {
		p.mu.Unlock()
		return verbs.ErrClosed
	}
	for _, wr := range wrs {
		p.queue = append(p.queue, wr)
		p.sges = append(p.sges, wr.SGL[0])
	}
	if p.busy {
		p.mu.Unlock()
		return nil
	}
	p.busy = true
	way := p.begin()
	p.mu.Unlock()
	p.request(way)
	return nil
}

// size is how many bytes the first work request in the queue is about.
//
// Preconditions: p.mu is held; it is also held for the functions below, up to advance.
func (p *poster) size() int { return int(p.sges[0].Length) }

// span is the part of the current page that the first work request is about: where it begins in the page, and how
// many bytes it has.
func (p *poster) span() (at, n int) {
	at = int(p.queue[0].RemoteAddr+uint64(p.off)) & (p.page - 1)
	return at, min(p.page-at, p.size()-p.off)
}

// local is the next n bytes of the caller's buffer for the first work request.
func (p *poster) local(n int) []byte {
	at := p.sges[0].Addr - p.link.Buffer.Addr() + uint64(p.off)
	return p.link.Buffer.Bytes()[at:][:n]
}

// begin prepares the request for the current page.
func (p *poster) begin() (way int) {
	addr := p.queue[0].RemoteAddr + uint64(p.off)
	binary.LittleEndian.PutUint64(p.mem.Bytes()[entryOff:], p.table+8*(addr/uint64(p.page)))
	at, n := p.span()
	p.writes = p.queue[0].Op == verbs.OpWrite && n == p.page
	if !p.writes {
		return pageIn
	}
	copy(p.mem.Bytes()[pageOff+at:], p.local(n))
	return pageOut
}

// advance handles the answer to the request under way, and prepares the next request if there is more to do. If the
// answer completes the first work request in the queue, done is set.
func (p *poster) advance() (way int, done, more bool) {
	wr := &p.queue[0]
	at, n := p.span()
	page := p.mem.Bytes()[pageOff:][:p.page]
	if !p.writes { // the page has arrived
		switch wr.Op {
		case verbs.OpRead:
			copy(p.local(n), page[at:])
		case verbs.OpWrite:
			copy(page[at:], p.local(n))
			p.writes = true
		default:
			word := page[at : at+8]
			old := binary.LittleEndian.Uint64(word)
			copy(p.local(8), word)
			switch {
			case wr.Op == verbs.OpFetchAdd:
				binary.LittleEndian.PutUint64(word, old+wr.Swap)
				p.writes = true
			case old == wr.Compare:
				binary.LittleEndian.PutUint64(word, wr.Swap)
				p.writes = true
			}
		}
		if p.writes {
			return pageOut, false, true
		}
	}
	p.off += n
	if p.off < p.size() {
		return p.begin(), false, true
	}
	p.finished[0] = verbs.WC{ID: wr.ID, Op: wr.Op, ByteLen: uint32(p.size())}
	p.off = 0
	p.queue = append(p.queue[:0], p.queue[1:]...)
	p.sges = append(p.sges[:0], p.sges[1:]...)
	if len(p.queue) == 0 {
		return 0, true, false
	}
	return p.begin(), true, true
}

func (p *poster) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: p.mr.Addr() + uint64(off), Length: uint32(n), LKey: p.mr.LKey()}
}

// request sends the request that begin or advance has prepared.
func (p *poster) request(way int) {
	size := p.page
	request := []verbs.SGE{p.sge(entryOff, 8)}
	answer := p.sge(pageOff, size)
	if way == pageOut {
		request = append(request, p.sge(pageOff, size))
		answer = p.sge(ackOff, 8)
	}
	err := p.qps[way].PostRecv(verbs.RecvWR{SGL: []verbs.SGE{answer}})
	if err == nil {
		err = p.qps[way].PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: request})
	}
	if err != nil {
		p.fail()
	}
}

// complete is the completion handler. It touches memory only under p.mu, and only while p is open.
func (p *poster) complete(cq verbs.CQ) {
	var wcs [4]verbs.WC
	for {
		n := cq.Poll(wcs[:])
		if n == 0 {
			return
		}
		for _, wc := range wcs[:n] {
			if wc.Err() != nil {
				p.fail()
			} else if wc.Op == verbs.OpRecv {
				p.answered()
			}
		}
	}
}

// answered handles an answer of the node and sends the next request.
func (p *poster) answered() {
	p.mu.Lock()
	if p.closed || p.broken || !p.busy {
		p.mu.Unlock()
		return
	}
	way, done, more := p.advance()
	p.busy = more
	wcs := p.finished
	p.mu.Unlock()
	if more {
		p.request(way)
	}
	if done {
		p.link.Complete(wcs[:])
	}
}

// fail fails everything that is queued: the connection is of no use any more.
func (p *poster) fail() {
	p.mu.Lock()
	if p.closed || p.broken {
		p.mu.Unlock()
		return
	}
	p.broken = true
	var wcs []verbs.WC
	for _, wr := range p.queue {
		wcs = append(wcs, verbs.WC{ID: wr.ID, Status: verbs.StatusWRFlushErr})
	}
	p.queue, p.sges = nil, nil
	p.mu.Unlock()
	p.link.Complete(wcs)
}

// Close implements manager.Poster.
func (p *poster) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	for _, qp := range p.qps {
		if qp != nil {
			qp.Close()
		}
	}
	if p.cq != nil {
		p.cq.Close()
	}
	if p.mr != nil {
		p.mr.Deregister()
	}
	if p.mem != nil {
		p.mem.Close()
	}
	return nil
}
