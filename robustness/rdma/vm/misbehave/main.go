// Command misbehave is what the tests of vm run in a guest: it does what its
// argument says, and all but one of these things must make the guest fail.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"polder/robustness/rdma/plan"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: misbehave well|pass-nothing|fail|hang|deaf|panic|reboot|kill")
		os.Exit(2)
	}
	switch os.Args[1] {
	case "well":
		fmt.Println("--- PASS: TestWell (0.00s)\nPASS")
	case "pass-nothing":
		fmt.Println("testing: warning: no tests to run\nPASS")
	case "fail":
		fmt.Println("--- FAIL: TestFail (0.00s)\nFAIL")
		os.Exit(1)
	case "hang":
		forever()
	case "deaf":
		signal.Ignore(syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("these are the last words")
		forever()
	case "panic":
		must(os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
	case "reboot":
		must(syscall.Reboot(syscall.LINUX_REBOOT_CMD_RESTART))
	case "kill":
		must(plan.Ask(plan.KillPeer))
		forever()
	default:
		fmt.Fprintf(os.Stderr, "misbehave: cannot do %q\n", os.Args[1])
		os.Exit(2)
	}
}

// forever waits for a signal that ends the process. Go's runtime would notice a
// program that waits for nothing.
func forever() {
	for {
		_ = syscall.Pause()
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
