package disk

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"polder/far"
)

type station struct {
	Number int64
	Next   far.Ref[station]
	_      [112]byte
}

// line is a program with objects that outlive it: a list, the last station first, and a vector of the same numbers.
type line struct {
	heap     *far.Heap
	store    *Store
	stations *far.Class[station]
	numbers  *far.Vector[int64]
}

func openLine(dir string) (l *line, err error) {
	l = new(line)
	if l.store, err = Open(Config{Dir: dir, Size: 64 << 20, SegmentSize: 256 << 10}); err != nil {
		return nil, err
	}
	if l.heap, err = far.Open(context.Background(), l.store, far.Config{Local: 4 << 20}); err != nil {
		return nil, err
	}
	if l.stations, err = far.NewClass[station](l.heap, far.ClassConfig{Name: "stations", Keep: true}); err != nil {
		return nil, err
	}
	l.numbers, err = far.NewVector[int64](l.heap, far.StructureConfig{Name: "numbers", Keep: true})
	return l, err
}

// extend makes the line longer, and says so each time that it is kept, until the process is killed.
func (l *line) extend() error {
	ctx := context.Background()
	var mu sync.Mutex
	l.heap.KeepState(func() far.State {
		mu.Lock()
		return far.State{Thaw: mu.Unlock}
	})
	for {
		for range 200 {
			mu.Lock()
			last, _ := l.stations.Named("last")
			n := int64(l.numbers.Len())
			p, err := l.stations.New(ctx, station{Number: n, Next: last.Ref()})
			if err == nil {
				err = l.stations.SetNamed("last", p)
			}
			if err == nil {
				err = l.numbers.Append(ctx, n)
			}
			mu.Unlock()
			if err != nil {
				return err
			}
		}
		if err := l.heap.Checkpoint(ctx); err != nil {
			return err
		}
		fmt.Println(l.numbers.Len())
	}
}

// check returns how long the line is.
func (l *line) check(t *testing.T) int {
	t.Helper()
	at, _ := l.stations.Named("last")
	n := l.numbers.Len()
	for i := n - 1; i >= 0; i-- {
		s, err := at.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if x, err := l.numbers.Get(t.Context(), i); err != nil || x != int64(i) || s.Number != int64(i) {
			t.Fatalf("station %d is %d in the list and %d in the vector: %v", i, s.Number, x, err)
		}
		at = s.Next.Ptr(l.heap)
	}
	if !at.IsNil() {
		t.Fatal("the list is longer than the vector")
	}
	return n
}

const lineVariable = "POLDER_TEST_LINE"

// A process that is killed leaves the objects that its last checkpoint had, and the next one goes on with them, again and again.
func TestObjectsOutliveAKilledProcess(t *testing.T) {
	dir, n := shm(t), 0
	for round := range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), lineVariable+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		told := 0
		lines := bufio.NewScanner(out)
		for i := 0; i <= 3+round && lines.Scan(); i++ {
			if told, err = strconv.Atoi(strings.TrimSpace(lines.Text())); err != nil {
				t.Errorf("the process said %q", lines.Text())
				break
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if told == 0 {
			t.Fatal("the process has kept nothing")
		}
		l, err := openLine(dir)
		if err != nil {
			t.Fatal(err)
		}
		had := n
		if n = l.check(t); n < told || n < had+200 {
			t.Errorf("the line has %d stations; the process has said that %d are kept, and before it there were %d", n, told, had)
		}
		if err := l.heap.Close(); err != nil {
			t.Error(err)
		}
		closeStore(t, l.store)
	}
}
