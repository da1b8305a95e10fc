package memnode

import (
	"time"

	"polder/internal/hostmem"
)

// Times of a Lending.
const (
	// LendAgain is how long the host must have had memory to spare before more is lent than before: a host that has
	// needed memory once often needs it again soon.
	LendAgain = 2 * time.Second
	// MoveWithin is how long clients may take to move what cannot be dropped before Yielded reports that they are
	// late.
	MoveWithin = 5 * time.Second
)

// A Lending decides how much of the memory that a host does not need its node lends. It has no goroutine and no
// clock. Its owner measures the host, calls Look, calls Node.Yield with what Look returned, and passes the result of
// that to Yielded.
//
// The memory that a host does not need is what hostmem.Idle says, plus what is lent already.
type Lending struct {
	idle hostmem.Idle
	most int64 // bytes that may ever be lent
	cap  int64 // bytes that an operator lets the node lend now

	now   int64     // bytes that the last Look decided may be lent, before cap
	begun bool      // now is set
	calm  time.Time // since when the host has had memory to spare; zero if it is short
	over  time.Time // since when more has been lent than may be; zero if it is not
	late  bool      // more has been lent than may be for MoveWithin
}

// NewLending returns a Lending of at most most bytes that leaves reserve bytes to the host.
func NewLending(most, reserve int64) *Lending {
	return &Lending{idle: hostmem.Idle{Reserve: reserve}, most: most, cap: most}
}

// Cap limits lending to most bytes, whatever the host can spare, until Cap is called again.
func (l *Lending) Cap(most int64) { l.cap = most }

// Look returns how many bytes may be lent from now on, and after what time to call Look again. m is the measured
// state of the host, and used is how many bytes are lent.
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

// Yielded records the result of a Node.Yield. It returns late, which says whether more has been lent than the host
// can spare for MoveWithin, and news, which says whether late has changed.
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
