package daemon

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// BecomeSwapServer makes this process one that the kernel's memory reclaim may wait for, because
// the process never waits for the reclaim:
//   - Allocations on its behalf start no I/O, and are not throttled by dirty pages that wait to
//     be written (PR_SET_IO_FLUSHER).
//   - All of its memory is resident, and memory that it maps later becomes resident at once. The
//     kernel does not kill it for want of memory.
//   - Its threads have a real-time class. The kernel lets such threads use a part of its reserve
//     of free memory that it refuses to others. Without that, when memory was short, a page that
//     the heap mapped for its index never came, and the whole server stopped.
//
// The first and the last are attributes of a thread, which the threads that it starts inherit.
// Threads that run already do not get them, so the program executes itself again.
//
// Preconditions: nothing has been opened or started that must survive the exec.
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

// noSwap is the error that this process cannot serve swap: what it cannot do, and the rights that this takes.
func noSwap(what, rights string, err error) error {
	if rights != "" {
		rights = ": it needs " + rights
	}
	return fmt.Errorf("cannot serve swap: cannot %s: %w%s", what, err, rights)
}
