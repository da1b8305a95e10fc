package daemon

import (
	"context"
	"errors"

	"polder/holder/witness"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
)

// ServiceWitness is the name of the service of a witness.
const ServiceWitness = "witness"

// WitnessConfig configures a witness.
type WitnessConfig struct {
	*operator.Control
	Dir        string // the directory of all that it keeps
	Listen     string // where clients connect
	Registers  int    // the most registers that it keeps
	Bytes      int64  // the most bytes of their names and values together
	MaxClients int
}

// Check refuses an empty Dir.
func (c *WitnessConfig) Check() error {
	if c.Dir == "" {
		return &config.Error{Source: "--dir", Err: errors.New(
			"it is empty; expected a directory of the witness's own on a disk, such as /var/lib/polder/witness")}
	}
	return nil
}

// RunWitness keeps registers until ctx is done, or the log cannot be written any more.
func RunWitness(ctx context.Context, cfg WitnessConfig) (err error) {
	p := newProcess("witness", cfg.Control)
	defer p.close(&err)
	if err := cfg.Check(); err != nil {
		return err
	}
	lis, err := cfg.Security.Listen(listen.Node, "listen", cfg.Listen)
	if err != nil {
		return err
	}
	p.onClose(func() error { _ = lis.Close(); return nil }) // the server closes it first, if one was started
	p.addrs[ServiceWitness] = listen.Address(lis)
	if err := p.listenAdmin(); err != nil {
		return err
	}
	server, err := witness.NewServer(witness.Config{
		Dir: cfg.Dir, Registers: cfg.Registers, Bytes: cfg.Bytes, Clients: cfg.MaxClients, Logger: p.Logger,
	})
	if err != nil {
		return err
	}
	p.onClose(server.Close)
	p.collectors = append(p.collectors, server.Collector())
	p.health = server.Health
	if err := p.serveAdmin(); err != nil {
		return err
	}
	p.spawn("the witness stopped serving", func() error { return server.Serve(lis) })
	st := server.Status()
	title := "polder witness " + st.ID.String() + " keeps registers in " + cfg.Dir
	try := "polder witness ls " + p.addrs[ServiceWitness]
	if st.Set == nil {
		title += "\nIt has no vote until an operator lets it in."
		try = "polder witness set " + p.addrs[ServiceWitness] + " OTHER OTHER"
	}
	if err := p.ready(title, try); err != nil {
		return err
	}
	return p.wait(ctx)
}
