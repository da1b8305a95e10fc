package broker

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"polder/internal/failpoint"
	"polder/internal/fdpass"
)

// An app is a connected application. One goroutine receives from its socket, which shows when the application has
// gone; another serves its ring.
type app struct {
	b     *Broker
	sock  *fdpass.Conn
	peer  fdpass.Peer
	nonce uint64
	ring  *ring

	bell chan struct{} // capacity 1: a request was posted while nobody looked at the ring
	gone chan struct{} // closed when the socket is closed
	over atomic.Bool   // gone is closed

	strikes int // requests for what does not belong to the application
	buf     []byte
	out     answer
}

func newApp(b *Broker, sock *fdpass.Conn, peer fdpass.Peer) *app {
	return &app{
		b: b, sock: sock, peer: peer, nonce: rand.Uint64(),
		bell: make(chan struct{}, 1), gone: make(chan struct{}),
		buf: make([]byte, 0, answerSize+4*maxKeys),
	}
}

// end disconnects the application. Any goroutine may call it.
func (a *app) end() { a.sock.Close() }

const (
	handshakeTime = 5 * time.Second
	maxStrikes    = 64
)

// run serves the application until it is gone, and then frees what it had.
func (a *app) run() {
	defer a.b.dismiss(a)
	defer a.sock.Close()
	log := a.b.log.With("pid", a.peer.PID, "uid", a.peer.UID)
	stop, err := a.greet()
	if err != nil {
		a.b.refused.Add(1)
		log.Warn("application refused", "error", err)
		return
	}
	defer stop()
	defer a.ring.close()
	log.Debug("application connected")
	received := make(chan error, 1)
	go func() { received <- a.receive() }()
	if err := a.serve(); err != nil {
		a.b.violations.Add(1)
		log.Warn("application disconnected", "error", err)
	}
	a.sock.Close()
	if err := <-received; err != nil && a.b.ctx.Err() == nil {
		log.Debug("application gone", "error", err)
	}
	for _, n := range a.b.nodes {
		n.leave(a.b.last, a)
	}
}

// greet shakes hands, and makes the application be disconnected when its process dies.
func (a *app) greet() (stop func(), err error) {
	if !a.b.enlist(a) {
		return nil, errEnding
	}
	if err := a.sock.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return nil, err
	}
	msg, err := a.sock.Recv()
	if err != nil {
		return nil, fmt.Errorf("cannot receive its hello: %w", err)
	}
	err = checkHello(msg)
	a.sock.Done()
	if err != nil {
		_ = a.sock.TrySend(appendRefusal(nil, err.Error()))
		return nil, err
	}
	r, fd, err := newRing()
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	stop = func() {}
	// Before Linux 6.5 there is no pidfd. Then only the socket shows the end; a child that lives on keeps it open.
	if pidfd, err := a.sock.PeerPidFD(); err == nil {
		if s, err := a.b.watcher.Watch(pidfd, a.end); err == nil {
			stop = s
		}
	}
	if err := a.sock.SendFDs(appendWelcome(nil, a.b.addrs), fd.File()); err != nil {
		stop()
		r.close()
		return nil, fmt.Errorf("cannot pass the ring: %w", err)
	}
	_ = a.sock.SetDeadline(time.Time{}) // if this fails the socket is closed, which the next call finds
	a.ring = r
	return stop, nil
}

// receive receives bells from the socket until it is closed.
func (a *app) receive() error {
	defer close(a.gone)
	defer a.over.Store(true)
	for {
		msg, err := a.sock.Recv()
		if err != nil {
			return err
		}
		n := len(msg)
		a.sock.Done()
		if n != 1 {
			return malformed("message of %d bytes where a bell was expected", n)
		}
		select {
		case a.bell <- struct{}{}:
		default:
		}
	}
}

// attention is how long the broker looks for another request before it sleeps. looks is how often it looks between
// two readings of the clock.
const (
	attention = 50 * time.Microsecond
	looks     = 32
)

// serve deals with requests. It returns an error when the application breaks the protocol.
func (a *app) serve() error {
	for !a.over.Load() {
		set := a.ring.take()
		if set == 0 {
			a.wait()
			continue
		}
		for ; set != 0; set &= set - 1 {
			if err := a.deal(bits.TrailingZeros32(set)); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait returns when a request is posted or the application has gone, and sometimes without a reason.
func (a *app) wait() {
	for start := time.Now(); time.Since(start) < attention; runtime.Gosched() {
		for range looks {
			if a.ring.posted.Load() != 0 {
				return
			}
		}
		if a.over.Load() {
			return
		}
	}
	a.ring.asleep.Store(1)
	if a.ring.posted.Load() == 0 {
		select {
		case <-a.bell:
		case <-a.gone:
		}
	}
	a.ring.asleep.Store(0)
}

// deal deals with the request in a slot.
func (a *app) deal(slot int) error {
	var raw [requestSize]byte
	copy(raw[:], a.ring.request(slot)) // a copy, since the application may change the request at any time
	failpoint.Hit(StepTaken)
	var r request
	a.out = answer{keys: a.out.keys[:0]}
	err := r.decode(raw[:])
	if err == nil && int(r.node) >= len(a.b.nodes) {
		err = malformed("request for node %d of %d", r.node, len(a.b.nodes))
	}
	if err != nil {
		a.out.status = statusBad
	} else {
		a.carryOut(&r)
	}
	switch a.out.status {
	case statusOK:
	case statusBad:
		if err == nil {
			err = malformed("class %d", r.class)
		}
	case statusNotOwner:
		if a.strikes++; a.strikes > maxStrikes {
			err = fmt.Errorf("it wanted to free what is not its own, %d times", a.strikes)
		}
	}
	a.buf = a.out.append(a.buf[:0])
	failpoint.Hit(StepAnswer)
	copy(a.ring.answer(slot), a.buf)
	a.ring.send(slot)
	failpoint.Hit(StepAnswered)
	return err
}

func (a *app) carryOut(r *request) {
	n := a.b.nodes[r.node]
	if r.op == opAttach {
		n.attach(a, &a.out)
		return
	}
	ctx, cancel := context.WithTimeoutCause(a.b.ctx, a.b.cfg.Timeout, errTimeout)
	defer cancel()
	if r.op == opAlloc {
		n.alloc(ctx, a, r, &a.out)
	} else {
		n.free(ctx, a, r, &a.out)
	}
}
