package pager

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"polder/far"
	"polder/far/store/storetest"
	"polder/pages"
	"polder/pages/region"
)

const (
	inRow  = 4096 // pages of rows, of which half are local
	rounds = 4
)

// rows writes to all pages of a region, reads them in a row again and again, and at last writes to them again while another
// thread reads at random.
func rows(addr string) error {
	r, err := region.Map(context.Background(), addr, inRow*pages.Size, region.Config{Local: inRow / 2 * pages.Size})
	if err != nil {
		return err
	}
	defer r.Close()
	b := r.Bytes()
	for i := range inRow {
		binary.LittleEndian.PutUint64(b[i*pages.Size+8*i%pages.Size:], uint64(i)+1)
	}
	for range rounds {
		for i := range inRow {
			if got := binary.LittleEndian.Uint64(b[i*pages.Size+8*i%pages.Size:]); got != uint64(i)+1 {
				return fmt.Errorf("page %d has %d, want %d", i, got, i+1)
			}
		}
	}
	fmt.Println("read")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	var over atomic.Bool
	var other sync.WaitGroup
	sum := uint64(0)
	other.Go(func() {
		for random := rand.New(rand.NewPCG(1, 2)); !over.Load(); {
			sum += binary.LittleEndian.Uint64(b[random.IntN(inRow)*pages.Size+8:])
		}
	})
	defer other.Wait()
	defer over.Store(true)
	for round := range uint64(2) {
		for i := range inRow {
			word := b[i*pages.Size+8*i%pages.Size:]
			got := binary.LittleEndian.Uint64(word)
			if got != uint64(i)+1+round {
				return fmt.Errorf("page %d has %d, want %d", i, got, uint64(i)+1+round)
			}
			binary.LittleEndian.PutUint64(word, got+1)
		}
	}
	return nil
}

// TestWhatIsInARowIsDealtWithTogether: pages that are read in a row, of which half are local, are read from far memory, put into
// the memory and taken out of it many at a time, and so are those that were written to protected; few of them are waited for;
// and of each round not many more are brought than there is no room for.
func TestWhatIsInARowIsDealtWithTogether(t *testing.T) {
	store := storetest.New(256<<10, 200)
	s, addr := newPagerOver(t, store, far.MinLocal, Config{Size: 64 << 20, Frames: 64 << 20})
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "ROWS="+addr)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, _ := bufio.NewReader(out).ReadString('\n')
	if said != "read\n" {
		t.Fatalf("it says %q: %v", said, cmd.Wait())
	}
	defer func() {
		if _, err := in.Write([]byte{1}); err != nil {
			t.Error(err)
		}
		rest, _ := io.ReadAll(out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, rest)
		}
	}()
	st := &s.stats
	ahead, faults, evicted := st.ahead.Load(), st.faults.Load(), st.evicted.Load()
	t.Logf("%d pages were read ahead, %d waited for, %d evicted", ahead, faults, evicted)
	if most := int64(inRow + rounds*inRow*3/4); ahead+faults > most {
		t.Errorf("%d pages were brought, want at most %d: those that are local stay", ahead+faults, most)
	}
	for _, c := range []struct {
		what       string
		times, per int64
		atLeast    int64
	}{
		{"pages that were read ahead for one that was waited for", faults, ahead, 4},
		{"pages for a read", store.Reads.Load(), ahead, 6},
		{"pages for a call to place them", st.places.Load(), ahead, 2},
		{"pages for a call to drop them", st.drops.Load(), evicted, 5},
		{"pages, which all were written to, for a call to protect them", st.protects.Load(), inRow, 8},
	} {
		if t.Logf("%.1f %s", float64(c.per)/float64(max(c.times, 1)), c.what); c.times*c.atLeast > c.per {
			t.Errorf("%d/%d %s, want at least %d", c.per, c.times, c.what, c.atLeast)
		}
	}
}
