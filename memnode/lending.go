package memnode

import (
	"time"

	"polder/internal/hostmem"
)

// Times of a Lending.
const (
	// LendAgain is for how long the host must have been short of nothing until more is lent than before: who needs
	// memory seldom needs it once.
	LendAgain = 2 * time.Second
	// MoveWithin is for how long clients may take to move what cannot be dropped, until that is said aloud.
	MoveWithin = 5 * time.Second
)

// A Lending decides how much of what its host does not need a node lends. It has no goroutine and no clock: its owner
// measures the host, calls Look, has the node yield what that says (Node.Yield), and tells Yielded what has become of it.
//
// What a host does not need is what hostmem.Idle says, and what is lent already.
type Lending struct {
	idle hostmem.Idle
	most int64 // that may ever be lent
	cap  int64 // that may be lent now, by an operator's word

	now   int64     // that may be lent by the last Look
	begun bool      // now is set
	calm  time.Time // since when the host is short of nothing; zero if it is short
	over  time.Time // since when more is lent than may be; zero if it is not
	late  bool      // that has been so for MoveWithin
}

// NewLending returns a Lending of at most so many bytes, that leaves a reserve to the host.
func NewLending(most, reserve int64) *Lending {
	return &Lending{idle: hostmem.Idle{Reserve: reserve}, most: most, cap: most}
}

// Cap has no more be lent than most, whatever the host can spare, until it is called again.
func (l *Lending) Cap(most int64) { l.cap = most }

// Look says how many bytes may be lent, and when to look again, since the host is as it was measured and used bytes
// of it are lent.
func (l *Lending) Look(now time.Time, m hostmem.Memory, used int64) (most int64, again time.Duration) {
	l.idle.Note(m)
	beyond := l.idle.Beyond()
	could := min(l.most, max(0, used+beyond))
	switch {
	case beyond < 0:
		l.calm = time.Time{}
	case l.calm.IsZero():
		l.calm = now
	}
	switch {
	case !l.begun || could < l.now:
		l.now, l.begun = could, true
	case beyond >= 0 && now.Sub(l.calm) >= LendAgain:
		l.now = could
	}
	return min(l.now, l.cap), l.idle.Next()
}

// Yielded takes note of what has become of a demand, and reports whether more has been lent than the host can spare for
// MoveWithin; news is whether it reports something else than before.
func (l *Lending) Yielded(now time.Time, y Yielded) (late, news bool) {
	was := l.late
	switch {
	case y.Over == 0:
		l.over, l.late = time.Time{}, false
	case l.over.IsZero():
		l.over = now
	default:
		l.late = now.Sub(l.over) >= MoveWithin
	}
	return l.late, l.late != was
}
