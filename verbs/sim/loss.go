package sim

import (
	"math/rand/v2"
	"time"
)

// Loss is how often the network loses the answer to a READ or an atomic, and what
// that costs. The zero value loses nothing.
type Loss struct {
	OneIn   int           // one answer of so many, at random
	Timeout time.Duration // until the requester sends the request again
}

// Lose has the network lose answers from now on.
//
// The requester of a lost answer asks again when its time-out has passed, and
// drops what has come meanwhile. The responder executes a READ that it gets again
// once more; an atomic it executes once, and answers from memory. So who has asked
// sees what a READ reads as late as that, after atomics and WRITEs that it posted
// behind the READ without a fence, and every later answer later still. Nothing
// else can be seen of it, and that is what the model does: it holds the answer
// back for the time-out, has the READ executed then, and goes on meanwhile with
// the requests that come.
//
// Preconditions: nothing runs.
func (w *World) Lose(l Loss) {
	w.loss, w.dice = l, rand.New(rand.NewPCG(1, 1))
}

// lost is how long an answer is late for having been lost, perhaps more than once.
func (w *World) lost() (late time.Duration) {
	if w.loss.OneIn == 0 {
		return 0
	}
	for w.dice.IntN(w.loss.OneIn) == 0 {
		late += w.loss.Timeout
		if w.loss.OneIn == 1 {
			break // once each: otherwise none would ever come
		}
	}
	return late
}
