package memcached

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestNoCommandIsQuadratic gives the commands that take many words four times as
// many, and compares the processor time that they take: more than 9 times as much
// is more than n log n.
func TestNoCommandIsQuadratic(t *testing.T) {
	s, _ := start(t, nil)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, words := range []string{"get", "gets", "gat 100", "ms k 0", "set k", "nosuch", "flush_all 0"} {
		spent := func(n int) time.Duration {
			var line strings.Builder
			line.WriteString(words)
			for i := range n {
				fmt.Fprintf(&line, " S%d", i)
			}
			line.WriteString("\r\n")
			c := &client{s: s, mem: s.cfg.ClientMemory.Join(), now: time.Now(), out: bufio.NewWriter(io.Discard)}
			c.in = bufio.NewReaderSize(strings.NewReader(line.String()+"\r\n"), MaxLine)
			start := threadTime()
			if err := c.command(); err != nil {
				t.Fatalf("%s with %d words: %v", words, n, err)
			}
			return threadTime() - start
		}
		small, large := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
		fine := false
		for i := 0; i < 3 && !fine; i++ {
			small, large = min(small, spent(2000)), min(large, spent(8000))
			fine = large < 8000*2*time.Microsecond || large < 9*small
		}
		if !fine {
			t.Errorf("%s with 2000 words: %v, with 8000: %v", words, small, large)
		}
	}
}

// threadTime is the processor time that this thread has had.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}
