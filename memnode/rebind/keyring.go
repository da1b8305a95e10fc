package rebind

import (
	"fmt"
	"math/rand/v2"

	"polder/internal/arena"
	"polder/internal/failpoint"
	"polder/memnode/twolayer"
	"polder/memnode/wire"
	"polder/verbs"
)

// Access is what a client's window allows.
const Access = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// The most grains, and the most bytes unless it is a single grain, that are rebound at a time: the goroutine that
// runs the worker has other things to do.
const (
	maxBatch   = lanes * wire.MaxBatch
	batchBytes = 16 << 20
)

// Memory is the memory that windows are bound over: all of a node's lent memory.
type Memory struct {
	PD     verbs.PD
	MR     verbs.MR // without any remote right of its own
	Map    *arena.Mapping
	Pinned bool // the device keeps using the pages that it has pinned, so no pages are given back
}

// lanes is how many queue pairs bind at a time. A NIC executes the requests of one queue pair one after the other; a
// ConnectX-5 works on eight queue pairs at a time.
const lanes = 8

// A keyring holds the windows of the lent memory.
type keyring struct {
	Memory
	table  *twolayer.Table
	lanes  [lanes]*Binder
	grains [twolayer.Layers][]grain
	spare  []verbs.MW // unbound, in no order
	batch  []place
	size   uint64 // bytes of batch
	zeroer zeroer
}

// A grain is memory that one key opens.
type grain struct {
	main, backup verbs.MW
	key, next    verbs.RKey // key is main's; next is the key that backup will be bound with
}

// place is a grain to be rebound.
type place struct {
	layer int
	chunk uint32 // first
}

// Windows is how many windows a keyring for a layout has: two for every grain, and one spare for every 16 grains, but
// at least 64 spare ones.
func Windows(l twolayer.Layout) int {
	total := 0
	for layer := range twolayer.Layers {
		if g := l.Grain(layer); g != 0 {
			total += int(l.Chunks / g)
		}
	}
	return 2*total + max(64, total/16)
}

// newKeyring makes and binds all windows.
func newKeyring(dev verbs.Device, mem Memory, t *twolayer.Table) (*keyring, error) {
	k := &keyring{Memory: mem, table: t, zeroer: newZeroer(mem.Map, mem.Pinned)}
	for i := range k.lanes {
		var err error
		if k.lanes[i], err = NewBinder(dev, mem.PD); err != nil {
			k.close()
			return nil, err
		}
	}
	for layer := range twolayer.Layers {
		if g := t.Grain(layer); g != 0 {
			k.grains[layer] = make([]grain, t.Chunks/g)
		}
	}
	for range Windows(t.Layout) {
		mw, err := mem.PD.AllocMW(verbs.MWType1)
		if err != nil {
			k.close()
			return nil, fmt.Errorf("cannot allocate a window: %w", err)
		}
		k.spare = append(k.spare, mw)
	}
	for layer := range twolayer.Layers {
		for i := range k.grains[layer] {
			g := &k.grains[layer][i]
			g.backup, g.next = k.draw()
			k.batch = append(k.batch, place{layer, uint32(i) * t.Grain(layer)})
			if err := k.flush(len(k.batch) == maxBatch); err != nil {
				k.close()
				return nil, err
			}
		}
	}
	if err := k.flush(true); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// flush binds the batch if now is true.
func (k *keyring) flush(now bool) error {
	if !now {
		return nil
	}
	_, err := k.bind()
	return err
}

// draw takes a spare window at random, and a key for it.
func (k *keyring) draw() (verbs.MW, verbs.RKey) {
	i, last := rand.IntN(len(k.spare)), len(k.spare)-1
	mw := k.spare[i]
	k.spare[i] = k.spare[last]
	k.spare = k.spare[:last]
	old := mw.RKey()
	return mw, verbs.MakeRKey(old.Index(), old.Key()+1+uint8(rand.IntN(255)))
}

func (k *keyring) grain(p place) *grain { return &k.grains[p.layer][p.chunk/k.table.Grain(p.layer)] }

// bytes returns where in the mapping a place's memory is.
func (k *keyring) bytes(p place) (off, n int) {
	return int(uint64(p.chunk) * k.table.Unit), int(uint64(k.table.Grain(p.layer)) * k.table.Unit)
}

// collect adds the grains of a section whose capabilities are swapped to the batch, as many as there is room for. It
// reports whether the batch is full.
func (k *keyring) collect(section uint32) (full bool) {
	t := k.table
	first := section * twolayer.SectionChunks
	for layer := range twolayer.Layers {
		g := t.Grain(layer)
		if g == 0 {
			continue
		}
		for c := (first + g - 1) &^ (g - 1); c < min(first+twolayer.SectionChunks, t.Chunks) && c/g < uint32(len(k.grains[layer])); c += g {
			if !t.Cap(layer, c).IsSwapped() {
				continue
			}
			size := uint64(g) * t.Unit
			if len(k.batch) == maxBatch || k.size > 0 && k.size+size > batchBytes {
				return true
			}
			k.batch = append(k.batch, place{layer, c})
			k.size += size
		}
	}
	return false
}

// each executes the requests that build makes for places of the batch, on all lanes at a time, and calls finished for
// each place whose request has succeeded.
func (k *keyring) each(build func(p place) (verbs.SendWR, bool), finished func(p place)) (done int, failed error) {
	var parts [lanes][]place
	size := (len(k.batch) + lanes - 1) / lanes
	for i, b := range k.lanes {
		b.WRs = b.WRs[:0]
		for _, p := range k.batch[min(i*size, len(k.batch)):min((i+1)*size, len(k.batch))] {
			if wr, ok := build(p); ok {
				b.WRs = append(b.WRs, wr)
				parts[i] = append(parts[i], p)
			}
		}
		if err := b.post(); err != nil && failed == nil {
			failed = err
		}
	}
	for i, b := range k.lanes {
		n, err := b.wait()
		if err != nil && failed == nil {
			failed = err
		}
		for _, p := range parts[i][:n] {
			finished(p)
		}
		done += n
	}
	return done, failed
}

// renew unbinds, zeroes and binds again the grains of the batch, and returns how many of them are open again.
func (k *keyring) renew() (int, error) {
	if len(k.batch) == 0 {
		return 0, nil
	}
	failpoint.Hit("rebind.unbind")
	_, err := k.each(func(p place) (verbs.SendWR, bool) {
		g := k.grain(p)
		if g.main == nil {
			return verbs.SendWR{}, false
		}
		return verbs.SendWR{ // of no bytes: it opens nothing
			Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: verbs.MakeRKey(g.key.Index(), g.key.Key()+1),
			BindLKey: k.MR.LKey(), RemoteAddr: k.MR.Addr(),
		}, true
	}, func(p place) {
		g := k.grain(p)
		k.spare = append(k.spare, g.main)
		g.main = nil
	})
	if err != nil {
		k.batch, k.size = k.batch[:0], 0
		return 0, fmt.Errorf("cannot unbind: %w", err)
	}
	failpoint.Hit("rebind.zero")
	k.zeroer.reset()
	for _, p := range k.batch {
		k.zeroer.zero(k.bytes(p))
	}
	return k.bind()
}

// bind binds the backup windows of the places of the batch, which nobody can reach, and publishes the keys.
func (k *keyring) bind() (int, error) {
	defer func() { k.batch, k.size = k.batch[:0], 0 }()
	if len(k.batch) == 0 {
		return 0, nil
	}
	failpoint.Hit("rebind.bind")
	done, err := k.each(func(p place) (verbs.SendWR, bool) {
		off, n := k.bytes(p)
		return verbs.SendWR{
			Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: k.grain(p).next, BindLKey: k.MR.LKey(),
			RemoteAddr: k.MR.Addr() + uint64(off), BindLength: uint64(n), BindAccess: Access,
		}, true
	}, func(p place) {
		failpoint.Hit("rebind.publish")
		g := k.grain(p)
		g.main, g.key = g.backup, g.backup.RKey() // which is next, unless the device chooses
		g.backup, g.next = k.draw()
		k.table.SetCap(p.layer, p.chunk, twolayer.MakeCap(g.key, g.next))
	})
	if err != nil {
		return done, fmt.Errorf("cannot bind: %w", err)
	}
	return done, nil
}

// close deallocates all windows.
func (k *keyring) close() error {
	drop := func(mw verbs.MW) {
		if mw != nil {
			mw.Dealloc()
		}
	}
	for _, layer := range k.grains {
		for _, g := range layer {
			drop(g.main)
			drop(g.backup)
		}
	}
	for _, mw := range k.spare {
		drop(mw)
	}
	for _, b := range k.lanes {
		if b != nil {
			b.Close()
		}
	}
	return k.zeroer.close()
}
