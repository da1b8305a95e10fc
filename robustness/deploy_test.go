package robustness

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"polder/internal/proctest"
)

// exposure is the most that "systemd-analyze security" may say of a unit, in tenths.
const exposure = "20"

// flagsAreTaken checks that the binary has the command with all of these flags,
// and that it takes their values.
func flagsAreTaken(t *testing.T, what string, args []string) {
	t.Helper()
	var given []string
	for _, a := range args[1:] {
		if !strings.HasPrefix(a, "--config") && !strings.HasPrefix(a, "/etc/polder/") {
			given = append(given, a)
		}
	}
	cmd := exec.Command(proctest.Binary(), slices.Concat([]string{"config", args[0], "--check"}, given)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s runs polder %q: %v\n%s", what, args, err, out)
	}
}

func TestUnitsStartWhatThereIsAndAreHardened(t *testing.T) {
	units, err := filepath.Glob("../deploy/systemd/*.service")
	if err != nil || len(units) < 4 {
		t.Fatalf("there are units %v, %v", units, err)
	}
	analyze, missing := exec.LookPath("systemd-analyze")
	for _, unit := range units {
		b, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		start := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/polder (.*)$`).FindStringSubmatch(string(b))
		if start == nil {
			t.Errorf("%s does not start polder", unit)
			continue
		}
		args := strings.Fields(start[1])
		flagsAreTaken(t, unit, args)
		file := regexp.MustCompile(`--config /etc/polder/(\S+)`).FindStringSubmatch(start[1])
		if file == nil || !strings.Contains(unit, strings.TrimSuffix(file[1], ".yaml")) {
			t.Errorf("%s has no configuration file of its name", unit)
		} else if _, err := os.Stat("../deploy/config/" + file[1]); err != nil {
			t.Error(err)
		}
		if missing != nil {
			t.Logf("systemd-analyze is not installed: how %s is hardened has not been looked at", unit)
			continue
		}
		if out, err := exec.Command(analyze, "security", "--offline=yes", "--no-pager", "--threshold="+exposure, unit).CombinedOutput(); err != nil {
			t.Errorf("%s is exposed more than %s tenths, or has what systemd does not know: %v\n%s", unit, exposure, err, out)
		}
	}
}

// TestTheImageHasWhatItsFileNames: the binary needs no other file, and ports, user
// and commands are right. There need be no docker here.
func TestTheImageHasWhatItsFileNames(t *testing.T) {
	f, err := elf.Open(proctest.Binary())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary is not static: it has a %v", p.Type)
		}
	}
	b, err := os.ReadFile("../deploy/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	build, image, ok := strings.Cut(string(b), "\nFROM scratch\n")
	if !ok {
		t.Fatal("the image is not made from scratch")
	}
	one := func(text, pattern string) string {
		m := regexp.MustCompile("(?m)^" + pattern + "$").FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("the Dockerfile has no %s", pattern)
		}
		return m[1]
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if got := one(build, `FROM golang:(\S+) AS build`); !strings.Contains(string(mod), "\ngo "+got) {
		t.Errorf("the image is built by Go %s", got)
	}
	out := one(build, `RUN CGO_ENABLED=0 go build .* -o (\S+) \./cmd/polder`)
	if got := one(image, `COPY --from=build (\S+) /polder`); got != out {
		t.Errorf("the image takes %s, and %s is built", got, out)
	}
	if got := one(image, `ENTRYPOINT \["(\S+)"\]`); got != "/polder" {
		t.Errorf("the image starts %s", got)
	}
	one(image, `USER ([1-9]\d+:[1-9]\d+)`)
	flagsAreTaken(t, "the image", []string{one(image, `CMD \["(\w+)"\]`)})
	for _, port := range strings.Fields(one(image, `EXPOSE (.*)`)) {
		found := false
		for _, role := range []string{"serve", "node", "up"} {
			list, err := exec.Command(proctest.Binary(), "config", role).Output()
			found = found || err == nil && strings.Contains(string(list), "127.0.0.1:"+port)
		}
		if !found {
			t.Errorf("nothing listens at port %s by default", port)
		}
	}
}

// TestManifestsStartWhatThereIs; the module bench/manifests decodes them with
// Kubernetes' own types.
func TestManifestsStartWhatThereIs(t *testing.T) {
	for _, name := range []string{"node", "serve"} {
		b, err := os.ReadFile("../deploy/kubernetes/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		_, list, _ := strings.Cut(string(b), "          args:\n")
		var args []string
		for line := range strings.Lines(list) {
			arg, ok := strings.CutPrefix(strings.TrimSpace(line), "- ")
			if !ok {
				break
			}
			args = append(args, arg)
		}
		if len(args) < 5 || args[0] != name {
			t.Fatalf("%s.yaml has the arguments %q", name, args)
		}
		flagsAreTaken(t, name+".yaml", args)
	}
}

// TestInstall installs into a directory, below another prefix, and uses what is
// there.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "etc/polder/serve.yaml")
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, []byte("local: 1GiB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// As make does, with the binary that is there.
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", proctest.Binary(), filepath.Join(bin, "polder")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command("make", "-C", "..", "install", "BIN="+bin, "GO=true", "DESTDIR="+dir, "PREFIX=/opt/polder")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for path, want := range map[string]string{
		"opt/polder/share/man/man1/polder-serve.1":               "Serve Redis clients",
		"opt/polder/share/man/man1/polder-share-stats.1":         "NAME",
		"opt/polder/share/bash-completion/completions/polder":    "__start_polder",
		"opt/polder/share/zsh/site-functions/_polder":            "#compdef polder",
		"opt/polder/share/fish/vendor_completions.d/polder.fish": "complete -c polder",
		"opt/polder/lib/sysusers.d/polder.conf":                  "u polder",
		"etc/systemd/system/polder-serve.service":                "ExecStart=/opt/polder/bin/polder serve",
		"etc/systemd/system/polder-serve.socket":                 "FileDescriptorName=listen",
		"etc/polder/node.yaml":                                   "#lend:",
		"etc/polder/serve.yaml":                                  "local: 1GiB",
	} {
		if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s does not say %q: %v", path, want, err)
		}
	}
	if out, err := exec.Command(filepath.Join(dir, "opt/polder/bin/polder"), "version").CombinedOutput(); err != nil {
		t.Errorf("what is installed does not run: %v\n%s", err, out)
	}
}
