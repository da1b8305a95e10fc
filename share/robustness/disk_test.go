package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/share"
)

// smallDisk runs a daemon whose state lies on a file system of 256 KiB, of which
// a filler has 96, in a mount namespace that ends with it; where that takes a
// privilege, in a user namespace, too. SIGUSR1 takes the filler away.
func smallDisk(t *testing.T) (dir string, d *actor) {
	t.Helper()
	dir = t.TempDir()
	cmd := self(t, "daemon", dir, "", envPool+"=memfd:1MiB", envTmpfs+"=256k")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return dir, start(t, cmd)
}

// TestTheLogOfDeadRecordsNeverFillsTheDisk puts and deletes many times what the
// disk could hold. A request may be refused for the moments that a checkpoint
// takes.
func TestTheLogOfDeadRecordsNeverFillsTheDisk(t *testing.T) {
	dir, _ := smallDisk(t)
	c := open(t, dir)
	put(t, c, "kept", "value")
	for i := range 3000 { // each takes more than 1 KiB of the log
		until(t, fmt.Sprintf("round %d is logged", i), func() bool {
			err := putAndDelete(c)
			if err != nil && !errors.Is(err, share.ErrNoLog) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	wantValue(t, c, "kept", "value")
}

// putAndDelete makes a put and a delete that leave nothing but records.
func putAndDelete(c *share.Client) error {
	ctx := context.Background()
	key := fmt.Sprintf("k%0500d", rand.Int()) // another one each time: a delete may be refused
	p, err := c.Alloc(ctx)
	if err != nil {
		return err
	}
	if _, err := c.Put(ctx, key, p, 1); err != nil {
		return errors.Join(err, p.Free())
	}
	return c.Delete(ctx, key)
}

// TestFullDiskIsToldAndHealed has what is alive outgrow the disk: what changes
// anything is refused, checkpoints fail again and again, and nobody who only
// reads notices; once there is room, everything goes on by itself.
func TestFullDiskIsToldAndHealed(t *testing.T) {
	for range 10 {
		if fullDiskIsToldAndHealed(t) {
			return
		}
	}
	t.Error("no checkpoint was tried while the disk was full, ten times")
}

// fullDiskIsToldAndHealed reports whether a checkpoint was tried when the disk was full: none is if the last one was saved just before, since it
// would free next to nothing.
func fullDiskIsToldAndHealed(t *testing.T) bool {
	dir, d := smallDisk(t)
	c := open(t, dir)
	var keys []string
	for i := range 16 {
		keys = append(keys, fmt.Sprint(strings.Repeat("kept", 120), i))
		put(t, c, keys[i], "value")
	}
	long := keys[0]
	pins, pinner := 0, c
	fill := func() {
		t.Helper()
		var err error
		for err == nil {
			if pins++; pins%len(keys) == 0 { // what one client pins twice takes no more room
				pinner = open(t, dir)
			}
			if err = pinner.Pin(t.Context(), keys[pins%len(keys)]); err == nil {
				err = putAndDelete(c)
			}
		}
		if !errors.Is(err, share.ErrNoLog) || !strings.Contains(err.Error(), "no space left") {
			t.Fatalf("a full disk: got %v, want %v, and why", err, share.ErrNoLog)
		}
	}
	fill()
	wantValue(t, c, long, "value")
	wantValue(t, open(t, dir), long, "value")
	before, full, due := stats(t, c), time.Now(), true
	until(t, "checkpoints fail again, and the statistics say that the log has no room", func() bool {
		if found, err := c.Exists(t.Context(), long); err != nil || !found {
			t.Fatalf("while checkpoints fail: found %v, %v", found, err)
		}
		now := stats(t, c)
		if !now.LogFull {
			fill() // a checkpoint that was being taken has made room
			full = time.Now()
		}
		due = time.Since(full) < 5*time.Second
		return !due || now.LogFull && now.FailedCheckpoints > before.FailedCheckpoints
	})
	if !due {
		return false
	}
	told, err := os.ReadFile(filepath.Join(dir, toldName))
	if err != nil {
		t.Fatal(err)
	}
	for what, over := range map[string]string{
		"the log has no room":            "the log has room again",
		"it is tried again, with pauses": "checkpoints can be saved again",
	} {
		if n := strings.Count(string(told), what) - strings.Count(string(told), over); n != 1 {
			t.Errorf("%q is told %d times more than its end, want once:\n%s", what, n, told)
		}
	}
	if err := d.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	until(t, "there is room again", func() bool {
		err := putAndDelete(c)
		if err != nil && !errors.Is(err, share.ErrNoLog) && !errors.Is(err, share.ErrFull) {
			t.Fatal(err)
		}
		return err == nil
	})
	until(t, "it is told", func() bool {
		told, err := os.ReadFile(filepath.Join(dir, toldName))
		return err == nil && strings.Contains(string(told), "the log has room again") && !stats(t, c).LogFull
	})
	wantValue(t, c, long, "value")
	t.Logf("the disk was full after %d pins; nothing acknowledged was lost, and it healed", pins)
	return true
}

// TestDaemonKilledDuringACheckpoint changes keys while a checkpoint is taken off
// the lock, kills the daemon at every step of that, and compares what is there
// after the restart with what was acknowledged.
func TestDaemonKilledDuringACheckpoint(t *testing.T) {
	steps := []string{"daemon.snapshot-paused\t1", "daemon.snapshot-paused\t3", "daemon.snapshot-paused\t9", "wal.checkpoint-begun\t2",
		"wal.checkpoint-written\t1", "wal.checkpoint-named\t1", "wal.segment-dropped\t1", "wal.checkpoint-written\t3"}
	for _, step := range steps {
		t.Run(strings.ReplaceAll(step, "\t", "@"), func(t *testing.T) {
			fail := filepath.Join(t.TempDir(), "fail")
			if err := os.WriteFile(fail, []byte(step), 0o600); err != nil {
				t.Fatal(err)
			}
			dir, _ := keep(t, "memfd:4MiB", "", envFail+"="+fail)
			cfg := config(dir)
			cfg.PageSize, cfg.RegionSize = 4<<10, 1<<20
			open(t, dir) // it answers
			c, err := share.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			want := map[string]string{}
			change := func() {
				key := fmt.Sprint("k", rand.IntN(800))
				if _, there := want[key]; there && rand.IntN(2) > 0 {
					if err := c.Delete(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					delete(want, key)
				} else if !there {
					value := fmt.Sprint(key, rand.Int())
					put(t, c, key, value)
					want[key] = value
				}
			}
			for len(want) < 400 {
				change()
			}
			until(t, "the daemon is killed", func() bool {
				for range 20 {
					change()
				}
				_, err := os.Stat(fail + killed)
				return err == nil
			})
			other := open(t, dir) // it is back
			got := 0
			for k, err := range other.Keys(t.Context(), "") {
				if err != nil {
					t.Fatal(err)
				}
				if _, there := want[k.Key]; !there {
					t.Errorf("%s is there again, although its deletion was acknowledged", k.Key)
				}
				got++
			}
			if got != len(want) {
				t.Errorf("%d keys are there, want %d", got, len(want))
			}
			for key, value := range want {
				wantValue(t, other, key, value)
			}
		})
	}
}
