package pool

import (
	"errors"
	"fmt"

	"polder/verbs"
)

// A fabric is the device over which a pool reaches some of its nodes, and the slab's registration with it.
type fabric struct {
	dev verbs.Device
	pd  verbs.PD
	mr  verbs.MR // of the slab
}

// newFabric opens a device for a slab.
func newFabric(dev verbs.Device, s *slab) (*fabric, error) {
	f := &fabric{dev: dev}
	var err error
	if f.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if f.mr, err = f.pd.RegMR(s.mem.Bytes(), verbs.AccessLocalWrite); err != nil {
		f.pd.Close()
		return nil, fmt.Errorf("cannot register %d bytes: %w", len(s.mem.Bytes()), err)
	}
	return f, nil
}

// sge describes the first n bytes of a block of the slab.
func (f *fabric) sge(b block, n int) verbs.SGE {
	return verbs.SGE{Addr: f.mr.Addr() + uint64(b.off), Length: uint32(n), LKey: f.mr.LKey()}
}

func (f *fabric) close() error {
	err := f.mr.Deregister()
	if err != nil {
		err = fmt.Errorf("cannot deregister the slab: %w", err)
	}
	return errors.Join(err, f.pd.Close())
}

// fabricOf returns the fabric of a device, and opens it for the first node that is reached over the device. p.callMu
// must be held once others can see p.
func (p *Pool) fabricOf(dev verbs.Device) (*fabric, error) {
	for _, f := range p.fabrics {
		if f.dev == dev {
			return f, nil
		}
	}
	f, err := newFabric(dev, p.slab)
	if err == nil {
		p.fabrics = append(p.fabrics, f)
	}
	return f, err
}
