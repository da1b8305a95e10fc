package named_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/named"
	"polder/far/store"
)

// logged is a process with a log, whose n-th record begins with n.
type logged struct {
	*process
	log *named.Log
}

// openLog opens the log of a process, and returns the records that were in it.
func (p *process) openLog(t *testing.T) (l *logged, found []int) {
	t.Helper()
	log, err := p.store.OpenLog(t.Context(), func(rec []byte) error {
		found = append(found, int(binary.LittleEndian.Uint64(rec)))
		return nil
	})
	if err == nil {
		err = p.heap.Checkpoint(t.Context())
	}
	if err == nil {
		err = log.Begin(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return &logged{p, log}, found
}

// TestEvidenceOfTheLogTrustsNoClock: an owner that does not know yet that another one has the heap has none, even when that one waits for no lease; and
// what evidence has written is no record.
func TestEvidenceOfTheLogTrustsNoClock(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		p, _ := w.start(t, named.Config{Fenced: true}).openLog(t)
		for n := range 3 {
			for range 2 {
				if err := p.log.Shown(p.log.Ask()); err != nil {
					t.Fatalf("an owner has no evidence: %v", err)
				}
			}
			number, err := p.log.Append(binary.LittleEndian.AppendUint64(nil, uint64(n)))
			if err != nil {
				t.Fatal(err)
			}
			ticket := p.log.Ask()
			if err := p.log.Commit(number); err != nil {
				t.Fatal(err)
			}
			before := p.log.Ask()
			if err := p.log.Shown(ticket); err != nil || p.log.Ask() != before {
				t.Errorf("evidence that came with a record: %v, and writes that have begun since: %d, want none", err, p.log.Ask()-before)
			}
		}
		old := p.log.Ask()
		if err := p.log.Shown(old); err != nil {
			t.Fatal(err)
		}
		p.wire.cut.Store(true) // it is not told
		ticket := p.log.Ask()
		began := time.Now()
		next := w.start(t, named.Config{Me: "next", Patience: impatient})
		if took := time.Since(began); took > named.DefaultLease/2 {
			t.Errorf("there is no lease, and the next owner has waited for %v", took)
		}
		shown := make(chan error, 1)
		go func() { shown <- p.log.Shown(ticket) }()
		time.Sleep(time.Minute)
		select {
		case err := <-shown:
			if err == nil {
				t.Error("an owner that was superseded has evidence")
			}
			shown <- err
		default: // it waits
		}
		l, found := next.openLog(t)
		if fmt.Sprint(found) != "[0 1 2]" {
			t.Errorf("the log has the records %v, want 0 to 2", found)
		}
		p.wire.cut.Store(false) // now it is told
		if err := <-shown; err == nil {
			t.Error("an owner that knows that it was superseded has evidence")
		}
		p.bury()
		_ = p.log.Close() // it cannot
		if err := l.log.Close(); err != nil {
			t.Error(err)
		}
		next.close(t)
		w.check(t)
	})
}

// TestTheLogHasWhatItHasKept: places die, stop and lie in the way of writes, the register loses answers, processes are superseded; every
// record for which Commit has returned is found by the next process, in order, until it is dropped.
func TestTheLogHasWhatItHasKept(t *testing.T) {
	seeds := 5
	if os.Getenv("TEST_SOAK") != "" {
		seeds = 2000
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) { logFaults(t, uint64(seed)) })
		})
	}
}

func logFaults(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(5, seed))
	w := newWorld(4)
	w.reg.r = rand.New(rand.NewPCG(6, seed))
	p, _ := w.start(t, named.Config{}).openLog(t)
	last, kept, dropped, bad := 0, 0, 0, -1
	var numbers []uint64 // of the records of this process, by the log
	for range 80 {
		switch r.IntN(10) {
		default:
			for range 1 + r.IntN(40) {
				last++
				n, err := p.log.Append(binary.LittleEndian.AppendUint64(make([]byte, 0, 8+9000), uint64(last))[:8+r.IntN(9000)])
				if err != nil {
					t.Fatal(err)
				}
				numbers = append(numbers, n)
			}
			if r.IntN(3) > 0 {
				if err := p.log.Commit(numbers[len(numbers)-1]); err != nil {
					t.Fatal(err)
				}
				kept = last
			}
		case 6:
			if n := len(numbers); n > 0 && kept == last { // the heap has a checkpoint of them
				p.log.Drop(numbers[n-1])
				dropped = kept
			}
		case 7: // one place at a time has trouble
			bad = w.trouble(t, p.process, r, bad)
		case 8, 9:
			old := p
			if r.IntN(2) == 0 {
				if err := p.log.Close(); err != nil {
					t.Fatal(err)
				}
				kept = last
			}
			var found []int
			p, found = w.start(t, named.Config{Patience: impatient}).openLog(t)
			_ = old.log.Close() // it cannot, if it was not closed before
			old.bury()
			for i, n := range found {
				if i > 0 && n != found[i-1]+1 {
					t.Fatalf("record %d follows record %d", n, found[i-1])
				}
			}
			switch {
			case kept == dropped:
			case len(found) == 0 || found[0] > dropped+1 || found[len(found)-1] < kept:
				t.Fatalf("found %d records, %v to %v, want at least %d to %d", len(found), first(found), lastOf(found), dropped+1, kept)
			case lastOf(found) > last:
				t.Fatalf("record %d was found, and the last one is %d", lastOf(found), last)
			}
			last = max(kept, lastOf(found)) // from there on the next one goes on
			kept, dropped, numbers = last, last, nil
		}
	}
	w.check(t)
	if err := p.log.Close(); err != nil {
		t.Fatal(err)
	}
	p.close(t)
}

func first(s []int) int {
	if len(s) == 0 {
		return 0
	}
	return s[0]
}

func lastOf(s []int) int {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1]
}

// TestNothingIsLeftOfALogThatACheckpointHas: who has closed a log of which a checkpoint has everything leaves none to be read by the next owner; and
// all of it otherwise.
func TestNothingIsLeftOfALogThatACheckpointHas(t *testing.T) {
	const records = 3
	for _, c := range []struct {
		name    string
		dropped int // records that a checkpoint has
		close   func(l *named.Log) error
		left    string
	}{
		{"all", records, (*named.Log).Close, "[]"},
		{"all but one", records - 1, (*named.Log).Close, "[1 2 3]"},
		{"all, but the log has failed", records, func(l *named.Log) error { l.Abandon(); return nil }, "[1 2 3]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				w := newWorld(2)
				p, _ := w.start(t, named.Config{}).openLog(t)
				var numbers []uint64
				for n := range records {
					number, err := p.log.Append(binary.LittleEndian.AppendUint64(nil, uint64(n+1)))
					if err != nil {
						t.Fatal(err)
					}
					numbers = append(numbers, number)
				}
				if err := p.log.Commit(numbers[records-1]); err != nil {
					t.Fatal(err)
				}
				p.log.Drop(numbers[c.dropped-1])
				if err := c.close(p.log); err != nil {
					t.Fatal(err)
				}
				_ = p.log.Close()
				p.close(t)

				m := w.manifest(t)
				if none := c.left == "[]"; none != (len(m.Tail) == 0) {
					t.Errorf("the manifest lists %d segments of the log", len(m.Tail))
				}
				// An owner that has replayed the log, but has not begun another one, leaves it as it was.
				between := w.start(t, named.Config{})
				log, err := between.store.OpenLog(t.Context(), func([]byte) error { return nil })
				if err != nil {
					t.Fatal(err)
				}
				if err := log.Close(); err != nil {
					t.Fatal(err)
				}
				between.close(t)
				next, found := w.start(t, named.Config{}).openLog(t)
				if fmt.Sprint(found) != c.left {
					t.Errorf("the next owner has found the records %v, want %s", found, c.left)
				}
				if err := next.log.Close(); err != nil {
					t.Error(err)
				}
				next.close(t)
				w.check(t)
			})
		})
	}
}

// TestALogThatIsSupersededKeepsNothing: who waits for a record is told.
func TestALogThatIsSupersededKeepsNothing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		p, _ := w.start(t, named.Config{}).openLog(t)
		next, _ := w.start(t, named.Config{Patience: impatient}).openLog(t)
		n, err := p.log.Append([]byte("12345678"))
		if err == nil {
			err = p.log.Commit(n)
		}
		if !errors.Is(err, named.ErrSuperseded) {
			t.Errorf("a record of an owner that was superseded: %v", err)
		}
		if _, err := p.log.Append(make([]byte, p.log.MaxRecord()+1)); err == nil {
			t.Error("a record that is too long was taken")
		}
		_ = p.log.Close() // it cannot
		p.bury()
		if err := next.log.Close(); err != nil {
			t.Error(err)
		}
		if _, err := next.log.Append([]byte("x")); !errors.Is(err, named.ErrLogClosed) {
			t.Errorf("Append after Close: %v", err)
		}
		next.close(t)
	})
}

// TestTheManifestKnowsWhereTheLogWasMoved: a place is lost, and its copies of the log's segments are made anew elsewhere; then the process
// is gone, and the other place that had them. What was kept is where it was moved to.
func TestTheManifestKnowsWhereTheLogWasMoved(t *testing.T) {
	for x := range 3 {
		for y := range 3 {
			if x == y {
				continue
			}
			inVirtualTime(t, func(t *testing.T) {
				w := newWorld(3)
				p, _ := w.start(t, named.Config{}).openLog(t)
				n, err := p.log.Append(binary.LittleEndian.AppendUint64(nil, 1))
				if err == nil {
					err = p.log.Commit(n)
				}
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // the log has its spares, and does not change what the manifest lists any more
				w.places[x].kill()
				p.repaired(t)
				for i := range 4 { // what was moved is in the names of the checkpoint, and no longer beside them; the log is not in it
					p.set(t, i, i)
					if err := p.heap.Checkpoint(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				p.wire.cut.Store(true)
				w.places[y].kill()
				next, found := w.start(t, named.Config{Patience: impatient}).openLog(t)
				if len(found) != 1 || found[0] != 1 {
					t.Errorf("places %d and %d were lost one after the other: found %v, want record 1", x, y, found)
				}
				_ = p.log.Close() // it cannot
				p.bury()
				if err := next.log.Close(); err != nil {
					t.Error(err)
				}
				next.close(t)
			})
		}
	}
}

// TestADamagedEndOfTheLogIsNotTakenForItsEnd: of two copies one is damaged, and the other one cannot be reached for a moment. If it is away for good,
// the heap is opened nevertheless, with what there is.
func TestADamagedEndOfTheLogIsNotTakenForItsEnd(t *testing.T) {
	for _, comesBack := range []bool{true, false} {
		inVirtualTime(t, func(t *testing.T) {
			w := newWorld(3)
			p, _ := w.start(t, named.Config{}).openLog(t)
			for i := range 5 {
				n, err := p.log.Append(binary.LittleEndian.AppendUint64(nil, uint64(i+1)))
				if err == nil {
					err = p.log.Commit(n)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait() // it gets spare segments meanwhile
			p.wire.cut.Store(true)
			m := w.manifest(t)
			var number, one, chunk, other int
			if _, err := fmt.Sscanf(m.Tail[0].Name, "segment %d at node %d/chunk 0.%d and node %d/", &number, &one, &chunk, &other); err != nil {
				t.Fatal(err)
			}
			w.places[one].segs[chunk][100] ^= 1 // in the third record
			w.places[other].setDown(true)
			if comesBack {
				time.AfterFunc(2*time.Second, func() { w.places[other].setDown(false) })
			}
			began := time.Now()
			next, found := w.start(t, named.Config{Patience: impatient}).openLog(t)
			if want := 5; comesBack && len(found) != want {
				t.Errorf("found records %v, want %d", found, want)
			}
			if took := time.Since(began); !comesBack && (len(found) != 3 || took > time.Minute) {
				t.Errorf("a copy is away for good: found records %v in %v, want the first 3 soon", found, took)
			}
			_ = p.log.Close() // it cannot
			p.bury()
			w.places[other].setDown(false)
			if err := next.log.Close(); err != nil {
				t.Error(err)
			}
			next.close(t)
		})
	}
}

// TestRecordsThatWereWrittenAgainAreNotTheEndOfTheLog: a write has come to one copy only, so its records were written again to the next segment, where another
// one follows. Of that segment 4 KiB are looked at first, to see whether there is anything in it, and the records that are known already fill them, or nearly.
func TestRecordsThatWereWrittenAgainAreNotTheEndOfTheLog(t *testing.T) {
	const look, header, frame = 4 << 10, 16, 16
	for _, less := range []int{0, 4, frame} { // bytes that are left of what is looked at
		inVirtualTime(t, func(t *testing.T) {
			w := newWorld(2)
			p, _ := w.start(t, named.Config{}).openLog(t)
			synctest.Wait() // it gets spare segments meanwhile
			p.wire.cut.Store(true)
			m := w.manifest(t)
			var recs [][]byte
			for i, size := range []int{8, (look - header - 2*frame - less) / 2, (look - header - 2*frame - less) / 2, 8} {
				rec := bytes.Repeat([]byte{1}, size)
				binary.LittleEndian.PutUint64(rec, uint64(i+1))
				recs = append(recs, rec)
			}
			for i, b := range [][]byte{
				named.LogSegment(m.Tail[0].Number, 1, recs[:3]...),
				named.LogSegment(m.Tail[1].Number, 2, recs[1:]...),
			} {
				var number int
				var at, chunk [2]int
				if _, err := fmt.Sscanf(m.Tail[i].Name, "segment %d at node %d/chunk 0.%d and node %d/chunk 0.%d", &number, &at[0], &chunk[0], &at[1], &chunk[1]); err != nil {
					t.Fatal(err)
				}
				for k := range at[:1+i] { // of the first segment one copy
					copy(w.places[at[k]].segs[chunk[k]], b)
				}
			}
			next, found := w.start(t, named.Config{Patience: impatient}).openLog(t)
			if fmt.Sprint(found) != "[1 2 3 4]" {
				t.Errorf("%d bytes before what is looked at ends: found the records %v, want 1 to 4", less, found)
			}
			_ = p.log.Close() // it cannot
			p.bury()
			if err := next.log.Close(); err != nil {
				t.Error(err)
			}
			next.close(t)
		})
	}
}

// FuzzScanLog: whatever a segment has, what is taken for a record is in order, and of that segment.
func FuzzScanLog(f *testing.F) {
	f.Add(named.LogSegment(7, 3, []byte("a"), []byte("bc"), nil), uint64(7), uint64(3))
	f.Add(named.LogSegment(7, 3, []byte("a"), []byte("bc")), uint64(7), uint64(0))
	f.Add(named.LogSegment(8, 1, []byte("a")), uint64(7), uint64(1))
	f.Fuzz(func(t *testing.T, b []byte, segment, next uint64) {
		n := uint64(0)
		end := named.ScanLog(b, segment, next, func([]byte) bool { n++; return true })
		if next != 0 && end != next+n || next == 0 && n > 0 && end < n {
			t.Fatalf("%d records from %d on end at %d", n, next, end)
		}
	})
}

// takeAll borrows all that the places have left.
func (p *process) takeAll(t *testing.T) (all []store.Segment) {
	t.Helper()
	for {
		seg, err := p.store.Alloc(t.Context())
		if errors.Is(err, store.ErrStoreFull) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, seg)
	}
}

// TestALogThatLacksASegmentSaysSo: where the places are full, and what the log has is used up, the heap is told that it needs a segment of what is kept
// for the next checkpoint, and is not any more when there is one.
func TestALogThatLacksASegmentSaysSo(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		p, _ := w.start(t, named.Config{}).openLog(t)
		all := p.takeAll(t)
		if p.store.Needs() {
			t.Error("a log with spare segments needs one")
		}
		full := time.AfterFunc(time.Minute, func() { // who appends waits for room, which nobody else makes
			t.Error("the log has no segment left, and needs none")
			if err := all[len(all)-1].Free(t.Context()); err != nil {
				t.Error(err)
			}
		})
		for rec := make([]byte, 15<<10); !p.store.Needs() && !t.Failed(); {
			number, err := p.log.Append(append(binary.LittleEndian.AppendUint64(nil, 0), rec...))
			if err != nil {
				t.Fatal(err)
			}
			if err := p.log.Commit(number); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // the log looks for spare segments
		}
		full.Stop()
		if err := all[0].Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if time.Sleep(time.Second); !p.store.Needs() {
				break
			}
		}
		if p.store.Needs() {
			t.Error("a log that could have a segment still needs one")
		}
		for _, seg := range all[1 : len(all)-1] {
			if err := seg.Free(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.log.Close(); err != nil {
			t.Error(err)
		}
		p.close(t)
		w.check(t)
	})
}

// TestAFullLogGoesOnAfterACheckpoint: where the places are full, a log that has used up its segments gives those back that a checkpoint has, the last
// one, too, and has them again to go on in.
func TestAFullLogGoesOnAfterACheckpoint(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		p, _ := w.start(t, named.Config{}).openLog(t)
		all := p.takeAll(t)
		rec := append(binary.LittleEndian.AppendUint64(nil, 0), make([]byte, 15<<10)...)
		listed := func() (numbers []uint64) {
			m := w.manifest(t)
			for _, tail := range m.Tail {
				numbers = append(numbers, tail.Number)
			}
			slices.Sort(numbers)
			return numbers
		}
		kept := make(chan error, 1)
		number := uint64(0)
		for stuck := false; !stuck; {
			var err error
			if number, err = p.log.Append(rec); err != nil {
				t.Fatal(err)
			}
			go func() { kept <- p.log.Commit(number) }()
			select {
			case err := <-kept:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(time.Minute):
				stuck = true
			}
		}
		if !p.store.Needs() {
			t.Error("the log has no segment left, and needs none")
		}
		full := listed()
		p.log.Drop(number - 1)
		select {
		case err := <-kept:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("a minute after a checkpoint that has all before it, a record is not kept")
			_ = all[0].Free(t.Context())
			<-kept
			all = all[1:]
		}
		time.Sleep(time.Minute)
		if now := listed(); len(now) == 0 || now[0] <= full[len(full)-1] {
			t.Errorf("the log has the segments %d, and had %d when it was full: it has kept the last of those, in which there is no room, either", now, full)
		}
		for _, seg := range all {
			if err := seg.Free(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := p.log.Close(); err != nil {
			t.Error(err)
		}
		p.close(t)
		w.check(t)
	})
}
