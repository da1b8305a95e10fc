package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"polder/robustness/rdma/plan"
	"polder/robustness/rdma/steps"
	"polder/robustness/rdma/vm"
)

// runOn runs the suites of one guest on a device of this host's, which is
// connected to itself. What a guest would be told by QEMU's exit code, the
// programs' own say here.
func (r *runner) runOn(ctx context.Context, device string) error {
	cache, err := vm.CacheDir()
	if err != nil {
		return err
	}
	if r.built, err = newBuilder(filepath.Join(cache, "bin-host"), sharedFlags()); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("cannot name this host: %w", err)
	}
	for _, s := range scenarios(device, r.managers, r.long) {
		if len(s.guests) > 1 {
			continue // two hosts are not for one program to start
		}
		s.device = device
		for _, g := range r.selected(s) {
			g.name = host
			if err := r.runHere(ctx, s, g, device); err != nil {
				return err
			}
		}
	}
	return r.finish(fmt.Sprintf("%s of %s", device, host))
}

// runHere runs the suites of a guest on this host.
func (r *runner) runHere(ctx context.Context, s scenario, g guest, device string) error {
	var list []plan.Step
	for _, t := range g.suites {
		for _, p := range t.programs() {
			if err := r.built.build(ctx, p); err != nil {
				return err
			}
		}
		list = append(list, t.step(r.built.file(t.program), testEnv(device, r.built.dir)))
	}
	dir, err := os.MkdirTemp("", "polder-rdma-")
	if err != nil {
		return fmt.Errorf("cannot run suites: %w", err)
	}
	defer os.RemoveAll(dir)
	var (
		mu  sync.Mutex
		res vm.Result
	)
	began := time.Now()
	run := &steps.Runner{
		Env: os.Environ(), Dir: dir, Output: os.Stdout,
		Report: func(e plan.Event) error {
			r.event(g.name, e)
			if e.Kind == plan.Ended {
				mu.Lock()
				res.Steps = append(res.Steps, vm.Report{Step: e.Step, Outcome: e.Outcome, Why: e.Why, Took: e.Took, Tests: e.Tests})
				mu.Unlock()
			}
			return nil
		},
	}
	runErr := run.Run(list)
	if err := run.End(); runErr == nil {
		runErr = err
	}
	res.Took = time.Since(began)
	if runErr != nil {
		r.say("%v", runErr)
	}
	r.table.add(s, g, res)
	return ctx.Err()
}
