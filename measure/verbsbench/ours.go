package verbsbench

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// ours is a queue pair that is connected to that of a lender (see lend).
type ours struct {
	ctx    context.Context
	dev    verbs.Device
	qp     verbs.QP
	cq     verbs.CQ
	local  verbs.MR
	remote remote
	end    func() // ends the lender, if it is in this process
}

// newTCP connects to the lender at addr over TCP.
func newTCP(ctx context.Context, addr string) (contestant, error) {
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		return nil, err
	}
	conn, err := tcp.Dial(ctx, dev, addr, tcp.Config{})
	if err != nil {
		dev.Close()
		return nil, err
	}
	return newOurs(ctx, dev, conn, func() {})
}

// newSHM connects to the lender at addr over a Unix socket.
func newSHM(ctx context.Context, addr string) (contestant, error) {
	dev, err := shm.NewDevice(softnic.Config{})
	if err != nil {
		return nil, err
	}
	conn, err := shm.Dial(ctx, dev, addr, shm.Config{})
	if err != nil {
		dev.Close()
		return nil, err
	}
	return newOurs(ctx, dev, conn, func() {})
}

// newInproc starts a lender in this process and connects to it.
func newInproc(ctx context.Context) (contestant, error) {
	f := inproc.NewFabric()
	server, err := f.NewDevice(softnic.Config{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	lent := make(chan struct{})
	stop := func() {
		cancel()
		server.Close()
		<-lent
	}
	l, err := f.Listen(server, "server")
	if err != nil {
		close(lent)
		stop()
		return nil, err
	}
	go func() {
		defer close(lent)
		if err := lend(ctx, server, l); err != nil {
			l.Close() // fails the client's Connect
		}
	}()
	client, err := f.NewDevice(softnic.Config{})
	if err != nil {
		stop()
		return nil, err
	}
	conn, err := f.Dial(ctx, client, "server")
	if err != nil {
		client.Close()
		stop()
		return nil, err
	}
	return newOurs(ctx, client, conn, stop)
}

// newOurs connects a queue pair of dev over conn. From now on the contestant owns
// dev: its close, and newOurs if it fails, close dev and call stop.
func newOurs(ctx context.Context, dev verbs.Device, conn verbs.Conn, stop func()) (contestant, error) {
	o := &ours{ctx: ctx, dev: dev, end: stop}
	var err error
	if o.qp, o.cq, o.local, err = end(dev); err != nil {
		o.close()
		return nil, err
	}
	private, err := conn.Connect(ctx, o.qp, nil)
	if err == nil && len(private) != 12 {
		err = fmt.Errorf("the server's private data has %d bytes, want 12", len(private))
	}
	if err != nil {
		o.close()
		return nil, err
	}
	o.remote = remote{binary.LittleEndian.Uint64(private), verbs.RKey(binary.LittleEndian.Uint32(private[8:]))}
	return o, nil
}

// end makes what one side of a connection needs: a queue pair, its CQ, and an MR
// with a slot for each of depth requests.
func end(dev verbs.Device) (verbs.QP, verbs.CQ, verbs.MR, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, nil, nil, err
	}
	cq, err := dev.CreateCQ(verbs.CQInit{Depth: 2 * depth})
	if err != nil {
		return nil, nil, nil, err
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 2 * depth, RecvDepth: 1})
	if err != nil {
		return nil, nil, nil, err
	}
	mr, err := pd.RegMR(make([]byte, depth*slot), verbs.AccessLocalWrite|
		verbs.AccessRemoteRead|verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic)
	return qp, cq, mr, err
}

// slot is how many bytes of memory each request has for itself.
const slot = 64 << 10

// request returns the case's request in the i-th slot.
func (o *ours) request(c bcase, i int) verbs.SendWR {
	off := uint64(i * slot)
	return verbs.SendWR{
		ID: uint64(i), Op: c.op, Flags: verbs.SendSignaled,
		SGL:        []verbs.SGE{{Addr: o.local.Addr() + off, Length: uint32(c.size), LKey: o.local.LKey()}},
		RemoteAddr: o.remote.addr + off, RKey: o.remote.rkey,
	}
}

func (o *ours) roundTrips(c bcase, d time.Duration, lat []time.Duration) ([]time.Duration, error) {
	wrs, wcs := []verbs.SendWR{o.request(c, 0)}, make([]verbs.WC, 1)
	return timed(d, lat, func() error {
		if err := o.qp.PostSend(wrs...); err != nil {
			return err
		}
		for o.cq.Poll(wcs) == 0 {
			if err := o.cq.Wait(o.ctx); err != nil {
				return err
			}
		}
		return wcs[0].Err()
	})
}

func (o *ours) pipelined(c bcase, d time.Duration, depth int) (float64, error) {
	all, again, wcs := make([]verbs.SendWR, depth), make([]verbs.SendWR, 0, depth), make([]verbs.WC, depth)
	for i := range all {
		all[i] = o.request(c, i)
	}
	if err := o.qp.PostSend(all...); err != nil {
		return 0, err
	}
	return counted(d, func(more bool) (int, error) {
		n := o.cq.Poll(wcs)
		for n == 0 {
			if err := o.cq.Wait(o.ctx); err != nil {
				return 0, err
			}
			n = o.cq.Poll(wcs)
		}
		again = again[:0]
		for _, wc := range wcs[:n] {
			if err := wc.Err(); err != nil {
				return 0, err
			}
			again = append(again, all[wc.ID])
		}
		if !more {
			return n, nil
		}
		return n, o.qp.PostSend(again...)
	})
}

func (o *ours) close() {
	o.dev.Close()
	o.end()
}
