package heap

import (
	"context"
	"fmt"
)

// Line is a line in the account of the budget: what local memory is used for. The lines sum to the budget.
type Line uint8

const (
	InLogs     Line = iota // segments of the logs that are not empty, with the dead records in them
	Tables                 // words of maps' entries
	Leaves                 // directories of the leaves in far memory, to which words of entries go
	Words                  // words of pointers
	Nodes                  // of lists
	Settling               // buffers for leaves
	Checkpoint             // a copy of indexes, while it is written
	Staging                // the evacuator's buffers, of what is being written
	Cleaning               // the cleaner's buffer
	Fetching               // buffers for what is read from far memory
	ForScopes              // empty segments that are set aside for scopes, and ForShrink
	Evacuating             // empty segments that are set aside for the evacuator
	Unused                 // what calls may take; may be negative while the budget shrinks
	Lines                  // how many lines there are
)

var lineNames = [Lines]string{"logs", "tables", "leaves", "words", "nodes", "settling", "checkpoint", "staging", "cleaning", "fetching", "scopes", "evacuating", "unused"}

func (u Line) String() string { return lineNames[u] }

// Of returns how many bytes of the budget the index u has, which is one of Tables to Checkpoint.
func (l *Logs) Of(u Line) int64 { return l.of[u].Load() }

// account fills in what the budget is, and what it is used for. It returns how many segments calls may take.
func (l *Logs) account(s *Stats) int {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for u := range l.of {
		s.Lines[u] = l.of[u].Load()
	}
	left := l.available()
	some := func(n int) int64 {
		n = min(n, max(left, 0))
		left -= n
		return int64(n) * int64(l.SegSize)
	}
	s.Index = s.Lines[Tables] + s.Lines[Leaves] + s.Lines[Words] + s.Lines[Nodes]
	s.Lines[InLogs] = int64(l.resident-len(l.empty)) * int64(l.SegSize)
	s.Lines[Evacuating] = some(l.keep(ForScope))
	s.Lines[ForScopes] = some(l.scoped + l.shrink)
	s.Lines[Unused] = int64(left)*int64(l.SegSize) + (l.budget-l.window-l.index)%int64(l.SegSize)
	s.Lines[Staging] = l.window
	s.Budget = l.budget + l.others
	s.Resident = l.window + l.index + int64(l.resident)*int64(l.SegSize) + l.others
	for i := range l.Segs[:l.top] {
		s.LocalLive += l.Segs[i].Live.Load()
	}
	return left
}

// Local returns the budget of local memory in bytes.
func (h *Heap) Local() int64 { return h.Budget.Load() }

// SetLocal changes the budget of local memory to n bytes, at most Config.MaxLocal. When it returns without an error,
// the heap has no more than that resident; while it shrinks, new objects and entries wait. It must not be called in a
// scope. If ctx ends before enough has been evacuated, SetLocal fails, and the heap goes on shrinking in the
// background.
func (h *Heap) SetLocal(ctx context.Context, n int64) error {
	if n > h.Cfg.MaxLocal {
		return fmt.Errorf("cannot set the local budget to %d bytes: Config.MaxLocal is %d", n, h.Cfg.MaxLocal)
	}
	if err := h.Begin(); err != nil {
		return err
	}
	defer h.End()
	l := &h.Logs
	l.Mu.Lock()
	budget := n - l.others
	least := int64(MinSegments+len(l.Open)) * int64(l.SegSize)
	if budget < l.index+l.Asleep()+least {
		l.Mu.Unlock()
		return fmt.Errorf("cannot set the local budget to %d bytes: indexes, words and buffers take %d, and logs at least %d",
			n, l.index+l.Asleep()+l.others, least)
	}
	l.budget = budget
	l.trim()
	l.full.Store(0)
	l.Mu.Unlock()
	h.Budget.Store(n)
	h.reserveForScopes()
	for !l.fits() {
		if err := h.WaitRoom(ctx); err != nil {
			return fmt.Errorf("cannot shrink to %d bytes yet: %w", n, err)
		}
	}
	return nil
}

// fits reports whether the logs are within the budget.
func (l *Logs) fits() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.resident <= l.allowed(l.index)
}
