// Command rdma runs Polder's programs over real RDMA on a machine that has no
// RDMA device: in virtual machines with Debian's kernel, whose Soft-RoCE
// (rdma_rxe) implements verbs with memory windows of types 1 and 2B. "make
// test-rdma" runs it; docs/rdma.md says what was tested on which device.
//
// It fetches the kernel through apt, builds the test binaries with the build
// tag ibverbs, boots one guest (two queue pairs over lo) and then two (a memory
// node and its client on a virtual wire), shows what the tests say, and prints
// a table of what passed where. It exits with 0 only if every suite has.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"polder/robustness/rdma/vm"
)

func main() {
	var (
		only     = flag.String("only", "", "run the scenarios and suites whose names match this regular expression")
		kernel   = flag.String("kernel", "", "take the kernel from this file, a linux-image package of Debian's")
		managers = flag.String("managers", "", "ways of managing memory to run the pool's suite with, with commas between (default rpcmw, or all with -long)")
		dev      = flag.String("device", "", "run on this host's own RDMA `device`, such as mlx5_0, instead of in guests")
		long     = flag.Bool("long", false, "run the pool's suite, and the attacks, with every way of managing memory that the device can do")
		limit    = flag.Duration("timeout", 30*time.Minute, "fail when everything together takes longer")
		verbose  = flag.Bool("v", false, "show the guests' kernel messages too")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	pattern, err := regexp.Compile(*only)
	if err == nil {
		r := runner{only: pattern, verbose: *verbose, long: *long, managers: usual, began: time.Now()}
		switch {
		case *managers != "":
			r.managers = strings.Split(*managers, ",")
		case *long:
			r.managers = all
		}
		if *dev != "" {
			err = r.runOn(ctx, *dev)
		} else {
			err = r.run(ctx, *kernel)
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "rdma: %v\n", err)
		os.Exit(1)
	}
}

// runner runs scenarios, one after another.
type runner struct {
	only     *regexp.Regexp
	verbose  bool
	long     bool
	managers []string
	began    time.Time

	kernel *vm.Kernel
	init   string // guestinit
	built  *builder
	table  table
}

func (r *runner) say(format string, args ...any) {
	fmt.Printf("[%5.1fs] %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

func (r *runner) run(ctx context.Context, pkg string) error {
	cache, err := vm.CacheDir()
	if err != nil {
		return err
	}
	r.kernel, err = vm.OpenKernel(ctx, filepath.Join(cache, "kernel"), pkg, vm.GuestModules, func(s string) { r.say("%s", s) })
	if err != nil {
		return err
	}
	r.say("kernel %s", r.kernel.Name())
	if r.init, err = vm.BuildInit(ctx, cache); err != nil {
		return err
	}
	static, err := staticFlags()
	if err != nil {
		return err
	}
	if r.built, err = newBuilder(filepath.Join(cache, "bin"), static); err != nil {
		return err
	}
	for _, s := range scenarios(device, r.managers, r.long) {
		if err := r.scenario(ctx, s); err != nil {
			return err
		}
	}
	return r.finish(fmt.Sprintf("Soft-RoCE (rdma_rxe) of %s, in QEMU without KVM", r.kernel.Name()))
}

// finish prints the table, and returns an error unless every suite has passed.
func (r *runner) finish(title string) error {
	if len(r.table.rows) == 0 {
		return fmt.Errorf("no scenario or suite matches %q", r.only)
	}
	fmt.Printf("\n%s\n\n", title)
	if err := r.table.print(os.Stdout); err != nil {
		return err
	}
	fmt.Println()
	if n := r.table.failures(); n > 0 {
		return fmt.Errorf("%d of %d suites have not passed", n, len(r.table.rows))
	}
	r.say("%d suites have passed", len(r.table.rows))
	return nil
}

// selected returns the guests of a scenario with the suites that are to run,
// or none if no suite of the scenario's is. What runs in the background is
// part of every run.
func (r *runner) selected(s scenario) []guest {
	var out []guest
	found := false
	for _, g := range s.guests {
		var suites []suite
		for _, t := range g.suites {
			match := r.only.MatchString(s.name + "/" + t.name)
			if match || t.background {
				suites = append(suites, t)
			}
			found = found || match
		}
		g.suites = suites
		out = append(out, g)
	}
	if !found {
		return nil
	}
	return out
}

// scenario boots the guests of a scenario and adds what became of their suites
// to the table. Its error is one that keeps the next scenario from running.
func (r *runner) scenario(ctx context.Context, s scenario) error {
	guests := r.selected(s)
	if len(guests) == 0 {
		return nil
	}
	r.say("scenario %s: building what it runs", s.name)
	for _, g := range guests {
		for _, t := range g.suites {
			for _, p := range t.programs() {
				if err := r.built.build(ctx, p); err != nil {
					return err
				}
			}
		}
	}
	r.say("scenario %s: booting %d guest(s)", s.name, len(guests))
	results, err := r.boot(ctx, s, guests)
	if err != nil {
		return err
	}
	for i, res := range results {
		r.table.add(s, guests[i], res)
		if res.Err != nil && !(guests[i].killed && errors.Is(res.Err, vm.ErrKilled)) {
			r.say("scenario %s: guest %s: %v", s.name, res.Name, res.Err)
			fmt.Printf("the last lines of guest %s:\n", res.Name)
			for _, line := range res.Tail {
				fmt.Printf("\t%s\n", line)
			}
		}
	}
	return ctx.Err()
}
