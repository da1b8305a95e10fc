package memnode

import (
	"fmt"

	"polder/internal/arena"
	"polder/memnode/rebind"
	"polder/verbs"
)

// atomics changes words of the metadata with the device's own atomics, through a queue pair that is connected to
// itself. It is for devices whose atomics are not atomic with the processor's (verbs.DeviceAttr.HostAtomics): there
// the processor must not change a word that the device may change, since even a CAS that fails may write back the
// value it has read. Loading is safe, since an aligned word is written at once.
//
// It belongs to the control goroutine.
type atomics struct {
	words  verbs.MR       // the metadata
	binder *rebind.Binder // its queue pair executes the atomics
	was    *arena.Mapping
	mr     verbs.MR // of was, which receives the old value
	sge    [1]verbs.SGE
	broken error // the device has failed; the metadata is not to be trusted
}

// newAtomics returns an atomics for words, which queue pairs of pd may change.
func newAtomics(dev verbs.Device, pd verbs.PD, words verbs.MR) (*atomics, error) {
	a := &atomics{words: words}
	var err error
	if a.binder, err = rebind.NewBinder(dev, pd); err != nil {
		return nil, err
	}
	if a.was, err = arena.Anonymous(arena.PageSize, false); err == nil {
		a.mr, err = pd.RegMR(a.was.Bytes(), verbs.AccessLocalWrite)
	}
	if err != nil {
		a.close()
		return nil, fmt.Errorf("cannot prepare the device's atomics: %w", err)
	}
	a.sge[0] = verbs.SGE{Addr: a.mr.Addr(), Length: 8, LKey: a.mr.LKey()}
	return a, nil
}

// swap compares and swaps the word at the offset at, and reports whether it was old. Once the device has failed, swap
// returns true for everything, so that nobody tries again, and broken says why.
func (a *atomics) swap(at, old, new uint64) bool {
	if a.broken != nil {
		return true
	}
	b := a.binder
	b.WRs = append(b.WRs[:0], verbs.SendWR{
		Op: verbs.OpCmpSwap, Flags: verbs.SendSignaled, RemoteAddr: a.words.Addr() + at, RKey: a.words.RKey(),
		Compare: old, Swap: new, SGL: a.sge[:],
	})
	if _, err := b.Run(); err != nil {
		a.broken = fmt.Errorf("cannot change the metadata by the device's atomics: %w", err)
		return true
	}
	return arena.Word64(a.was.Bytes()[:8]).Load() == old
}

func (a *atomics) close() {
	a.binder.Close()
	if a.mr != nil {
		a.mr.Deregister()
	}
	if a.was != nil {
		a.was.Close()
	}
}
