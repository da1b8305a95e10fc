package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"polder/robustness/rdma/plan"
	"polder/robustness/rdma/vm"
)

func TestEveryScenarioCanBeCarriedOut(t *testing.T) {
	r := &runner{only: regexp.MustCompile(""), built: &builder{dir: "bin"}}
	for _, long := range []bool{false, true} {
		for _, s := range scenarios(device, all, long) {
			guests := r.selected(s)
			for i := range guests {
				cfg := r.config(s, guests, i)
				if err := cfg.Plan.Check(); err != nil {
					t.Errorf("scenario %s, guest %s: %v", s.name, cfg.Name, err)
				}
				for _, step := range cfg.Plan.Steps {
					if cfg.Files[step.Args[0]] == "" {
						t.Errorf("scenario %s, step %q: its program %s is not in the guest", s.name, step.Name, step.Args[0])
					}
					if step.Timeout >= s.timeout && !step.Background {
						t.Errorf("scenario %s, step %q: its time-out of %v is not below its guest's %v", s.name, step.Name, step.Timeout, s.timeout)
					}
				}
			}
		}
	}
}

func TestASelectionKeepsWhatRunsInTheBackground(t *testing.T) {
	for _, test := range []struct {
		only   string
		suites []string // of the node and the client
	}{
		{"two-guests/the main job", []string{"polder node", "the main job"}},
		{"two-guests/nothing of this name", nil},
	} {
		r := &runner{only: regexp.MustCompile(test.only)}
		var got []string
		for _, g := range r.selected(scenarios(device, usual, false)[1]) {
			for _, s := range g.suites {
				got = append(got, s.name)
			}
		}
		if strings.Join(got, ",") != strings.Join(test.suites, ",") {
			t.Errorf("-only %q selects %q, want %q", test.only, got, test.suites)
		}
	}
}

func TestWhatHasNotPassedIsCounted(t *testing.T) {
	var tab table
	s := scenario{device: "a device"}
	tab.add(s, guest{name: "alone"}, vm.Result{Steps: []vm.Report{
		{Step: "good", Outcome: plan.Passed, Tests: 3, Took: time.Second},
		{Step: "bad", Outcome: plan.Failed},
		{Step: "stuck", Outcome: plan.Hung},
		{Step: "silent"},
	}})
	tab.add(s, guest{name: "victim", killed: true}, vm.Result{Err: vm.ErrKilled, Steps: []vm.Report{
		{Step: "killed"},
		{Step: "failed before", Outcome: plan.Failed},
	}})
	tab.add(s, guest{name: "liar"}, vm.Result{Err: vm.ErrPanicked, Steps: []vm.Report{{Step: "fine", Outcome: plan.Passed}}})
	tab.add(s, guest{name: "dead", killed: true}, vm.Result{Err: vm.ErrPanicked, Steps: []vm.Report{{Step: "unended"}}})
	if n := tab.failures(); n != 6 {
		t.Errorf("counted %d failures, want 6", n)
	}
	var b bytes.Buffer
	if err := tab.print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"good                passed                              3      1.0 s", "silent              did not end", "killed              killed, as planned", "the guest panicked or reset itself"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}
