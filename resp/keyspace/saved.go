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

// SaveLater takes a checkpoint and waits for nothing.
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

// Persistence is what is to be said of what outlives the process.
type Persistence struct {
	Saving  bool      // a checkpoint is taken that a client has asked for
	Durable bool      // there is a journal
	Last    time.Time // when there was a checkpoint; zero if nothing is kept
	Failed  bool      // the last one that was tried
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

// Commit returns when all that there is is kept as well as it can be, with how many copies of it there are, and whether it survives a
// loss of power. Without a journal there are none.
func (sp *Space) Commit() (copies int, disk bool, err error) {
	if sp.journal == nil {
		return 0, false, nil
	}
	return sp.journal.commitAll()
}

// commitAll is commit of a journal that there is.
func (j *journal) commitAll() (copies int, disk bool, err error) {
	if err := j.log.Commit(j.last.Load(), true); err != nil {
		j.fail(err)
		return 0, false, reply.Error("MISCONF " + err.Error())
	}
	copies, disk = j.log.Copies()
	return copies, disk, nil
}

// Refuses is why a command that concerns keys is not run: its journal is broken, or has no room for what it would write.
func (sp *Space) Refuses(write bool) error {
	if sp.journal == nil {
		return nil
	}
	return sp.journal.refuses(write)
}

// Slows reports whether commands that write are to wait as long as Pace says, since checkpoints do not keep up with the journal.
func (sp *Space) Slows() bool { return sp.journal != nil && sp.journal.long.Load() }

// Pace is how long a command that writes n bytes is to wait before it runs, without locks, if Slows: at most half of Config.OpTimeout.
func (sp *Space) Pace(n int) time.Duration { return sp.journal.pace(n, sp.cfg.OpTimeout/2) }

// AwaitRoom waits, without locks, for room in the far memory of a space that is kept, as far as the next checkpoint makes some, and reports whether a
// command for which there was none may be tried again.
func (sp *Space) AwaitRoom(ctx context.Context) bool { return sp.heap.AwaitRoom(ctx) }

// Lacks is why what the space has is not all there.
func (sp *Space) Lacks() error {
	if err := sp.heap.Lacking(); err != nil {
		return reply.Error("LOST " + err.Error())
	}
	return nil
}

// Sight is what replies that are to be sent show of a space.
type Sight struct {
	seen   uint64 // number of the last record of the journal when the last command ended
	ticket uint64 // of the evidence for that
	dated  bool   // there is a ticket
}

// Look takes note that the reply to be sent shows what the space has now.
func (sp *Space) Look(at *Sight) {
	if j := sp.journal; j != nil {
		at.seen = j.last.Load()
	}
	if e := sp.cfg.Evidence; e != nil {
		at.dated, at.ticket = true, e.Ask()
	}
}

// Shown reports whether that may be sent, and waits until that is known. Then there is nothing to be shown.
func (sp *Space) Shown(v *Sight) bool {
	seen, dated := v.seen, v.dated
	v.seen, v.dated = 0, false
	return (seen == 0 || sp.journal.settle(seen)) && (!dated || sp.cfg.Evidence.Shown(v.ticket))
}
