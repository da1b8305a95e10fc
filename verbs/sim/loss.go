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

// Lose makes the network lose answers from now on.
//
// The requester of a lost answer asks again when its time-out has passed, and drops the answers that have come
// meanwhile. The responder executes a repeated READ once more; it executes an atomic only once, and repeats its
// answer from memory. So what the requester sees is this: a READ reads what is there at that later time, after
// atomics and WRITEs that were posted behind the READ without a fence, and every later answer comes later still. It
// sees nothing else of the loss, and so the model does just this: it holds the answer back for the time-out, executes
// the READ then, and goes on meanwhile with the requests that come.
//
// Preconditions: nothing runs.
func (w *World) Lose(l Loss) {
	w.loss, w.dice = l, rand.New(rand.NewPCG(1, 1))
}

// lost returns how late an answer is because it was lost, perhaps more than once.
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
