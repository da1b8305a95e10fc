package keyspace

import (
	"context"
	"time"

	"polder/resp/reply"
)

const (
	ErrNotKept reply.Error = "ERR nothing is kept: the server was started without --heap"
	errSaving  reply.Error = "ERR Background save already in progress"
)

// Save takes a checkpoint.
func (sp *Space) Save() error {
	if !sp.Kept() {
		return ErrNotKept
	}
	if err := sp.heap.Checkpoint(sp.ctx); err != nil {
		return reply.Error("ERR " + err.Error())
	}
	return nil
}

// SaveLater begins a checkpoint and does not wait for it.
func (sp *Space) SaveLater() error {
	if !sp.Kept() {
		return ErrNotKept
	}
	if !sp.saving.CompareAndSwap(false, true) {
		return errSaving
	}
	sp.wg.Go(func() {
		defer sp.saving.Store(false)
		if err := sp.heap.Checkpoint(sp.ctx); err != nil && sp.ctx.Err() == nil {
			sp.cfg.Logger.Error("cannot take the checkpoint that a client has asked for", "err", err)
		}
	})
	return nil
}

// Persistence is what INFO and LASTSAVE say of what outlives the process.
type Persistence struct {
	Saving  bool      // a checkpoint that a client has asked for is being taken
	Durable bool      // there is a journal
	Last    time.Time // when the last checkpoint was taken; zero if nothing is kept
	Failed  bool      // the last attempt at a checkpoint has failed
}

func (sp *Space) Persistence() (p Persistence) {
	if sp.loading.Load() {
		return p
	}
	p.Saving, p.Durable = sp.saving.Load(), sp.journal != nil
	if sp.Kept() {
		p.Last, p.Failed = sp.heap.LastCheckpoint(), sp.heap.CheckpointError() != nil
	}
	return p
}

// Commit returns when the journal keeps all changes so far as well as it can. It reports how many copies of them
// there are, and whether these survive a loss of power. Without a journal there are no copies.
func (sp *Space) Commit() (copies int, disk bool, err error) {
	if sp.journal == nil {
		return 0, false, nil
	}
	return sp.journal.commitAll()
}

// commitAll is Commit for a space that has a journal.
func (j *journal) commitAll() (copies int, disk bool, err error) {
	if err := j.log.Commit(j.last.Load(), true); err != nil {
		j.fail(err)
		return 0, false, reply.Error("MISCONF " + err.Error())
	}
	copies, disk = j.log.Copies()
	return copies, disk, nil
}

// Refuses returns why a command about keys must not run; nil if it may. The journal may be broken or, for a command
// that writes, have no room or be too long.
func (sp *Space) Refuses(write bool) error {
	if sp.journal == nil {
		return nil
	}
	return sp.journal.refuses(write)
}

// Slows reports whether commands that write have to wait as long as Pace says, because checkpoints do not keep up
// with the journal.
func (sp *Space) Slows() bool { return sp.journal != nil && sp.journal.long.Load() }

// Pace returns how long a command that writes n bytes has to wait before it runs, without locks: at most half of
// Config.OpTimeout. It is for when Slows has reported true.
func (sp *Space) Pace(n int) time.Duration { return sp.journal.pace(n, sp.cfg.OpTimeout/2) }

// AwaitRoom waits until the next checkpoint may have made room in the far memory of a space that is kept. It reports
// whether a command that found no room may be tried again. The caller must hold no locks.
func (sp *Space) AwaitRoom(ctx context.Context) bool { return sp.heap.AwaitRoom(ctx) }

// Lacks returns an error if some of the space's data is lost, and nil otherwise.
func (sp *Space) Lacks() error {
	if err := sp.heap.Lacking(); err != nil {
		return reply.Error("LOST " + err.Error())
	}
	return nil
}

// Sight says which state of a space the replies show that are yet to be sent.
type Sight struct {
	seen   uint64 // number of the last record of the journal when the last command ended
	ticket uint64 // for the evidence that nobody else had changed the space then
	dated  bool   // there is a ticket
}

// Look notes in at that a reply to be sent shows the space as it is now.
func (sp *Space) Look(at *Sight) {
	if j := sp.journal; j != nil {
		at.seen = j.last.Load()
	}
	if e := sp.cfg.Evidence; e != nil {
		at.dated, at.ticket = true, e.Ask()
	}
}

// Shown waits until it is known whether the replies with the Sight v may be sent, and reports it. It empties v.
func (sp *Space) Shown(v *Sight) bool {
	seen, dated := v.seen, v.dated
	v.seen, v.dated = 0, false
	return (seen == 0 || sp.journal.settle(seen)) && (!dated || sp.cfg.Evidence.Shown(v.ticket))
}
