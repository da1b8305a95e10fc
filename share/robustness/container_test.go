package robustness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"polder/share"
)

// contain makes a command run as in a container: in namespaces of its own of
// pids, mounts and System V IPC, with nothing at /dev/shm. Of the host's files
// it needs the directory of the socket.
func contain(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = append(cmd.Env, envContained+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// beContained finishes what contain began, in the process itself.
func beContained() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	if _, err := os.Stat("/dev/shm"); err == nil {
		if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_RDONLY, "size=4k"); err != nil {
			return fmt.Errorf("cannot hide /dev/shm: %w", err)
		}
	}
	return nil
}

// TestContainersShareASocketAndNothingElse runs a daemon with its keeper in one
// container and clients in two others, whose pids mean nothing to it. A client
// that dies is reaped; one that is stopped is not, over a restart neither, and is
// fenced in the end; and it never sees other bytes than its keys'.
func TestContainersShareASocketAndNothingElse(t *testing.T) {
	dir := t.TempDir() // the volume
	k := start(t, contain(self(t, "keeper", dir, "", envPool+"=memfd:512KiB", envSettle+"=2s")))
	if _, err := k.out.ReadString('\n'); err != nil {
		t.Fatalf("the keeper has started no daemon: %v", err)
	}
	c := open(t, dir) // by the host
	put(t, c, "a", "value of a")
	writer := start(t, contain(self(t, "writer", dir, "w")))
	viewer := start(t, contain(self(t, "viewer", dir, "a w")))
	for what, a := range map[string]*actor{"writer": writer, "viewer": viewer} {
		if !a.ready() {
			if what == "viewer" { // w may not have been there yet
				viewer = start(t, contain(self(t, "viewer", dir, "a w")))
				if viewer.ready() {
					continue
				}
			}
			t.Fatalf("the %s in a container has failed", what)
		}
	}
	sessions := stats(t, c).Sessions
	if sessions != 3 {
		t.Fatalf("%d clients, want 3", sessions)
	}
	wantValue(t, c, "w", "value of w")
	writer.kill() // with its container
	until(t, "the dead client of a container is reaped", func() bool { return stats(t, c).Sessions == 2 })
	stop(t, viewer.cmd.Process)

	restart(t, k)
	until(t, "the stopped client is awaited", func() bool { return stats(t, c).Settling == 1 })
	if err := c.Delete(t.Context(), "a"); !errors.Is(err, share.ErrPinned) {
		t.Errorf("a key that the stopped client has pinned: got %v, want %v", err, share.ErrPinned)
	}
	until(t, "the stopped client is fenced", func() bool { return stats(t, c).Settling == 0 })
	if err := c.Delete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	churn(t, c)
	if err := viewer.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	viewer.tell(t, "look")
	churn(t, c)
	viewer.tell(t, "look")
}

// restart kills the daemon that the keeper k runs.
func restart(t *testing.T, k *actor) {
	t.Helper()
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", k.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, path := range children {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(string(data), &pid); err == nil {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			killed++
		}
	}
	if killed != 1 {
		t.Fatalf("the keeper had %d daemons, want 1", killed)
	}
}
