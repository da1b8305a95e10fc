//go:build ibverbs

package ibv

import (
	"fmt"
	"net/netip"
)

// Devices describes the RDMA devices of this host.
func Devices() ([]Info, error) {
	var names []string
	if err := hwNames(&names); err != nil {
		return nil, err
	}
	var list []Info
	for _, name := range names {
		i := Info{Name: name}
		if err := i.query(); err != nil {
			i.Err = err.Error()
		}
		list = append(list, i)
	}
	return list, nil
}

func (i *Info) query() error {
	ctx, _, err := hwOpen(i.Name)
	if err != nil {
		return err
	}
	if ctx == nil {
		return fmt.Errorf("%s has gone", i.Name)
	}
	defer hwClose(ctx)
	a, err := hwQueryDevice(ctx)
	if err != nil {
		return err
	}
	i.Quirks, i.Known = quirksOf(a.vendor, a.part)
	i.Firmware, i.Vendor, i.Part = a.firmware, a.vendor, a.part
	i.MaxQP, i.MaxQPDepth, i.MaxCQ, i.MaxCQDepth = a.maxQP, a.maxQPWR, a.maxCQ, a.maxCQE
	i.MaxMR, i.MaxMW, i.MaxMRSize, i.MaxSGE = a.maxMR, a.maxMW, a.maxMRSize, a.maxSGE
	i.MaxRdAtom = min(a.maxRdAtom, a.maxInitRdAtom)
	i.Atomics = a.atomics != atomicsNone
	i.HostAtomics = a.atomics == atomicsGlobal && !i.Quirks.LocalAtomics
	i.Window1, i.Window2B = a.window1, a.window2B
	p, err := hwQueryPort(ctx, port)
	if err != nil {
		return err
	}
	i.PortActive, i.Ethernet = p.state == portActive, p.ethernet
	if p.lid != 0 {
		i.Addresses = append(i.Addresses, fmt.Sprintf("LID %d", p.lid))
	}
	gids, err := hwQueryGIDs(ctx, port)
	if err != nil {
		return err
	}
	for _, g := range gids {
		if g.roce2 {
			i.Addresses = append(i.Addresses, netip.AddrFrom16(g.gid).Unmap().String())
		}
	}
	return nil
}
