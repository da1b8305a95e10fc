package simcrash

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"polder/far"
	"polder/far/copies"
	"polder/far/named"
	"polder/resp"
	"polder/resp/keyspace"
)

// setting is how the servers of a script are configured.
type setting struct {
	nodes, copies int
	fenced        bool // each reply waits for evidence of the nodes
}

// tail is how many bytes of the journal call for a checkpoint. A script has fewer than the eight times as many for which none is waited for.
const tail = 512 << 10

// process is a durable server over a named heap.
type process struct {
	owner *named.Owner
	store *named.Store
	log   *named.Log
	heap  *far.Heap
	srv   *resp.Server
	ln    *listener
	wg    sync.WaitGroup // of Serve
}

// nodeLog is a named.Log as a journal uses it.
type nodeLog struct{ *named.Log }

func (l nodeLog) Commit(number uint64, sync bool) error {
	if !sync {
		return nil
	}
	return l.Log.Commit(number)
}

func (l nodeLog) Snapshot([]byte) (save func() error, discard func()) {
	last := l.Last()
	return func() error { l.Drop(last); return nil }, func() {}
}

// Ask and Shown are evidence for replies.
func (p *process) Ask() uint64 { return p.log.Ask() }

// Shown implements keyspace.Evidence.
func (p *process) Shown(ticket uint64) bool { return p.log.Shown(ticket) == nil }

// start opens the heap that is left in what rec records. If that fails, what there is of the process has ended.
func start(rec *recorder, cfg setting) (p *process, err error) {
	p = &process{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	p.owner, err = named.Own(ctx, register{rec}, named.Config{
		Me: "a server", Fenced: true, Lease: 10 * time.Second, Beat: time.Hour, Patience: time.Microsecond, Logger: quiet,
	})
	if err != nil {
		return p, err
	}
	var places []copies.Place
	for i := range cfg.nodes {
		places = append(places, rec.place(i))
	}
	// A copy is never late: a segment has all copies that it should have.
	p.store, err = p.owner.Store(copies.Config{
		Places: places, Copies: cfg.copies, Min: min(cfg.copies, cfg.nodes), Joins: true, Late: time.Minute, RepairAfter: time.Minute, Logger: quiet,
	})
	if err != nil {
		return p, err
	}
	if p.heap, err = far.Open(ctx, p.store, far.Config{Local: far.MinLocal}); err != nil {
		return p, err
	}
	c := resp.Config{Loops: -1, Ready: p.owner.Ready, Logger: quiet, OpTimeout: time.Minute, Journal: keyspace.Journal{Durable: true, Tail: tail}}
	c.Journal.Log = func(ctx context.Context, replay func(rec []byte) error) (keyspace.RecordLog, error) {
		log, err := p.store.OpenLog(ctx, replay)
		if err != nil {
			return nil, err
		}
		p.log = log
		return nodeLog{log}, nil
	}
	if cfg.fenced {
		c.Evidence = p
	}
	if p.srv, err = resp.NewLoading(c); err != nil {
		return p, err
	}
	if err = p.srv.Open(ctx, p.heap); err != nil {
		return p, err
	}
	rec.serves()
	p.ln = &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.wg.Go(func() { _ = p.srv.Serve(p.ln) })
	return p, nil
}

// close ends the process in good order.
func (p *process) close() error {
	var errs []error
	if p.srv != nil {
		errs = append(errs, p.srv.Close())
	}
	p.wg.Wait()
	if p.heap != nil {
		errs = append(errs, p.heap.Close())
	}
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	if p.owner != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		errs = append(errs, p.owner.Close(ctx))
	}
	return errors.Join(errs...)
}

// listener is a net.Listener of connections within this process.
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error { l.once.Do(func() { close(l.closed) }); return nil }

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// client is a connection to a server.
type client struct {
	nc net.Conn
	r  *bufio.Reader
}

func (p *process) dial() *client {
	ours, theirs := net.Pipe()
	p.ln.conns <- theirs
	return &client{ours, bufio.NewReader(ours)}
}

func (c *client) close() { _ = c.nc.Close() }

// send sends commands, and does not wait until the server has read them: errors come with the reply.
func (c *client) send(commands [][]string) (sent func() error) {
	var b strings.Builder
	for _, args := range commands {
		fmt.Fprintf(&b, "*%d\r\n", len(args))
		for _, a := range args {
			fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c.nc, b.String())
		done <- err
	}()
	return func() error { return <-done }
}

// receive reads a reply: a string, an int64, nil, an error, or a []any of those.
func (c *client) receive() (any, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("an empty reply")
	}
	n, _ := strconv.ParseInt(line[1:], 10, 64)
	switch line[0] {
	case '+':
		return line[1:], nil
	case '-':
		return errors.New(line[1:]), nil
	case ':':
		return n, nil
	case '$':
		if n < 0 {
			return nil, nil
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, b); err != nil {
			return nil, err
		}
		return string(b[:n]), nil
	case '*':
		if n < 0 {
			return nil, nil
		}
		all := make([]any, n)
		for i := range all {
			if all[i], err = c.receive(); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	return nil, fmt.Errorf("the reply %q is none", line)
}

// do runs commands, and returns their replies, none of which may be an error.
func (c *client) do(commands ...[]string) ([]any, error) {
	sent := c.send(commands)
	replies := make([]any, len(commands))
	for i := range replies {
		var err error
		if replies[i], err = c.receive(); err != nil {
			return nil, fmt.Errorf("%.60q: %w", commands[i], err)
		}
		if err, ok := replies[i].(error); ok {
			return nil, fmt.Errorf("%.60q: %w", commands[i], err)
		}
	}
	return replies, sent()
}
