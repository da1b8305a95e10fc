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
// Who shares machine and namespace with it can ask the kernel whether it has ended. Nobody else can, and waits.

// here is what the identities of all processes of this machine and PID namespace begin with, "" if that cannot be
// found out.
var here = sync.OnceValue(func() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	// The numbers in /proc are those of kill(2) only if it was mounted in this namespace.
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return ""
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s/%s/", strings.TrimSpace(string(boot)), namespace)
})

// identity returns the identity of a process of this machine, "" if it cannot be found out.
func identity(pid int) string {
	_, began, err := processState(pid)
	if err != nil || here() == "" {
		return ""
	}
	return fmt.Sprintf("%s%d/%s", here(), pid, began)
}

// isHere reports whether this process can find out whether the process with that identity has ended.
func isHere(identity string) bool { return here() != "" && strings.HasPrefix(identity, here()) }

// hasEnded reports whether the process with an identity has ended, as far as this process can find out.
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
	return err == nil && (now != began || state == "Z" || state == "X") // else /proc may hide it (hidepid)
}

// processState returns the state of a process, and when it was started, from /proc.
func processState(pid int) (state, began string, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", "", err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // the name before it may be anything
	if len(fields) < 20 {
		return "", "", fmt.Errorf("/proc/%d/stat has %d fields behind the name, want 20", pid, len(fields))
	}
	return string(fields[0]), string(fields[19]), nil
}
