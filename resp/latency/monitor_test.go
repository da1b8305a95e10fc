package latency

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"polder/resp/reply"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// says returns what a command replies.
func says(t *testing.T, run func(*reply.Writer, [][]byte) error, args ...string) string {
	t.Helper()
	w := &reply.Writer{Ver: 2, Limit: 1 << 20}
	var a [][]byte
	for _, arg := range args {
		a = append(a, []byte(arg))
	}
	if err := run(w, a); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return string(w.Out)
}

// TestLatencyTellsWhatTookLong has things take long for twice as many seconds as are remembered.
func TestLatencyTellsWhatTookLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(1)
		l.Threshold.Store(10)
		l.Note(EventCommand, 9*time.Millisecond)
		if got := says(t, l.Latest, "LATENCY", "LATEST"); got != "*0\r\n" {
			t.Errorf("LATEST: %q, though nothing took 10 ms", got)
		}
		if got := says(t, l.Doctor, "LATENCY", "DOCTOR"); !strings.Contains(got, "Nothing took 10 ms or more.") {
			t.Errorf("DOCTOR: %q", got)
		}
		l.Note(EventFetch, 30*time.Millisecond)
		for i := range 2 * maxSamples {
			time.Sleep(time.Second)
			l.Note(EventCommand, time.Duration(10+i)*time.Millisecond)
		}
		now := time.Now().Unix()
		worst := 10 + 2*maxSamples - 1
		want := fmt.Sprintf("*2\r\n*4\r\n$7\r\ncommand\r\n:%d\r\n:%d\r\n:%d\r\n*4\r\n$9\r\nfar-fetch\r\n:%d\r\n:30\r\n:30\r\n", now, worst, worst, now-2*maxSamples)
		if got := says(t, l.Latest, "LATENCY", "LATEST"); got != want {
			t.Errorf("LATEST: got %q, want %q", got, want)
		}
		want = fmt.Sprintf("*%d\r\n*2\r\n:%d\r\n:%d\r\n", maxSamples, now-maxSamples+1, 10+maxSamples)
		if got := says(t, l.History, "LATENCY", "HISTORY", "command"); !strings.HasPrefix(got, want) {
			t.Errorf("HISTORY: got %.60q, want the last %d: %q", got, maxSamples, want)
		}
		if got := says(t, l.Doctor, "LATENCY", "DOCTOR"); !strings.Contains(got, "far-fetch: 1 seconds") || !strings.Contains(got, "look at the nodes") {
			t.Errorf("DOCTOR: %q", got)
		}
		for _, args := range [][]string{{"LATENCY", "RESET", "command"}, {"LATENCY", "RESET"}} {
			if got := says(t, l.Reset, args...); got != ":1\r\n" {
				t.Errorf("%q: got %q, want 1", args, got)
			}
		}
		if got := says(t, l.Latest, "LATENCY", "LATEST"); got != "*0\r\n" {
			t.Errorf("LATEST: %q, though everything was reset", got)
		}
	})
}
