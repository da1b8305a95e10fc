package daemon

import (
	"context"
	"path/filepath"

	"polder/internal/listen"
	"polder/internal/scheme"
	"polder/memnode"
	"polder/pool"
	"polder/pool/memfd"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/shm"
	"polder/verbs/softnic"
)

// hereName is what the node in this process is called.
const hereName = "this process"

// here is how a node in this process and its client in this process reach each other.
type here struct {
	lender, borrower verbs.Device
	listener         verbs.Listener
	dial             func(ctx context.Context) (verbs.Conn, error)
}

// openHere starts a node in this process, and the front end over it. The front end
// accesses the node's memory in place, over a Unix socket. If --manager is given, or no
// such socket can be made, it reaches the node by direct calls instead.
func (p *process) openHere(ctx context.Context, cfg UpConfig) error {
	if err := p.checkLend(cfg.Node.Lend, cfg.Local, cfg.Node.Overcommit); err != nil {
		return err
	}
	manager, err := managerNamed(cfg.Manager)
	if err != nil {
		return err
	}
	cfg.Node.Manager = cfg.Manager
	var h here
	inPlace := manager == nil
	if inPlace {
		if h, err = p.meetInPlace(); err == nil {
			manager, cfg.Node.Manager = memfd.Manager{}, memnode.MemFD
		} else if cfg.NodeListen != "" {
			return err
		} else {
			p.Logger.Info("far memory is not accessed in place", "why", err)
			inPlace = false
		}
	}
	if !inPlace {
		if h, err = p.meetByCall(); err != nil {
			return err
		}
	}
	node, err := p.node(h.lender, cfg.Node)
	if err != nil {
		return err
	}
	p.show(node)
	p.spawn("the node stopped serving", func() error { return node.Serve(h.listener) })
	if cfg.NodeListen != "" {
		lis, err := shm.Listen(h.lender, cfg.NodeListen, shm.Config{Log: p.Logger})
		if err != nil {
			return listen.Explain("node-listen", cfg.NodeListen, err)
		}
		p.spawn("the node stopped serving", func() error { return node.Serve(lis) })
		p.addrs[ServiceSocket] = lis.Addr()
	}
	return p.openPool(ctx, cfg.ServeConfig, lenders{Config: pool.Config{
		Device: h.borrower, Manager: manager,
		Nodes: []pool.NodeConfig{{Name: hereName, Dial: h.dial}},
	}})
}

// open opens the devices of both ends.
func (h *here) open(p *process, newDevice func(softnic.Config) (verbs.Device, error)) (err error) {
	if h.lender, err = newDevice(softnic.Config{Name: "lender"}); err != nil {
		return err
	}
	p.onClose(h.lender.Close)
	if h.borrower, err = newDevice(softnic.Config{Name: "borrower"}); err != nil {
		return err
	}
	p.onClose(h.borrower.Close)
	return nil
}

// meetInPlace connects node and client by a Unix socket that nobody else can reach.
func (p *process) meetInPlace() (h here, err error) {
	dir, err := p.tempDir()
	if err != nil {
		return h, err
	}
	if err := h.open(p, shm.NewDevice); err != nil {
		return h, err
	}
	addr := scheme.Unix + filepath.Join(dir, "node.sock")
	h.dial = func(ctx context.Context) (verbs.Conn, error) {
		return shm.Dial(ctx, h.borrower, addr, shm.Config{})
	}
	h.listener, err = shm.Listen(h.lender, addr, shm.Config{})
	return h, err
}

// meetByCall connects node and client by a fabric within the process.
func (p *process) meetByCall() (h here, err error) {
	fabric := inproc.NewFabric()
	if err := h.open(p, fabric.NewDevice); err != nil {
		return h, err
	}
	h.dial = func(ctx context.Context) (verbs.Conn, error) { return fabric.Dial(ctx, h.borrower, hereName) }
	h.listener, err = fabric.Listen(h.lender, hereName)
	return h, err
}
