package memnode

import (
	"testing"

	"polder/internal/arena"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

func TestAtomicsOfTheDevice(t *testing.T) {
	dev, err := inproc.NewFabric().NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := arena.Anonymous(arena.PageSize, false)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	mr, err := pd.RegMR(mem.Bytes(), verbs.AccessLocalWrite|windowAccess)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAtomics(dev, pd, mr)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	word := arena.Word64(mem.Bytes()[16:24])
	if !a.swap(16, 0, 7) || word.Load() != 7 {
		t.Errorf("a swap of 0 by 7 left %d", word.Load())
	}
	if a.swap(16, 0, 9) || word.Load() != 7 || a.broken != nil {
		t.Errorf("a swap of what is not there left %d, %v", word.Load(), a.broken)
	}
	// Nobody is to try again on a device that has failed.
	if err := mr.Deregister(); err != nil {
		t.Fatal(err)
	}
	if !a.swap(16, 7, 8) || a.broken == nil || word.Load() != 7 {
		t.Errorf("a swap that the device refused: %d, %v, want an error that stays", word.Load(), a.broken)
	}
}
