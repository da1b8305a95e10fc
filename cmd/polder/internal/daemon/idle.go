package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/hostmem"
	"polder/memnode"
)

// checkIdle refuses to lend more idle memory than the host could ever have, and to lend idle memory at all on a host
// whose kernel does not measure memory pressure.
func (p *process) checkIdle(most int64) error {
	host := hostmem.Host{}
	if err := host.CheckPressure(); err != nil {
		return &config.Error{Source: "--lend", Value: idleSize(most), Err: fmt.Errorf("expected a fixed size: %w", err)}
	}
	m, err := host.Read()
	if err != nil {
		return fmt.Errorf("cannot lend what is idle: %w", err)
	}
	return checkIdle(m, most)
}

func checkIdle(m hostmem.Memory, most int64) error {
	if most <= m.Total-m.Reserve() {
		return nil
	}
	return &config.Error{Source: "--lend", Value: idleSize(most), Err: fmt.Errorf(
		"expected at most idle:%s: there are %s in all, of which %s are the reserve of the host", mib(max(m.Total-m.Reserve(), 0)), mib(m.Total), mib(m.Reserve()))}
}

// idleSize is a size as --lend takes it for idle memory.
func idleSize(n int64) string { return "idle:" + config.FormatSize(n) }

// An idleLender makes a node lend what its host does not need.
type idleLender struct {
	*process
	node *memnode.Node
	host hostmem.Host
	all  int64 // the most that is ever lent

	mu      sync.Mutex
	lending *memnode.Lending // guarded by mu
	last    memnode.Yielded  // guarded by mu
	most    int64            // what the node may lend; guarded by mu
	late    bool             // clients have not moved in time what the host needs; guarded by mu
}

// lendIdle makes node lend what is idle, at most most bytes, until the process ends.
func (p *process) lendIdle(node *memnode.Node, most int64) error {
	host := hostmem.Host{}
	m, err := host.Read()
	if err != nil {
		return fmt.Errorf("cannot lend what is idle: %w", err)
	}
	l := &idleLender{process: p, node: node, host: host, all: most, lending: memnode.NewLending(most, m.Reserve())}
	if _, err := l.look(); err != nil { // before anybody borrows
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.run(ctx)
	}()
	p.onClose(func() error { stop(); <-ended; return nil })
	p.reports = append(p.reports, l.report)
	p.lend = l.demand
	return nil
}

// run looks at the host until ctx ends.
func (l *idleLender) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		again, err := l.look()
		if err != nil {
			l.Logger.Error("cannot tell what the host needs: what is lent stays", "error", err)
			again = time.Second
		}
		timer.Reset(again)
	}
}

// look measures the host, sets what the node may lend to what the host does not need, and returns when to look again.
func (l *idleLender) look() (again time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lookNow()
}

// lookNow is look. l.mu must be held.
func (l *idleLender) lookNow() (again time.Duration, err error) {
	m, err := l.host.Read()
	if err != nil {
		return 0, err
	}
	now := time.Now()
	l.most, again = l.lending.Look(now, m, l.last.Used)
	y, err := l.node.Yield(l.most)
	if err != nil {
		return 0, err
	}
	l.last = y
	if y.Dropped > 0 {
		l.Logger.Info("memory was given back to the host", "bytes", y.Dropped, "in", time.Since(now), "bounded by", m.Bound, "available before", mib(m.Available))
	}
	late, news := l.lending.Yielded(now, y)
	l.late = late
	switch {
	case late && news:
		l.Logger.Error("the host needs memory that is lent, and that clients have not moved elsewhere: it may have to swap",
			"bytes", y.Over, "lent to", l.holders(), "bounded by", m.Bound, "available", mib(m.Available))
	case news:
		l.Logger.Info("clients have moved what the host needed")
	}
	return again, nil
}

// holders names who has borrowed something.
func (l *idleLender) holders() (names []string) {
	for _, c := range l.node.Clients() {
		if c.Chunks > 0 {
			names = append(names, c.Name())
		}
	}
	return names
}

// report says on the console what the node lends.
func (l *idleLender) report(s *console.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Advice = append(s.Advice, fmt.Sprintf("%s are lent. The host does not need %s, which is the most that is lent now.", mib(l.last.Used), mib(l.most)))
	switch {
	case l.late:
		s.Advice = append(s.Advice, fmt.Sprintf("The host needs %s of that. Clients were told to move what they have there, and have not: other nodes have no room for it.", mib(l.last.Over)))
	case l.last.Over > 0:
		s.Advice = append(s.Advice, fmt.Sprintf("The host needs %s of that, which clients are moving elsewhere.", mib(l.last.Over)))
	}
}

// demand limits what the node lends to most bytes from now on, and returns what was given back. If clients have not
// moved enough within the time, it fails, and the error says what they still have. The limit then stays.
func (l *idleLender) demand(ctx context.Context, most int64, within time.Duration) (said string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("they were not moved elsewhere within %v", within))
	defer cancel()
	l.mu.Lock()
	most = min(most, l.all)
	began, before := time.Now(), l.last.Used
	l.lending.Cap(most)
	_, err = l.lookNow()
	first, now, dropped := time.Since(began), l.last, l.last.Dropped
	l.mu.Unlock()
	if err != nil {
		return "", err
	}
	tick := time.NewTicker(hostmem.Tense)
	defer tick.Stop()
	for now.Over > 0 {
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s were given back within %v; %s are still lent, to %v: %w",
				config.FormatSize(before-now.Used), first.Round(time.Millisecond/10), config.FormatSize(now.Over), l.holders(), context.Cause(ctx))
		case <-tick.C:
		}
		if _, err := l.look(); err != nil {
			return "", err
		}
		l.mu.Lock()
		now = l.last
		l.mu.Unlock()
	}
	back := max(0, before-now.Used)
	if back == 0 {
		return fmt.Sprintf("at most %s are lent, which %s are: nothing had to be given back", config.FormatSize(most), config.FormatSize(now.Used)), nil
	}
	said = fmt.Sprintf("%s were given back", config.FormatSize(back))
	if dropped > 0 {
		said += fmt.Sprintf(", %s of them dropped within %v", config.FormatSize(dropped), first.Round(time.Millisecond/10))
	}
	if dropped < back {
		said += fmt.Sprintf(", the rest moved by clients within %v", time.Since(began).Round(time.Millisecond))
	}
	return said, nil
}
