package soft

import (
	"fmt"
	"testing"
)

// The protocol of writing in place, step by step: every step is one access to
// memory that others see. All interleavings of two writers, a reader, an
// evacuator that moves the object and opens its segment again, and a
// coordinator that revokes, punches and grants are visited.

const (
	initial = 1 + iota // what the object holds at first
	first              // what the writers write
	second
	foreign // what the segment's next life holds
)

const (
	modelWriter = iota
	modelWriter2
	modelReader
	modelEvacuator
	modelCoordinator
	modelThreads
)

// protocolWorld is a state of the model. The object has two halves.
type protocolWorld struct {
	gen          uint8
	dead, locked bool
	writes       uint8
	mem          [2]uint8
	moved        bool // the slot names the copy
	copied       [2]uint8
	latest       uint8 // of the writes that were acknowledged, or the initial value
	reopened     bool

	pc                  [modelThreads]uint8
	gen0, writes0, half [modelThreads]uint8
	read                [2]uint8
}

const ended = 99

// flaw is a way to break one of the protocol's rules.
type flaw string

const (
	noFlaw                    flaw = ""
	readerIgnoresWrites       flaw = "a reader ignores locks and writes"
	readerIgnoresGeneration   flaw = "a reader ignores the generation"
	deadDoesNotWait           flaw = "the dead bit is set under a writer's lock"
	deadComesAfterTheCopy     flaw = "the dead bit is set after the copy"
	writerIgnoresDead         flaw = "a writer ignores the dead bit"
	writerIgnoresGeneration   flaw = "a writer ignores the generation"
	writerChecksBeforeHeLocks flaw = "a writer loads the generation before he locks"
	reopenDoesNotWait         flaw = "a segment is opened under a writer's lock"
)

var flaws = []flaw{
	readerIgnoresWrites, readerIgnoresGeneration, deadDoesNotWait, deadComesAfterTheCopy,
	writerIgnoresDead, writerIgnoresGeneration, writerChecksBeforeHeLocks, reopenDoesNotWait,
}

// step does one step of a thread. It reports false if the thread has ended or
// has to wait, and an error if it did what must not happen.
func (w *protocolWorld) step(t int, f flaw) (bool, error) {
	pc := &w.pc[t]
	switch t {
	case modelWriter, modelWriter2:
		return w.write(t, uint8(first+t), f), nil
	case modelReader:
		switch *pc {
		case 0:
			w.gen0[t] = w.gen
		case 1:
			if w.gen0[t] != 0 || w.dead || w.locked && f != readerIgnoresWrites {
				*pc = ended
				return true, nil
			}
			w.writes0[t] = w.writes
		case 2:
			w.read[0] = w.mem[0]
		case 3:
			w.read[1] = w.mem[1]
		case 4:
			if w.gen != w.gen0[t] && f != readerIgnoresGeneration {
				*pc = ended
				return true, nil
			}
		case 5:
			if (w.locked || w.writes != w.writes0[t]) && f != readerIgnoresWrites {
				*pc = ended
				return true, nil
			}
			*pc = ended
			if w.read[0] != w.read[1] || w.read[0] < initial || w.read[0] > second {
				return true, fmt.Errorf("a reader answered %v", w.read)
			}
			return true, nil
		default:
			return false, nil
		}
	case modelEvacuator:
		return w.evacuate(f)
	case modelCoordinator:
		switch *pc {
		case 0:
			w.gen++ // revoke: an even generation, whatever it is
		case 1:
			w.mem[0] = 0
		case 2:
			w.mem[1] = 0
		case 3:
			w.gen++ // grant
		default:
			return false, nil
		}
	}
	*pc++
	return true, nil
}

func (w *protocolWorld) write(t int, v uint8, f flaw) bool {
	pc := &w.pc[t]
	switch *pc {
	case 0:
		if f == writerChecksBeforeHeLocks {
			w.gen0[t] = w.gen
		}
	case 1: // load the state and lock it if it is free: a failed exchange tries again
		if w.locked {
			return false
		}
		if w.dead && f != writerIgnoresDead {
			*pc = ended
			return true
		}
		w.locked = true
	case 2:
		if f != writerChecksBeforeHeLocks {
			w.gen0[t] = w.gen
		}
		if w.gen0[t] != 0 && f != writerIgnoresGeneration {
			*pc = 6
			return true
		}
	case 3:
		w.mem[0] = v
	case 4:
		w.mem[1] = v
	case 5:
		w.locked, w.latest = false, v
		w.writes++
		*pc = ended
		return true
	case 6:
		w.locked = false
		w.writes++
		*pc = ended
		return true
	default:
		return false
	}
	*pc++
	return true
}

// evacuate moves the object if its segment has not been revoked; then, or if
// it has been revoked and granted again, it opens the segment and writes.
func (w *protocolWorld) evacuate(f flaw) (bool, error) {
	const t = modelEvacuator
	const reopen = 10
	pc := &w.pc[t]
	switch *pc {
	case 0:
		if w.gen != 0 {
			*pc = reopen
			return true, nil
		}
		if f == deadComesAfterTheCopy {
			*pc = 2
			return true, nil
		}
	case 1:
		if w.locked && f != deadDoesNotWait {
			return false, nil
		}
		w.dead = true
	case 2:
		w.copied[0] = w.mem[0]
	case 3:
		w.copied[1] = w.mem[1]
	case 4:
		if w.gen != 0 {
			*pc = reopen
			return true, nil
		}
	case 5:
		if f == deadComesAfterTheCopy {
			w.dead = true
		}
		w.moved = true
		if w.copied[0] != w.copied[1] || w.copied[0] < initial || w.copied[0] > second {
			return true, fmt.Errorf("the evacuator saved %v", w.copied)
		}
		if w.copied[0] != w.latest {
			return true, fmt.Errorf("the evacuator saved %d after %d was written", w.copied[0], w.latest)
		}
	case 6:
		if w.gen&1 == 0 {
			w.gen += 2 // recycle
		}
		*pc = reopen
		return true, nil
	case reopen:
		if w.gen&1 != 0 { // away until it is granted
			return false, nil
		}
	case reopen + 1:
		if w.locked && f != reopenDoesNotWait {
			return false, nil
		}
		w.dead = false
	case reopen + 2:
		w.mem[0], w.half[t] = foreign, w.gen
	case reopen + 3:
		w.mem[1], w.reopened = foreign, true
	default:
		return false, nil
	}
	*pc++
	return true, nil
}

// explore visits every state that can be reached, and returns how many there
// are and the first thing that went wrong.
func explore(f flaw) (int, error) {
	start := protocolWorld{mem: [2]uint8{initial, initial}, latest: initial}
	seen := map[protocolWorld]struct{}{start: {}}
	stack := []protocolWorld{start}
	for len(stack) > 0 {
		w := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		moved := false
		for t := range modelThreads {
			next := w
			ok, err := next.step(t, f)
			if err != nil {
				return len(seen), err
			}
			if !ok {
				continue
			}
			moved = true
			if _, ok := seen[next]; !ok {
				seen[next] = struct{}{}
				stack = append(stack, next)
			}
		}
		if moved {
			continue
		}
		// All have ended. What was written into the next life must be there,
		// unless it was revoked in its turn.
		if w.reopened && w.half[modelEvacuator] == w.gen && w.mem != [2]uint8{foreign, foreign} {
			return len(seen), fmt.Errorf("the segment's next life holds %v", w.mem)
		}
		if w.locked {
			return len(seen), fmt.Errorf("somebody waits for a lock that nobody holds")
		}
	}
	return len(seen), nil
}

func TestInterleavingsOfWritingInPlace(t *testing.T) {
	n, err := explore(noFlaw)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d states", n)
	for _, f := range flaws { // or the model would show nothing
		if _, err := explore(f); err == nil {
			t.Errorf("if %s, nothing goes wrong", f)
		} else {
			t.Logf("if %s, %v", f, err)
		}
	}
}
