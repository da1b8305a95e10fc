package softnic

import (
	"bytes"
	"fmt"
	"testing"
)

// FuzzNIC plays an arbitrary sequence of packets, forged work-queue entries
// and calls to a NIC, among canaries.
func FuzzNIC(f *testing.F) {
	f.Add([]byte{})
	for seed := range uint64(24) {
		b := make([]byte, 4096)
		fill(b, seed)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) <= 1<<14 {
			attack(t, in, nil)
		}
	})
}

// attack plays the input, and writes what comes out to trace, if that is set.
func attack(t testing.TB, in []byte, trace *bytes.Buffer) {
	z := newFuzzed(t, in)
	z.trace = trace
	for len(z.in) > 0 {
		z.step()
		checkNIC(t, z.nic)
	}
	z.full = false
	z.nic.Resume(testLink)
	for range 100 {
		if !z.nic.Run() {
			break
		}
	}
	checkNIC(t, z.nic)
	z.arena.check(t)
	if trace != nil {
		trace.Write(z.arena.mem)
		for _, cq := range z.cqs {
			fmt.Fprintln(trace, z.poll(cq))
		}
		fmt.Fprintf(trace, "%+v", z.nic.Counters())
	}
}

// TestFuzzerReach: random inputs get the NIC to do all that it can, again and
// again, so that the target is worth its time.
func TestFuzzerReach(t *testing.T) {
	var sum Counters
	for seed := range uint64(24) {
		in := make([]byte, 4096)
		fill(in, seed)
		z := newFuzzed(t, in)
		for len(z.in) > 0 {
			z.step()
		}
		c := z.nic.Counters()
		sum.Allocs += c.Allocs
		sum.Frees += c.Frees
		sum.Binds += c.Binds
		sum.Invalidations += c.Invalidations
		sum.Completions += c.Completions
		sum.AccessErrors += c.AccessErrors
		sum.RequestErrors += c.RequestErrors
	}
	for name, n := range map[string]uint64{
		"ALLOC": sum.Allocs, "FREE": sum.Frees, "BIND_MW": sum.Binds, "LOCAL_INV": sum.Invalidations,
		"completion": sum.Completions, "access error": sum.AccessErrors, "invalid request": sum.RequestErrors,
	} {
		if n < 24 {
			t.Errorf("%s: %d of them in 24 inputs, want at least one in each", name, n)
		}
	}
	t.Logf("%+v", sum)
}

// TestDeterminism: the same input gives the same packets, completions, events
// and memory, in the same order.
func TestDeterminism(t *testing.T) {
	total := 0
	for seed := range uint64(200) {
		in := make([]byte, 4096)
		fill(in, seed+1000)
		var traces [2]bytes.Buffer
		for i := range traces {
			attack(t, in, &traces[i])
		}
		if !bytes.Equal(traces[0].Bytes(), traces[1].Bytes()) {
			t.Fatalf("seed %d: two runs differ", seed)
		}
		total += traces[0].Len() - 16384
	}
	if total < 200*1000 {
		t.Errorf("200 traces have %d bytes: hardly anything happened", total)
	}
}

// fill puts a pattern into b that depends on seed.
func fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
}
