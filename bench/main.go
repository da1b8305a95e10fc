// Command bench compares soft.Map with the caches that Go programs use, each
// in a process of its own with the same memory for keys and values. It measures
// throughput, hit ratio on Zipf and on a real trace, the time of single accesses,
// resident memory, and what the garbage collector costs; then hit ratio and
// throughput while the host's idle memory is halved and doubled.
//
// It is a module of its own so that its rivals' dependencies stay out of
// Polder's.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"

	"polder/measure/benchout"
)

func main() {
	asJSON := flag.Bool("json", false, "print one JSON object a line instead of a table")
	short := flag.Bool("short", false, "end within 45 seconds")
	one := flag.String("cache", "", "measure this one and print what was measured as JSON")
	flag.Parse()
	if err := run(*asJSON, *short, *one); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(asJSON, short bool, one string) error {
	if one != "" {
		list, err := measure(one, short)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(list)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	out := benchout.New(os.Stdout, asJSON)
	var ours []figure
	for i, name := range caches {
		args := []string{"-cache", name}
		if short {
			args = append(args, "-short")
		}
		cmd := exec.Command(self, args...)
		cmd.Stderr = os.Stderr
		b, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("cannot measure %s: %w", name, err)
		}
		var list []figure
		if err := json.Unmarshal(b, &list); err != nil {
			return fmt.Errorf("cannot measure %s: %w", name, err)
		}
		if i == 0 {
			ours = list
			for _, f := range list {
				if err := out.Print(f.row()); err != nil {
					return err
				}
			}
			continue
		}
		for j, f := range list {
			if j >= len(ours) || ours[j].Metric != f.Metric || ours[j].Case != f.Case {
				return fmt.Errorf("BUG: %s was measured otherwise than soft", name)
			}
			better := benchout.Higher
			if f.Lower {
				better = benchout.Lower
			}
			if err := out.Print(ours[j].row().Against(name, f.Value, better)); err != nil {
				return err
			}
		}
	}
	return nil
}
