package pager

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// wakeTime is about what it costs to wake another thread, on a processor that was idle.
	wakeTime = 10 * time.Microsecond
	// atMost is for how long the goroutine that reads faults waits for a page. Then a worker reads it.
	atMost = time.Millisecond
)

// prompt has the goroutine that reads faults read far pages itself, as long as far memory answers sooner than a worker
// could be woken. A read that takes much longer than those before it is given up: other faults do not wait for it.
type prompt struct {
	took  atomic.Int64 // ns, a moving average of what reading a page from far memory took
	ctx   context.Context
	timer *time.Timer // ends ctx; it runs during a read
}

// noteRead takes note of how long it took to read a page from far memory.
func (p *prompt) noteRead(took time.Duration) {
	was := p.took.Load()
	if was == 0 {
		was = int64(took)
	}
	p.took.Store(was + (int64(took)-was)/8) // of two goroutines that do this at the same time, only one counts
}

// read has read read a page from far memory, for the goroutine that reads faults, and reports whether it did. within
// is the context of the mapping.
func (p *prompt) read(within context.Context, read func(context.Context) error) bool {
	if took := p.took.Load(); took == 0 || took > int64(wakeTime) {
		return false
	}
	if p.ctx == nil || p.ctx.Err() != nil {
		ctx, end := context.WithCancel(within)
		p.ctx, p.timer = ctx, time.AfterFunc(atMost, end)
	} else {
		p.timer.Reset(atMost)
	}
	begin := time.Now()
	err := read(p.ctx)
	p.timer.Stop()
	p.noteRead(time.Since(begin))
	return err == nil
}
