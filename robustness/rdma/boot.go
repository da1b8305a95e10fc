package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"polder/robustness/rdma/plan"
	"polder/robustness/rdma/vm"
)

// boot runs the guests of a scenario to their end. When one of them fails, the
// others are killed: what they wait for will not come.
func (r *runner) boot(ctx context.Context, s scenario, guests []guest) ([]vm.Result, error) {
	var cable *vm.Cable
	if len(guests) > 1 {
		var err error
		if cable, err = vm.NewCable(); err != nil {
			return nil, err
		}
		defer cable.Close()
	}
	running := make([]*vm.Guest, len(guests))
	var ready sync.WaitGroup // until running is complete
	ready.Add(1)
	kill := func(i int) {
		ready.Wait()
		if running[i] != nil {
			running[i].Kill()
		}
	}
	var err error
	for i, g := range guests {
		cfg := r.config(s, guests, i)
		if cable != nil {
			cfg.Cable = cable.End(i)
		}
		cfg.Event = func(e plan.Event) {
			r.event(g.name, e)
			if e.Kind != plan.Asked {
				return
			}
			switch peer := 1 - i; {
			case cable == nil:
				r.say("guest %s has no peer to ask for: %v", g.name, e.Request)
			case slices.Equal(e.Request, []string{plan.CutWire}):
				cable.Cut()
			case slices.Equal(e.Request, []string{plan.MendWire}):
				cable.Mend()
			case slices.Equal(e.Request, []string{plan.KillPeer}):
				kill(peer)
			default:
				r.say("guest %s asks for what nobody can do: %q", g.name, e.Request)
			}
		}
		if running[i], err = vm.Start(ctx, cfg); err != nil {
			break
		}
	}
	ready.Done()
	results := make([]vm.Result, len(guests))
	var wait sync.WaitGroup
	for i, g := range running {
		if g == nil {
			continue
		}
		wait.Go(func() {
			results[i] = g.Wait()
			if e := results[i].Err; e != nil && !(guests[i].killed && errors.Is(e, vm.ErrKilled)) || err != nil {
				for j := range running {
					kill(j)
				}
			}
		})
	}
	if err != nil {
		for j := range running {
			kill(j)
		}
	}
	wait.Wait()
	if cable != nil {
		carried, lost := cable.Frames()
		r.say("scenario %s: the cable carried %d frames and lost %d", s.name, carried, lost)
	}
	return results, err
}

// config is that of the i-th guest of a scenario.
func (r *runner) config(s scenario, guests []guest, i int) vm.Config {
	g := guests[i]
	cfg := vm.Config{
		Name: g.name, Kernel: r.kernel, Init: r.init, MemoryMiB: g.mib, MAC: byte(i + 1), Timeout: s.timeout,
		Files: map[string]string{},
		Plan:  plan.Plan{Device: device, Address: g.address},
		Console: func(line string) {
			if r.verbose || !kernelNoise(line) {
				fmt.Printf("%-6s | %s\n", g.name, line)
			}
		},
	}
	env := testEnv(device, "/bin")
	if len(guests) > 1 {
		peer, _, _ := strings.Cut(guests[1-i].address, "/")
		env = append(env, "POLDER_RDMA_PEER="+peer)
		cfg.Plan.Serve = i == 0 && !guests[1].killed // whom nobody would release it for
		if i == 1 && !guests[0].killed {
			cfg.Plan.Release = peer
		}
	}
	for _, t := range g.suites {
		for _, p := range t.programs() {
			cfg.Files[p.path()] = r.built.file(p)
		}
		cfg.Plan.Steps = append(cfg.Plan.Steps, t.step(t.program.path(), env))
	}
	return cfg
}

// testEnv tells tests which device to use and where programs are. It is not for
// the program itself, which refuses variables of its name that it does not know.
func testEnv(device, bin string) []string {
	return []string{"POLDER_RDMA_DEVICE=" + device, "POLDER_RDMA_BIN=" + bin}
}

// device is the name of the guests' RDMA device.
const device = "rxe0"

// event shows what a guest reports.
func (r *runner) event(name string, e plan.Event) {
	switch e.Kind {
	case plan.Booted:
		r.say("guest %s is up", name)
	case plan.Started:
		r.say("guest %s: %s", name, e.Step)
	case plan.Ended:
		r.say("guest %s: %s %s after %.1fs %s", name, e.Step, e.Outcome, e.Took.Seconds(), e.Why)
	case plan.Asked:
		r.say("guest %s asks: %s", name, strings.Join(e.Request, " "))
	}
}

// kernelNoise says whether a line of the console is the kernel's about the
// emulated machine rather than about anything that is tested.
func kernelNoise(line string) bool {
	return strings.HasPrefix(line, "[") && strings.Contains(line, "MP-BIOS bug")
}
