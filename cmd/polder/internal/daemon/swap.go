package daemon

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// BecomeSwapServer makes this process one that the kernel's memory reclaim may wait for, because
// it does not wait for the reclaim, and returns when it is:
//   - Allocations on its behalf start no I/O, and are not throttled by what waits to be
//     written (PR_SET_IO_FLUSHER).
//   - All of its memory is resident, now and when it is mapped, and it is not killed for want
//     of memory.
//   - Its threads are of a real-time class. The kernel lets those have a part of its reserve of
//     free memory, which others are refused. Without, a page that the heap mapped for its index
//     while memory was short never came, and neither did anything else.
//
// The first and the last belong to a thread, and to those that it starts, which for threads
// that run already is too late: the program executes itself again.
//
// Preconditions: nothing has been opened or started that is to be there afterwards.
func BecomeSwapServer() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if on, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0); err != nil || on != 1 {
		if err := unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0); err != nil {
			return noSwap("have the kernel's reclaim leave this process alone (PR_SET_IO_FLUSHER, Linux 5.6)", "CAP_SYS_RESOURCE", err)
		}
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0); err != nil {
			return noSwap("be scheduled before others (SCHED_RR)", "CAP_SYS_NICE", err)
		}
		return noSwap("start anew", "", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE); err != nil {
		return noSwap("lock its memory", "CAP_IPC_LOCK, or no limit on locked memory (ulimit -l, LimitMEMLOCK=)", err)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		return noSwap("be spared when memory is short (oom_score_adj)", "CAP_SYS_RESOURCE", err)
	}
	return nil
}

// noSwap says what a process that is to serve swap cannot do, and what rights it would take.
func noSwap(what, rights string, err error) error {
	if rights != "" {
		rights = ": it needs " + rights
	}
	return fmt.Errorf("cannot serve swap: cannot %s: %w%s", what, err, rights)
}
