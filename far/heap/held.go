package heap

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"polder/internal/goroutine"
)

// closeFor is how long Close waits for scopes that are open.
const closeFor = 10 * time.Second

// AwaitScopes returns when all scopes that were open have been left.
func (h *Heap) AwaitScopes() error {
	epoch := h.Scopes.Begin()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for end := time.Now().Add(closeFor); !h.Scopes.Passed(epoch); {
		if time.Now().After(end) {
			return fmt.Errorf("a scope is still open, that was made at %s", h.Scopes.oldest())
		}
		<-pause.C
		pause.Reset(time.Millisecond)
	}
	return nil
}

// oldest says where the scope that has been open longest was made.
func (sc *scopes) oldest() string {
	var at uintptr
	least := int64(math.MaxInt64)
	sc.each(func(s *Scope) {
		if e := atomic.LoadInt64(&s.open); e != 0 && e < least {
			least, at = e, s.made
		}
	})
	return position(at)
}

// position is a program counter in words.
func position(pc uintptr) string {
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return fmt.Sprintf("%s:%d", f.File, f.Line)
}

// watch looks for scopes that are held too long. It is the janitor's, on every tick.
func (h *Heap) watch(now time.Time) {
	limit := h.Cfg.HeldTooLong
	if limit == 0 {
		limit = time.Second
	}
	var late []*Scope
	open := false
	h.Scopes.each(func(s *Scope) {
		e := atomic.LoadInt64(&s.open)
		switch {
		case e == 0:
			s.watched, s.warned = 0, false
		case e != s.watched:
			s.watched, s.warned = e, false
			s.since.Store(now.UnixNano())
			open = true
		default:
			open = true
			if held := now.Sub(time.Unix(0, s.since.Load())); held >= limit && !s.warned {
				s.warned = true
				late = append(late, s)
			}
		}
	})
	if open {
		// From now on a scope that is left and entered again is in another epoch, which shows that it was left.
		h.Scopes.Advance()
	}
	for _, s := range late {
		s.setExtra(scopeLate)
		slog.Warn("far: a scope is held too long, and with it all that was local when it was entered",
			"open for", now.Sub(time.Unix(0, s.since.Load())).Round(time.Millisecond),
			"made at", position(s.made), "stack", s.holder())
	}
}

// reportLate tells where a scope is left that was held too long.
func (s *Scope) reportLate() {
	stack := make([]byte, 4<<10)
	stack = stack[:runtime.Stack(stack, false)]
	slog.Warn("far: a scope that was held too long is left",
		"open for", time.Since(time.Unix(0, s.since.Load())).Round(time.Millisecond),
		"made at", position(s.made), "stack", string(stack))
}

// holder returns the stack of the goroutine that first entered s. For a scope of the pool it returns the stacks of
// all goroutines in what Do calls, any of which may hold s.
func (s *Scope) holder() string {
	all := make([]byte, 1<<20)
	all = all[:runtime.Stack(all, true)]
	user := s.user.Load()
	id := []byte("goroutine " + strconv.FormatUint(user, 10) + " [")
	var found []byte
	for g := range bytes.SplitSeq(all, []byte("\n\n")) {
		pooled := bytes.Contains(g, []byte(calledName+"("))
		if user != 0 && bytes.HasPrefix(g, id) || user == 0 && pooled {
			found = append(append(found, g...), '\n')
		}
	}
	if found == nil {
		return "its goroutine has ended"
	}
	return string(found)
}

// calledName is the name in stacks of Scope.call, in which a goroutine holds a scope of the pool. In the rest of Do
// it holds none, and may wait for scopes of others. Immutable.
var calledName string

func init() { calledName = runtime.FuncForPC(reflect.ValueOf((*Scope).call).Pointer()).Name() }

// isHeldUpHere reports whether the evacuator's pass waits for a scope that the calling
// goroutine holds. It takes some microseconds.
func (h *Heap) isHeldUpHere() bool {
	me, mine, pooled := goroutine.Number(), false, false
	h.eachHeldUp(func(s *Scope) {
		user := s.user.Load()
		mine = mine || user == me
		pooled = pooled || user == 0
	})
	return mine || pooled && goroutine.In(calledName)
}

// isEvacuator reports whether the calling goroutine is the evacuator, in a callback of the program's. It must not
// wait for room then, since only the evacuator makes room.
func (h *Heap) isEvacuator() bool {
	return h.calling.Load() > 0 && h.evacuates.Load() == goroutine.Number()
}

// Call has the evacuator call fn, a function of the program's.
func (h *Heap) Call(fn func(number uint64), number uint64) {
	h.calling.Add(1)
	defer h.calling.Add(-1)
	fn(number)
}

// heldUpBy returns a scope that the evacuator's pass waits for, or nil.
func (h *Heap) heldUpBy() (by *Scope) {
	h.eachHeldUp(func(s *Scope) { by = s })
	return by
}

// eachHeldUp calls fn for every scope that the evacuator's pass waits for.
func (h *Heap) eachHeldUp(fn func(s *Scope)) {
	epoch := h.Pass.epoch.Load()
	h.Scopes.each(func(s *Scope) {
		if e := atomic.LoadInt64(&s.open); e != 0 && e < epoch {
			fn(s)
		}
	})
}
