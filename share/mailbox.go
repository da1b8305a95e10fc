package share

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"polder/internal/failpoint"
	"polder/share/internal/shm"
	"polder/share/internal/wire"

	"golang.org/x/sys/unix"
)

// mailbox is the client's side of the mailbox of one attachment.
type mailbox struct {
	box  *shm.Mailbox
	busy atomic.Uint32 // one bit a slot: with some call, or left behind
	left atomic.Uint32 // one bit a slot: left behind by a call that was cancelled
	near atomic.Bool   // the daemon runs on the same processor, it seems

	// The encoder of each slot's request, and the reader of its answer. They belong to the call that has the slot.
	req    [shm.Posts]wire.Writer
	answer [shm.Posts]wire.Reader
}

const (
	// spinFor is how long a call watches its slot, before it lets the daemon
	// wake it, or tries the socket if the daemon has not taken the request.
	spinFor = 50 * time.Microsecond
	// yieldAfter is how long a call watches its slot before it lets other processes run on its processor: the daemon
	// may be among them. If the last call had to do that, the time is yieldSoon.
	yieldAfter = 5 * time.Microsecond
	yieldSoon  = 1500 * time.Nanosecond
	// postBatch is how many keys are worth trying to post.
	postBatch = 32
	// looks is how often a call looks at the slot before it looks at the clock.
	looks = 32
	// napFor bounds each sleep, after which the call sees whether its context
	// has ended.
	napFor = 5 * time.Millisecond
)

// errGone is why a request by mailbox may be lost.
var errGone = errors.New("the daemon has gone")

// take returns a free slot.
func (m *mailbox) take() (int, bool) {
	for slot := range shm.Posts {
		bit := uint32(1) << slot
		if m.left.Load()&bit != 0 && m.box.Answered(slot) && m.left.And(^bit)&bit != 0 {
			m.free(slot) // the answer has come that nobody waits for
		}
		if m.busy.Or(bit)&bit == 0 {
			return slot, true
		}
	}
	return 0, false
}

// free ends the use of a slot that was answered.
func (m *mailbox) free(slot int) {
	m.box.Idle(slot)
	m.busy.And(^(uint32(1) << slot))
}

// leave ends the use of a slot whose answer is still to come.
func (m *mailbox) leave(slot int) { m.left.Or(uint32(1) << slot) }

// post carries a request by mailbox, if the daemon looks there.
func (c *Client) post(ctx context.Context, q request, repeated bool) (outcome, error) {
	m := c.box.Load()
	if m == nil || !q.short || !m.box.Attended() || c.leaving.Load() || runtime.GOMAXPROCS(0) == 1 {
		return unsent, nil
	}
	slot, ok := m.take()
	if !ok {
		return unsent, nil
	}
	msg := q.build(m.req[slot][:0])
	m.req[slot] = msg
	if len(msg) > shm.MaxPost {
		m.req[slot] = nil
		m.free(slot)
		return unsent, nil
	}
	m.box.Post(slot, msg)
	failpoint.Hit("client.posted")
	if o, err := m.wait(ctx, slot, c.cfg.Patience); o != answered || err != nil {
		return o, err
	}
	defer m.free(slot)
	r := &m.answer[slot]
	r.Reset(m.box.Answer(slot))
	return answered, c.parse(r, q, nil, repeated)
}

// wait returns when the answer is in the slot. If it fails, the slot is freed,
// or left behind.
func (m *mailbox) wait(ctx context.Context, slot int, patience time.Duration) (outcome, error) {
	began, yields, yieldAt := time.Now(), false, yieldAfter
	near := m.near.Load()
	if near {
		yieldAt = yieldSoon
	}
	for { // fast path: the daemon answers within microseconds
		for range looks {
			if m.box.Answered(slot) {
				if yields != near {
					m.near.Store(yields)
				}
				return answered, nil
			}
		}
		waited := time.Since(began)
		late := waited > spinFor
		if (late || !m.box.Attended()) && m.box.Retract(slot) {
			m.free(slot)
			return unsent, nil
		}
		if late {
			break
		}
		if waited > yieldAt {
			yields = true
			unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
	for !m.box.Answered(slot) { // the daemon has taken it
		switch {
		case m.box.Broken(), time.Since(began) > patience:
			m.leave(slot)
			return lost, errGone
		case ctx.Err() != nil:
			m.leave(slot)
			return answered, ctx.Err()
		}
		m.box.Sleep(slot, napFor)
	}
	return answered, nil
}

// parse reads an answer.
func (c *Client) parse(r *wire.Reader, q request, files []*os.File, repeated bool) error {
	if s := wire.Status(r.U8()); s != wire.OK {
		if s == wire.NotFound && repeated && q.parse == nil {
			return nil // the first try has done it
		}
		return replyError(s, r.Rest())
	}
	if q.parse == nil {
		return nil
	}
	return q.parse(r, files, repeated)
}
