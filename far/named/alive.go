package named

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// An owner's identity tells its process from all others that run on its machine, now or later:
//
//	boot ID / inode of its PID namespace / PID / when it was started, in ticks since the boot
//
// A process on the same machine and in the same namespace can ask the kernel whether the owner has ended. Others
// cannot, and wait.

// here is the prefix of all identities of this machine and PID namespace, "" if it cannot be determined.
var here = sync.OnceValue(func() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	// The PIDs in /proc are those of kill(2) only if /proc was mounted in this namespace.
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return ""
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s/%s/", strings.TrimSpace(string(boot)), namespace)
})

// identity is the identity of a process of this machine, "" if it cannot be determined.
func identity(pid int) string {
	_, began, err := processState(pid)
	if err != nil || here() == "" {
		return ""
	}
	return fmt.Sprintf("%s%d/%s", here(), pid, began)
}

// isHere reports whether this process can find out whether the process with this identity has ended.
func isHere(identity string) bool { return here() != "" && strings.HasPrefix(identity, here()) }

// hasEnded reports whether the process with this identity has ended. It is false if that cannot be known.
func hasEnded(identity string) bool {
	if !isHere(identity) {
		return false
	}
	number, began, _ := strings.Cut(identity[len(here()):], "/")
	pid, err := strconv.Atoi(number)
	if err != nil || pid <= 0 {
		return false
	}
	if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return true
	}
	state, now, err := processState(pid)
	return err == nil && (now != began || state == "Z" || state == "X") // an error may be due to hidepid
}

// processState returns a process's state and start time, as /proc shows them.
func processState(pid int) (state, began string, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", "", err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // the name before that may contain anything
	if len(fields) < 20 {
		return "", "", fmt.Errorf("/proc/%d/stat has %d fields behind the name, want 20", pid, len(fields))
	}
	return string(fields[0]), string(fields[19]), nil
}
