package named_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"polder/far/named"
)

// sleeper is a process that does nothing.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return cmd
}

// TestWhoHasEndedIsKnownOnItsMachineAlone, and of nobody else.
func TestWhoHasEndedIsKnownOnItsMachineAlone(t *testing.T) {
	lives, zombie, gone := sleeper(t), sleeper(t), sleeper(t)
	id := func(cmd *exec.Cmd) string { return named.Identity(cmd.Process.Pid) }
	idZombie, idGone := id(zombie), id(gone)
	if err := zombie.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := gone.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = gone.Wait() // it was killed
	for end := time.Now().Add(10 * time.Second); !named.HasEnded(idZombie); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a process that was killed, and for which nobody has waited, has not ended")
		}
	}
	boot, rest, _ := strings.Cut(idGone, "/")
	namespace, rest, _ := strings.Cut(rest, "/")
	for _, c := range []struct {
		who, identity string
		want          bool
	}{
		{"this process", named.Identity(os.Getpid()), false},
		{"one that runs", id(lives), false},
		{"one that has ended", idGone, true},
		{"one whose PID another one has now", id(lives) + "0", true},
		{"one of another machine", strings.Repeat("0", len(boot)) + "/" + namespace + "/" + rest, false},
		{"one in another PID namespace", boot + "/pid:[1]/" + rest, false},
		{"one without an identity", "", false},
		{"nonsense", boot + "/" + namespace + "/-1/x", false},
	} {
		if got := named.HasEnded(c.identity); got != c.want {
			t.Errorf("%s (%q) has ended: %v, want %v", c.who, c.identity, got, c.want)
		}
	}
}

// TestAnOwnerThatIsKnownToBeDeadIsNotWaitedFor, neither by one that stands by nor by one that does not.
func TestAnOwnerThatIsKnownToBeDeadIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for _, standby := range []bool{false, true} {
		owner := sleeper(t)
		had := &named.Manifest{Epoch: 1, Owner: "10.0.0.1:6379", Process: named.Identity(owner.Process.Pid)}
		reg := &register{value: had.Encode(), version: 1}
		got := make(chan error, 1)
		var next *named.Owner
		go func() {
			var err error
			next, err = named.Own(t.Context(), reg, named.Config{Me: "next", Standby: standby, Patience: time.Hour})
			got <- err
		}()
		select {
		case err := <-got:
			t.Fatalf("an owner that lives was replaced: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		if err := owner.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-got:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("an owner that was killed has not been replaced")
		}
		b, _, _ := reg.Read(t.Context())
		if m, err := named.DecodeManifest(b); err != nil || m.Process != named.Identity(os.Getpid()) {
			t.Errorf("the manifest says that the owner is %q, %v, want this process", m.Process, err)
		}
		if err := next.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestAnOwnerIsAskedAboutWhenItHasMissedABeat, and not before.
func TestAnOwnerIsAskedAboutWhenItHasMissedABeat(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		p := w.start(t, named.Config{Me: "10.0.0.1:6379"})
		ctx, cancel := context.WithCancel(t.Context())
		asked := make(chan string, 100)
		next := make(chan *named.Owner, 1)
		cfg := named.Config{Me: "next", Standby: true, Gone: func(_ context.Context, owner string) bool {
			asked <- owner
			return true
		}}
		go func() {
			o, err := named.Own(ctx, w.reg, cfg)
			if err != nil {
				t.Error(err)
			}
			next <- o
		}()
		time.Sleep(20 * named.DefaultBeat)
		if len(asked) > 0 {
			t.Fatalf("%s was asked about, and it beats", <-asked)
		}
		p.wire.cut.Store(true)
		began := time.Now()
		o := <-next
		if took := time.Since(began); took > 2*named.DefaultBeat {
			t.Errorf("an owner that is known to be dead was waited for: %v", took)
		}
		if who := <-asked; who != "10.0.0.1:6379" {
			t.Errorf("asked about %s, want the owner", who)
		}
		p.wire.cut.Store(false)
		p.bury()
		cancel()
		if err := o.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
