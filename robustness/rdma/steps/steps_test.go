package steps

import (
	"bytes"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/robustness/rdma/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record is what a runner reports and shows.
type record struct {
	mu     sync.Mutex
	out    bytes.Buffer
	events []plan.Event
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(p)
}

func (r *record) report(e plan.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	return nil
}

// outcome is the last event of a step.
func (r *record) outcome(t *testing.T, step string) plan.Event {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Kind == plan.Ended && e.Step == step {
			return e
		}
	}
	t.Fatalf("step %q was not reported to have ended: %+v", step, r.events)
	return plan.Event{}
}

func newRunner(t *testing.T) (*Runner, *record) {
	rec := new(record)
	return &Runner{Env: []string{"PATH=/bin:/usr/bin", "A=1"}, Dir: t.TempDir(), Output: rec, Report: rec.report}, rec
}

func shell(name, script string) plan.Step {
	return plan.Step{Name: name, Args: []string{"sh", "-c", script}, Timeout: time.Minute}
}

func TestEveryStepRunsAndTheFirstErrorIsReturned(t *testing.T) {
	r, rec := newRunner(t)
	list := []plan.Step{
		shell("good", "echo $A$B >&2"),
		shell("bad", "exit 3"),
		shell("worse", "exit 4"),
		{Name: "missing", Args: []string{"/nowhere"}, Timeout: time.Minute},
		shell("tests", "echo '--- PASS: TestA (0.00s)'; echo '    --- PASS: TestA/b (0.00s)'; echo '--- FAIL: TestC'; echo end"),
		shell("no tests", "echo PASS"),
	}
	list[0].Env = []string{"B=2"}
	list[4].Tests, list[5].Tests = 2, 1
	err := r.Run(list)
	if err == nil || err.Error() != `step "bad": exit status 3` {
		t.Errorf("got error %v, want that of the first step that failed", err)
	}
	if err := r.End(); err != nil {
		t.Error(err)
	}
	for step, want := range map[string]string{
		"good": plan.Passed, "bad": plan.Failed, "worse": plan.Failed, "missing": plan.Failed, "tests": plan.Passed, "no tests": plan.Failed,
	} {
		if e := rec.outcome(t, step); e.Outcome != want || (e.Why == "") != (want == plan.Passed) {
			t.Errorf("step %q: got %+v, want it %s", step, e, want)
		}
	}
	if n := rec.outcome(t, "tests").Tests; n != 2 {
		t.Errorf("counted %d tests, want 2", n)
	}
	for _, line := range []string{"12\n", "end\n"} {
		if !strings.Contains(rec.out.String(), line) {
			t.Errorf("the output lacks %q:\n%s", line, rec.out.String())
		}
	}
}

func TestAStepThatHangsIsKilled(t *testing.T) {
	r, rec := newRunner(t)
	s := shell("hangs", "exec sleep 1000")
	s.Timeout = 10 * time.Millisecond
	if err := r.Run([]plan.Step{s}); err == nil || !strings.Contains(err.Error(), "has not ended after 10ms") {
		t.Errorf("got error %v", err)
	}
	if e := rec.outcome(t, "hangs"); e.Outcome != plan.Hung {
		t.Errorf("got %+v, want it hung", e)
	}
}

func TestABackgroundStepEndsWithThePlan(t *testing.T) {
	r, rec := newRunner(t)
	serve := shell("serves", `trap 'echo ended; exit 0' TERM; echo serving; while :; do sleep 0.01; done`)
	serve.Background = true
	if err := r.Run([]plan.Step{serve, shell("works", "true")}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-r.Failed():
		t.Fatal(err)
	default:
	}
	// A shell that has not come to its trap would die of the signal.
	for !strings.Contains(rec.text(), "serving") {
	}
	if err := r.End(); err != nil {
		t.Error(err)
	}
	if e := rec.outcome(t, "serves"); e.Outcome != plan.Passed || !strings.Contains(rec.text(), "ended") {
		t.Errorf("got %+v and the output %q", e, rec.text())
	}
}

func (r *record) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

func TestABackgroundStepThatEndsEarlyFails(t *testing.T) {
	r, rec := newRunner(t)
	s := shell("gives up", "exit 0")
	s.Background = true
	if err := r.Run([]plan.Step{s}); err != nil {
		t.Fatal(err)
	}
	if err := <-r.Failed(); err == nil || err.Error() != `step "gives up" has ended too early` {
		t.Errorf("got error %v", err)
	}
	if err := r.End(); err == nil {
		t.Error("ending a plan whose background step had ended: got no error")
	}
	if e := rec.outcome(t, "gives up"); e.Outcome != plan.Failed {
		t.Errorf("got %+v, want it failed", e)
	}
}

func TestAStepAwaitsAnAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, rec := newRunner(t)
	s := shell("client", "true")
	s.Await = l.Addr().String()
	if err := r.Run([]plan.Step{s}); err != nil {
		t.Fatal(err)
	}
	if e := rec.outcome(t, "client"); e.Outcome != plan.Passed {
		t.Errorf("got %+v", e)
	}
}
