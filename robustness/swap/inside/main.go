// Command inside is what the tests of package swap run in a guest.
//
//	inside disk NODE            a file system on the kernel's device: mkfs, a soak, fsck
//	inside pressure NODE RUNS SECONDS
//	                            swaps under pressure, RUNS times, of which none begins after so many SECONDS
//	inside lose NODES           has a node killed, of those that have copies, meanwhile
//	inside kill NODE            kills the server meanwhile
//	inside pages MIB ROUNDS     uses MIB of memory whose pages say what they are
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"polder/robustness/rdma/plan"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if said, _ := os.ReadFile("/run/polder/swap/nbd0.log"); len(said) > 0 {
			fmt.Printf("the server's log:\n%s", said)
		}
		fmt.Println("inside:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("expected what to do, not %q", args)
	}
	n := 0
	if len(args) > 2 {
		var err error
		if n, err = strconv.Atoi(args[2]); err != nil {
			return err
		}
	}
	switch args[0] {
	case "pages":
		mib, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return pages(mib, n)
	case "disk":
		return disk(args[1])
	case "pressure":
		if len(args) < 4 {
			return errors.New("pressure: for how many seconds?")
		}
		seconds, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		begun := time.Now()
		for i := range n {
			began := time.Now()
			if i > 0 && began.Sub(begun) > time.Duration(seconds)*time.Second {
				fmt.Printf("%d runs of %d went through within %d s\n", i, n, seconds)
				break
			}
			if err := pressure(args[1], i == 0); err != nil {
				return fmt.Errorf("run %d: %w", i+1, err)
			}
			fmt.Printf("run %d of %d under pressure: nothing wrong, nothing hung, %.1f s\n", i+1, n, time.Since(began).Seconds())
		}
		return nil
	case "lose":
		return lose(args[1])
	case "kill":
		return kill(args[1])
	}
	return fmt.Errorf("there is no %q", args[0])
}

// sh runs a command, whose output is shown, and returned.
func sh(args ...string) (string, error) {
	fmt.Println("$", strings.Join(args, " "))
	began := time.Now()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	fmt.Printf("%safter %.1f s\n", out, time.Since(began).Seconds())
	return string(out), nil
}

// patience is for a guest that is emulated, and a host that may be busy.
const patience = "1m"

// reserve is how many KiB the kernel keeps free, of which the server may use a part. With what
// it keeps by itself, some 2 MiB of 512, the guest hangs.
const reserve = "65536"

// swapOn swaps to memory of nodes, for whose answers it waits so long, and for the second copy, too,
// and returns the server's process.
func swapOn(nodes, patience string) (server int, err error) {
	if err := os.WriteFile("/proc/sys/vm/min_free_kbytes", []byte(reserve), 0); err != nil {
		return 0, err
	}
	if _, err := sh("/bin/polder", "swap", "on", "--far", nodes, "--size", "2GiB", "--local", "16MiB", "--op-timeout", patience, "--copy-late", patience, "--insecure"); err != nil {
		return 0, err
	}
	out, err := sh("/bin/polder", "swap", "status")
	if err != nil {
		return 0, err
	}
	_, pid, _ := strings.Cut(out, "process ")
	return strconv.Atoi(strings.TrimSpace(pid))
}

func swapOff() error {
	if _, err := sh("/bin/polder", "swap", "off"); err != nil {
		return err
	}
	b, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return err
	}
	left, err := filepath.Glob("/run/polder/swap/*")
	if strings.Count(string(b), "\n") != 1 || len(left) > 0 || exists("/sys/block/nbd0/pid") {
		err = fmt.Errorf("after swap off there are %q, %v, and the device's pid: %v", b, left, exists("/sys/block/nbd0/pid"))
	}
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// tooMuch is how many MiB are more than there is memory for.
func tooMuch() (mib int, err error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), "MemAvailable:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	return kib>>10 + 96, err
}

// use is a program that uses more memory than there is.
type use struct {
	cmd  *exec.Cmd
	out  *bufio.Reader
	said []string
}

// begin starts it, in a control group of its own, which has so many MiB; or all that there are if it is 0.
func begin(mib, rounds, limit int) (*use, error) {
	u := &use{cmd: exec.Command("/proc/self/exe", "pages", strconv.Itoa(mib), strconv.Itoa(rounds))}
	group := "/sys/fs/cgroup/use"
	if err := os.MkdirAll(group, 0o755); err != nil {
		return nil, err
	}
	most := "max"
	if limit > 0 {
		most = strconv.Itoa(limit << 20)
	}
	if err := os.WriteFile(group+"/memory.max", []byte(most), 0); err != nil {
		return nil, err
	}
	fd, err := os.Open(group)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	u.cmd.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	u.cmd.Stderr = os.Stdout
	out, err := u.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	u.out = bufio.NewReader(out)
	return u, u.cmd.Start()
}

// until waits until it says a line that begins so; "" for its end.
func (u *use) until(what string) error {
	for {
		line, err := u.out.ReadString('\n')
		if line != "" {
			fmt.Print(line)
			u.said = append(u.said, line)
		}
		if err == io.EOF && what == "" {
			return u.cmd.Wait()
		}
		if err != nil {
			return errors.Join(fmt.Errorf("it ended before it said %q", what), u.cmd.Wait())
		}
		if what != "" && strings.HasPrefix(line, what) {
			return nil
		}
	}
}

// pressure uses more memory than there is, and swaps.
func pressure(node string, first bool) error {
	server, err := swapOn(node, patience)
	if err != nil {
		return err
	}
	if first {
		if err := privileged(server); err != nil {
			return err
		}
	}
	mib, err := tooMuch()
	if err != nil {
		return err
	}
	u, err := begin(mib, 2, 0)
	if err != nil {
		return err
	}
	if err := u.until("filled"); err != nil {
		return err
	}
	if _, err := sh("/bin/polder", "swap", "status"); err != nil {
		return err
	}
	if err := resident(server); err != nil {
		return err
	}
	if err := u.until(""); err != nil {
		return err
	}
	return swapOff()
}

// privileged finds what is not as it has to be of a process that serves swap.
func privileged(pid int) error {
	dir := fmt.Sprintf("/proc/%d", pid)
	b, err := os.ReadFile(dir + "/oom_score_adj")
	if err != nil {
		return err
	}
	if string(b) != "-1000\n" {
		return fmt.Errorf("the server's oom_score_adj is %q, want -1000", b)
	}
	threads, err := filepath.Glob(dir + "/task/*/stat")
	if err != nil {
		return err
	}
	if len(threads) == 0 {
		return errors.New("the server has no threads")
	}
	for _, t := range threads {
		b, err := os.ReadFile(t)
		if err != nil {
			return err
		}
		_, after, _ := strings.Cut(string(b), ") ")
		flags, err := strconv.ParseUint(strings.Fields(after)[6], 10, 64)
		const flusher = 0x00080000 | 0x00100000 // PF_MEMALLOC_NOIO, PF_LOCAL_THROTTLE
		if err != nil || flags&flusher != flusher {
			return fmt.Errorf("a thread of the server has flags %#x, %v, want %#x among them", flags, err, flusher)
		}
		if policy := strings.Fields(after)[38]; policy != strconv.Itoa(unix.SCHED_RR) {
			return fmt.Errorf("a thread of the server is scheduled by policy %s, want %d", policy, unix.SCHED_RR)
		}
	}
	fmt.Printf("the server's %d threads are I/O flushers, and of a real-time class\n", len(threads))
	return nil
}

// resident shows the server's memory, none of which may be swapped out.
func resident(pid int) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		switch f := strings.Fields(line); f[0] {
		case "VmRSS:", "VmLck:":
			fmt.Print("the server's ", line)
		case "VmSwap:":
			if f[1] != "0" {
				return fmt.Errorf("%s kB of the server are swapped out", f[1])
			}
		}
	}
	return nil
}

// lose has the host kill a node while there is pressure.
func lose(nodes string) error {
	if _, err := swapOn(nodes, patience); err != nil {
		return err
	}
	mib, err := tooMuch()
	if err != nil {
		return err
	}
	u, err := begin(mib, 2, 0)
	if err != nil {
		return err
	}
	if err := u.until("filled"); err != nil {
		return err
	}
	if err := plan.Ask(plan.KillPeer); err != nil {
		return err
	}
	if err := u.until(""); err != nil {
		return err
	}
	return swapOff()
}

// kill kills the server while a program, which alone swaps, uses its memory.
func kill(node string) error {
	// Who goes on is not swapped out.
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE); err != nil {
		return err
	}
	server, err := swapOn(node, "10s")
	if err != nil {
		return err
	}
	u, err := begin(96, 1000, 48)
	if err != nil {
		return err
	}
	if err := u.until("round"); err != nil {
		return err
	}
	if err := unix.Kill(server, unix.SIGKILL); err != nil {
		return err
	}
	if err := u.until("lost"); err != nil {
		return err
	}
	if err := u.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = u.until("") // it was killed
	if _, err := sh("/bin/polder", "swap", "status"); err != nil {
		return err
	}
	if err := swapOff(); err != nil {
		return err
	}
	// Everything is as before.
	if _, err := swapOn(node, "10s"); err != nil {
		return err
	}
	return swapOff()
}
