//go:build systemd

package robustness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"polder/internal/proctest"
	"polder/internal/testaddr"
)

// boot makes the shell, which is alone in new namespaces, systemd with a file system
// of its own: /usr of this host, and what has been installed in $1. Its control groups
// are those below $2.
const boot = `set -e
mount --make-rprivate /
root=$1/.root; mkdir $root; mount -t tmpfs tmpfs $root -o mode=755; cd $root
mkdir usr etc run var tmp proc sys dev root home opt var/lib var/log var/tmp
for dir in bin sbin lib lib64; do ln -s usr/$dir $dir; done
mount --bind /usr usr; mount --bind $1/usr/local usr/local; mount -o remount,bind,ro usr
cp -r $1/etc/* etc; cp -r $1/opt/* opt
cp /etc/ld.so.cache /etc/nsswitch.conf etc
printf 'root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n' >etc/passwd
printf 'root:x:0:\nnogroup:x:65534:\n' >etc/group
echo '127.0.0.1 localhost' >etc/hosts
echo 0123456789abcdef0123456789abcdef >etc/machine-id
mount -t tmpfs tmpfs run -o mode=755
mount -t proc proc proc; mount -t sysfs sysfs sys -o ro; mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs dev -o mode=755
for node in null zero full random urandom tty; do touch dev/$node; mount --bind /dev/$node dev/$node; done
mkdir dev/shm dev/pts; mount -t tmpfs tmpfs dev/shm -o mode=1777
mount -t devpts devpts dev/pts -o newinstance,ptmxmode=0666,mode=620
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
pivot_root . tmp; cd /; umount -l /tmp; mount -t tmpfs tmpfs /tmp -o mode=1777
systemd-sysusers 2>/dev/null
exec env -i container=polder PATH=/usr/sbin:/usr/bin /usr/lib/systemd/systemd --system --log-target=null --show-status=no
`

// realSystemd is one that has started the units.
type realSystemd struct {
	t   *testing.T
	pid string
}

// bootSystemd installs everything, as make install does, and boots systemd with it.
func bootSystemd(t *testing.T, target string, files map[string]string) *realSystemd {
	t.Helper()
	dest := t.TempDir()
	files["etc/systemd/system/default.target"] = "[Unit]\nWants=" + target + "\n"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dest, ".bin")
	must(os.MkdirAll(filepath.Join(dest, "opt"), 0o755))
	must(os.Mkdir(bin, 0o755))
	for _, cmd := range [][]string{
		{"cp", proctest.Binary(), filepath.Join(bin, "polder")},
		{"make", "-C", "..", "install", "BIN=" + bin, "GO=true", "DESTDIR=" + dest},
		{"cp", "-r", "../clients/python/polder_share", filepath.Join(dest, "opt")},
	} {
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	for name, text := range files {
		path := filepath.Join(dest, name)
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.WriteFile(path, []byte(text), 0o644))
	}
	group := newGroup2(t)
	cmd := exec.Command("sh", "-c", `echo $$ >"$1/cgroup.procs" && exec unshare --pid --fork --kill-child --mount --net --uts --ipc --cgroup sh -c "$2" boot "$3"`, "sh", group, boot, dest)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	must(cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	m := &realSystemd{t: t}
	proctest.Until(t, "systemd is there", func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		m.pid = strings.TrimSpace(string(b))
		exe, _ := os.Readlink("/proc/" + m.pid + "/exe")
		return m.pid != "" && strings.HasSuffix(exe, "/systemd")
	})
	return m
}

// newGroup2 makes a control group of version 2 in which systemd may make others.
func newGroup2(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			dir, err := os.MkdirTemp(f[1], "polder-systemd-")
			if err != nil {
				t.Fatalf("cannot make a control group, which takes root: %v", err)
			}
			t.Cleanup(func() { // it is empty when the last process has gone
				proctest.Until(t, "the control group can be removed", func() bool {
					_ = exec.Command("find", dir, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
					_, err := os.Stat(dir)
					return err != nil
				})
			})
			return dir
		}
	}
	t.Fatal("no file system of control groups of version 2 is mounted")
	return ""
}

// run runs a command where systemd is, and returns what it prints.
func (m *realSystemd) run(args ...string) string {
	out, err := exec.Command("nsenter", append([]string{"-t", m.pid, "-a", "-r", "-w"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s(%v)", out, err)
	}
	return strings.TrimSpace(string(out))
}

// is waits until systemctl says so of a unit's property.
func (m *realSystemd) is(unit, property, want string) {
	m.t.Helper()
	got := ""
	defer func() {
		if m.t.Failed() {
			m.t.Logf("%s of %s is %s, want %s\n%s", property, unit, got, want, m.run("systemctl", "--no-pager", "status", unit))
		}
	}()
	proctest.Until(m.t, fmt.Sprintf("%s of %s is %s", property, unit, want), func() bool {
		got = m.run("systemctl", "show", "-P", property, unit)
		return got == want
	})
}

// TestSystemdRunsTheUnits, a real one: all daemons start, hardened as the units are,
// and say that they are ready; what is killed or hangs is started again; a socket
// starts its daemon; shared memory outlives a restart; and all ends well.
func TestSystemdRunsTheUnits(t *testing.T) {
	units := []string{"polder-node.service", "polder-serve.service", "polder-coordinator.service", "polder-share.service"}
	m := bootSystemd(t, strings.Join(append(units, "polder-node.socket", "polder-coordinator.socket", "polder-share.socket"), " "), map[string]string{
		"etc/polder/node.yaml":  "lend: 256MiB\n",
		"etc/polder/serve.yaml": "far: 127.0.0.1:7070\nlocal: 16MiB\nop-timeout: 20s\n",
		"etc/polder/share.yaml": "pool: [\"memfd:128MiB\"]\n",
		"etc/systemd/system/polder-coordinator.service.d/soon.conf": "[Service]\nWatchdogSec=5\n",
	})
	for _, u := range units {
		m.is(u, "ActiveState", "active")
	}
	set := func(when string) {
		t.Helper()
		proctest.Until(t, "a value can be stored "+when, func() bool { return m.run("redis-cli", "set", "k", when) == "OK" })
		if got := m.run("redis-cli", "get", "k"); got != when {
			t.Errorf("%s: got %q", when, got)
		}
	}
	set("at first")

	m.run("systemctl", "kill", "-s", "KILL", "polder-node.service")
	m.is("polder-node.service", "NRestarts", "1")
	m.is("polder-node.service", "ActiveState", "active")
	set("after the node was killed")

	if out := m.run("systemctl", "reload", "polder-serve.service"); out != "" {
		t.Errorf("reload: %s", out)
	}
	m.is("polder-serve.service", "ActiveState", "active")

	m.run("systemctl", "stop", "polder-node.service")
	m.is("polder-node.service", "ActiveState", "active") // since the server connects to its socket
	set("after the node's socket has started it")

	m.run("systemctl", "kill", "-s", "STOP", "polder-coordinator.service")
	m.is("polder-coordinator.service", "NRestarts", "1")
	m.is("polder-coordinator.service", "ActiveState", "active")

	python := func(do string) string {
		return m.run("env", "PYTHONPATH=/opt", "/usr/bin/python3", "-c", "import polder_share\nwith polder_share.Client('/run/polder/share.sock') as c:\n"+do)
	}
	if out := python("    p = c.alloc()\n    p.buffer[:5] = b'hello'\n    c.put('greeting', p, 5)"); out != "" {
		t.Errorf("cannot put: %s", out)
	}
	if out := m.run("systemctl", "restart", "polder-share.service"); out != "" {
		t.Errorf("restart: %s", out)
	}
	if out := python("    with c.get('greeting') as v: print(bytes(v.buffer))"); out != "b'hello'" {
		t.Errorf("after a restart: got %s", out)
	}

	m.run(append([]string{"systemctl", "stop", "polder-node.socket", "polder-serve.socket", "polder-coordinator.socket", "polder-share.socket"}, units...)...)
	for _, u := range units {
		m.is(u, "ActiveState", "inactive")
		m.is(u, "Result", "success")
	}
}

// TestTheImageRuns has no more than the image: the binary, as its user, in a file
// system that is empty and cannot be written to, as the manifests say.
func TestTheImageRuns(t *testing.T) {
	root, addr := t.TempDir(), testaddr.Host()+":6379"
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", `set -e
mount -t tmpfs tmpfs "$1"; cd "$1"; cp "$2" polder; mkdir proc; mount -t proc proc proc
mount -o remount,ro "$1"
chroot --userspec=65532:65532 . /polder up --listen "$3" --admin off --lend 64MiB
exit # the shell is process 1: when it is killed, so is all of this`, "sh", root, proctest.Binary(), addr)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	}()
	host, port, _ := strings.Cut(addr, ":")
	proctest.Until(t, "it answers", func() bool {
		out, _ := exec.Command("redis-cli", "-h", host, "-p", port, "ping").Output()
		return string(out) == "PONG\n"
	})
}
