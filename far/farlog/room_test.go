package farlog

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/store"
)

// Who waits for room is refused after checkpoints that have made none, for a second; and not after some that failed for other reasons, or before which nobody has cleaned: they say
// nothing of the room that there is.
func TestCheckpointsThatFailRefuseNobody(t *testing.T) {
	for _, c := range []struct {
		why              error
		cleaned, refuses bool
	}{{nil, true, true}, {fmt.Errorf("cannot write: %w", store.ErrStoreFull), true, true}, {errors.New("too few places answer"), true, false}, {nil, false, false}} {
		synctest.Test(t, func(t *testing.T) {
			var r Room
			r.Init()
			const segment = 100
			live, counted := int64(1000), 0
			refuses := func(when string, want bool) {
				t.Helper()
				if r.Refuses(segment, func() int64 { counted++; return live }) != want {
					t.Errorf("%s checkpoints that failed with %v, and had far memory cleaned: %v, somebody is refused: %v", when, c.why, c.cleaned, !want)
				}
			}
			commit := func(cleaned bool, reserved int) {
				time.Sleep(fruitlessFor / 4)
				if cleaned {
					r.Looked()
				}
				r.Committed(reserved, 0, live, c.why)
			}
			for range 4 {
				refuses("before enough", false)
				commit(c.cleaned, 0)
			}
			commit(c.cleaned, 0)
			refuses("after", c.refuses)
			live -= segment - 1
			time.Sleep(countEvery)
			refuses("after less than a segment has died, and", c.refuses)
			live--
			refuses("before that is counted,", c.refuses)
			if was := counted; c.refuses {
				time.Sleep(countEvery)
				refuses("after a segment has died, and", false)
				refuses("after that was counted, and", false)
				if counted != was+1 {
					t.Errorf("what lives was counted %d times, want once", counted-was)
				}
				live += segment // so that nothing has died
				for range 5 {
					commit(c.cleaned, 0)
				}
				refuses("after others", true)
			}
			commit(false, 0)
			commit(false, 0)
			refuses("a second after", false)
			commit(c.cleaned, 0)
			refuses("after more", c.refuses)
			live--
			commit(c.cleaned, 0)
			refuses("after something has died, and", false)
			for range 6 {
				commit(c.cleaned, 0)
			}
			refuses("after yet more", c.refuses)
			commit(true, 1)
			refuses("after one that has made room, and", false)
			for range mostFruitless {
				refuses("before enough at once,", false)
				if c.cleaned {
					r.Looked()
				}
				r.Committed(1, 0, live, c.why)
			}
			refuses("after many at once,", c.refuses)
		})
	}
}
