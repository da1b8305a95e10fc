package memnode

import (
	"fmt"
	"sync/atomic"

	"polder/internal/arena"
	"polder/memnode/chain"
	"polder/verbs"
)

// nicZeroes is the size of the largest chunks that the NIC zeroes itself when they are freed. Larger chunks wait for
// the CPU, which gives their pages back to the operating system. To do that for every small chunk would cost more
// than the memory is worth, and could not keep up with the NIC.
const nicZeroes = 64 << 10

// windows is the metadata of one-sided management: a table with a group of windows for every chunk, and the queue of
// the free chunks' entries.
type windows struct {
	*memory
	count int // windows per chunk
	table *chain.Table
	queue *chain.Queue
	all   []verbs.MW // count for every chunk

	// Entries that are withheld from lending because the host needs the memory (bound): how many should be, and those
	// that are.
	toHold    int
	held      []uint64
	heldCount atomic.Int64 // len(held), for stats

	tableMem, queueMem, zeroMem *arena.Mapping
	tableMR, queueMR, zeroMR    verbs.MR // zeroMR is nil if the CPU zeroes
}

func newWindows(m *memory, chunks, clients, group int) (*windows, error) {
	w := &windows{memory: m, count: group + 1}
	if err := w.open(chunks, clients); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *windows) open(chunks, clients int) (err error) {
	if w.ledger != nil {
		w.tableMem, err = w.ledger.MapTable()
	} else {
		w.tableMem, err = anonymous(chain.TableSize(chunks))
	}
	if err != nil {
		return err
	}
	if w.tableMR, err = w.register(w.tableMem); err != nil {
		return err
	}
	w.table, err = chain.NewTable(w.tableMem.Bytes()[:chain.TableSize(chunks)], w.tableMR.Addr(), w.count)
	if err != nil {
		// The address does not fit (NewTable): register the memory again, which gives another one.
		first := w.tableMR
		if w.tableMR, err = w.pd.RegMR(w.tableMem.Bytes(), verbs.AccessLocalWrite|verbs.AccessMWBind); err != nil {
			return err
		}
		first.Deregister()
		if w.table, err = chain.NewTable(w.tableMem.Bytes()[:chain.TableSize(chunks)], w.tableMR.Addr(), w.count); err != nil {
			return err
		}
	}
	if w.queueMem, err = anonymous(chain.QueueSize(chunks, clients)); err != nil {
		return err
	}
	if w.queueMR, err = w.register(w.queueMem); err != nil {
		return err
	}
	w.queue = chain.NewQueue(w.queueMem.Bytes(), w.queueMR.Addr(), chunks, clients)
	if w.size <= nicZeroes {
		if w.zeroMem, err = anonymous(w.size); err != nil {
			return err
		}
		if w.zeroMR, err = w.register(w.zeroMem); err != nil {
			return err
		}
	}
	w.all = make([]verbs.MW, chunks*w.count)
	for i := range uint32(chunks) {
		w.table.Describe(i, w.address(i), w.mr.LKey())
		if err := w.replace(i); err != nil {
			return err
		}
		if w.table.Owner(i) == 0 { // otherwise it has been lent since before this process
			w.queue.Push(w.table.Entry(i))
		}
	}
	return nil
}

// anonymous maps whole pages for size bytes.
func anonymous(size int) (*arena.Mapping, error) {
	return arena.Anonymous((size+arena.PageSize-1)/arena.PageSize*arena.PageSize, false)
}

// register registers memory without remote rights.
func (w *windows) register(mem *arena.Mapping) (verbs.MR, error) {
	mr, err := w.pd.RegMR(mem.Bytes(), verbs.AccessLocalWrite|verbs.AccessMWBind)
	if err != nil {
		return nil, fmt.Errorf("cannot register %d bytes of metadata: %w", len(mem.Bytes()), err)
	}
	return mr, nil
}

// replace gives chunk i new windows, which nobody has. The old ones may be in any state and bound to anybody.
func (w *windows) replace(i uint32) error {
	for j := range w.count {
		mw := &w.all[int(i)*w.count+j]
		if *mw != nil {
			w.drop(mw)
		}
		var err error
		if *mw, err = w.pd.AllocMW(verbs.MWType2B); err != nil {
			*mw = nil
			return fmt.Errorf("cannot allocate a window for chunk %d: %w", i, err)
		}
		w.table.SetKey(i, j, next((*mw).RKey()))
	}
	return nil
}

func (w *windows) drop(mw *verbs.MW) {
	if err := (*mw).Dealloc(); err != nil {
		panic(fmt.Sprintf("BUG: cannot deallocate a window: %v", err))
	}
	*mw = nil
}

// next is the key after k.
func next(k verbs.RKey) verbs.RKey { return verbs.MakeRKey(k.Index(), k.Key()+1) }

// bind binds the windows of chunk i, which nobody has, to qps, in order.
func (w *windows) bind(i uint32, qps []verbs.QP) error {
	b := w.binder
	b.WRs = b.WRs[:0]
	for j, qp := range qps {
		b.WRs = append(b.WRs, verbs.SendWR{
			Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: w.table.Key(i, j),
			BindLKey: w.mr.LKey(), RemoteAddr: w.address(i), BindLength: uint64(w.size),
			BindAccess: windowAccess, QPN: qp.Num(),
		})
	}
	_, err := b.Run()
	return err
}

// takeBack makes chunk i, which is in neither queue, free.
func (w *windows) takeBack(i uint32) error {
	if err := w.replace(i); err != nil {
		return err
	}
	w.zero(i)
	w.table.SetOwner(i, 0)
	w.release(w.table.Entry(i))
	return nil
}

// release makes an entry available to be lent again, unless more entries are to be withheld (hold).
func (w *windows) release(entry uint64) {
	if len(w.held) < w.toHold {
		w.held = append(w.held, entry)
		w.heldCount.Store(int64(len(w.held)))
		return
	}
	w.queue.Push(entry)
}

// hold withholds entries of chunks that nobody has from being lent: as many of them as there are now, and the rest
// when they come back (release).
//
// Preconditions: chunks are handed out by the device's verb.
func (w *windows) hold(entries int) {
	w.toHold = max(entries, 0)
	for len(w.held) < w.toHold {
		entry, ok := w.queue.TakeFree()
		if !ok {
			break
		}
		w.held = append(w.held, entry)
	}
	for len(w.held) > w.toHold {
		last := len(w.held) - 1
		w.queue.Push(w.held[last])
		w.held = w.held[:last]
	}
	w.heldCount.Store(int64(len(w.held)))
}

// scrub zeroes a chunk that was freed, and reports whether there was one.
func (w *windows) scrub() bool {
	entry, ok := w.queue.TakeFreed()
	if !ok {
		return false
	}
	i, ok := w.table.Chunk(entry)
	if !ok {
		panic(fmt.Sprintf("BUG: %#x was freed, which is no chunk", entry))
	}
	w.zero(i)
	w.release(entry)
	return true
}

// freedTo returns the tail and the ring of the queue into which the NIC puts freed chunks.
func (w *windows) freedTo() (tail, ring uint64) {
	if w.zeroMR != nil {
		return w.queue.Tail(), w.queue.Ring()
	}
	return w.queue.FreedTail(), w.queue.FreedRing()
}

// settle zeroes a bounded number of freed chunks, because somebody waits for memory, and then settles the queue.
func (w *windows) settle() {
	for k := 0; k < 16 && w.scrub(); k++ {
	}
	w.queue.Settle()
}

func (w *windows) close() {
	for i := range w.all {
		if w.all[i] != nil {
			w.drop(&w.all[i])
		}
	}
	for _, r := range []struct {
		mr  verbs.MR
		mem *arena.Mapping
	}{{w.tableMR, w.tableMem}, {w.queueMR, w.queueMem}, {w.zeroMR, w.zeroMem}} {
		if r.mr != nil {
			r.mr.Deregister()
		}
		if r.mem != nil {
			r.mem.Close()
		}
	}
}
