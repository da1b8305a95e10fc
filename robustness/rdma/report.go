package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"polder/robustness/rdma/plan"
	"polder/robustness/rdma/vm"
)

// table is what became of every suite.
type table struct{ rows []row }

type row struct {
	device, guest, suite, outcome string
	tests                         int
	took                          time.Duration
}

// add adds a row for every suite of a guest, and one more if the guest has
// failed although they have not.
func (t *table) add(s scenario, g guest, res vm.Result) {
	planned := g.killed && errors.Is(res.Err, vm.ErrKilled)
	blamed := false
	for _, rep := range res.Steps {
		r := row{s.device, g.name, rep.Step, rep.Outcome, rep.Tests, rep.Took}
		switch {
		case r.outcome == "" && planned:
			r.outcome, r.took = killedOnPurpose, res.Took
		case r.outcome == "":
			r.outcome = "did not end"
		}
		blamed = blamed || !r.passed()
		t.rows = append(t.rows, r)
	}
	if res.Err != nil && !planned && !blamed {
		t.rows = append(t.rows, row{s.device, g.name, "(the guest itself)", res.Err.Error(), 0, res.Took})
	}
}

// killedOnPurpose is the outcome of what ran in a guest that a test has killed.
const killedOnPurpose = "killed, as planned"

func (r row) passed() bool { return r.outcome == plan.Passed || r.outcome == killedOnPurpose }

func (t *table) failures() (n int) {
	for _, r := range t.rows {
		if !r.passed() {
			n++
		}
	}
	return n
}

func (t *table) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "device\tat\tsuite\toutcome\ttests\ttook")
	for _, r := range t.rows {
		tests := ""
		if r.tests > 0 {
			tests = fmt.Sprint(r.tests)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%.1f s\n", r.device, r.guest, r.suite, r.outcome, tests, r.took.Seconds())
	}
	return tw.Flush()
}
