package robustness

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/proctest"
	"polder/internal/testpython"
)

// The documents say what to type. This test types it: each document in a shell of its
// own, from top to bottom, in namespaces in which it may use the ports and the paths
// that the documents name. What a document says a command prints, it must print; where
// that says "...", anything.
//
// A block of code without a language, or with sh, is commands; console has what they
// print, too. One with python is a program, and one with go is the body of a function
// with a context that returns an error; what it prints may stand behind "// Output:".
// Other languages are not run. A daemon is started in the background, as
// in another terminal, and waited for. These lines in front of a block tell the test:
//
//	<!-- run by PACKAGE TEST -->     another test runs it
//	*Not run by the tests: WHY*      nobody does, and the reader is told why
//	<!-- end daemons -->             the text has said to end them all
//	<!-- end daemon PORT -->         or the one that listens there
//	<!-- a Redis is used at 6390 --> the reader has one

// block is a block of code of a document.
type block struct {
	line     int
	language string
	text     string
	before   []string // lines of text in front of it, since the last block
}

var fence = regexp.MustCompile("^```([a-z]*)$")

// blocks are the blocks of a document.
func blocks(t *testing.T, path string) (list []block) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var open *block
	var before []string
	for i, line := range strings.Split(string(b), "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case open == nil && m != nil:
			open = &block{line: i + 1, language: m[1], before: before}
		case open == nil:
			before = append(before, line)
		case m != nil:
			list = append(list, *open)
			open, before = nil, nil
		default:
			open.text += line + "\n"
		}
	}
	if open != nil {
		t.Errorf("%s:%d: a block without an end", path, open.line)
	}
	return list
}

// documents are the files that a reader is sent to.
func documents(t *testing.T) []string {
	t.Helper()
	list := []string{"../README.md", "../CONTRIBUTING.md", "../bench/README.md"}
	err := filepath.WalkDir("../docs", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

var (
	runBy  = regexp.MustCompile(`^<!-- run by (\S+) (Test\w+) -->$`)
	notRun = regexp.MustCompile(`^\*Not run by the tests: .+\*$`)
	endOf  = regexp.MustCompile(`^<!-- end daemons?( \d+)? -->$`)
	// daemon is a command that goes on until it is told to end.
	daemon = regexp.MustCompile(`^polder (up|node|serve|serve files [^-]\S*|block|pager|broker|coordinator|witness|share)( -.*)?$`)
)

// TestEveryCommandInTheDocumentsRuns is what its name says.
func TestEveryCommandInTheDocumentsRuns(t *testing.T) {
	found, snippets := 0, map[string]string{}
	build := sync.OnceValues(func() (string, error) { return buildSnippets(t.TempDir(), snippets) })
	for _, doc := range documents(t) {
		list := blocks(t, doc)
		for i := range list {
			switch {
			case list[i].language == "go":
				snippets[list[i].where(doc)] = list[i].text
			case list[i].isCommands():
				found += len(commands(&list[i]))
			}
		}
		if slices.ContainsFunc(list, block.isCommands) {
			t.Run(strings.TrimPrefix(doc, "../"), func(t *testing.T) {
				t.Parallel()
				follow(t, doc, list, build)
			})
		}
	}
	if found < 50 || len(snippets) < 4 {
		t.Errorf("found %d commands and %d pieces of Go, want at least 50 and 4: are these the documents?", found, len(snippets))
	}
}

// isCommands reports whether a block is commands.
func (b block) isCommands() bool {
	return b.language == "" || b.language == "sh" || b.language == "console"
}

// runs reports whether a block is run.
func (b block) runs() bool { return b.isCommands() || b.language == "go" || b.language == "python" }

// where names a block of a document.
func (b block) where(doc string) string {
	return fmt.Sprintf("%s:%d", strings.TrimPrefix(doc, "../"), b.line)
}

// buildSnippets builds one program of the pieces of Go in documents, which runs that
// whose place is its argument.
func buildSnippets(dir string, snippets map[string]string) (program string, err error) {
	var main, cases strings.Builder
	for _, place := range slices.Sorted(maps.Keys(snippets)) {
		fmt.Fprintf(&cases, "\tcase %q:\n\t\terr = func() error {\n//line %s\n%s\n\t\t\treturn nil\n\t\t}()\n", place, place, snippets[place])
	}
	main.WriteString("package main\n\nimport (\n\t\"context\"\n\t\"fmt\"\n\t\"os\"\n\n")
	for _, path := range []string{"polder/far", "polder/far/disk", "polder/far/remote", "polder/pages/region", "polder/pool", "polder/share", "polder/soft"} {
		if strings.Contains(cases.String(), filepath.Base(path)+".") {
			fmt.Fprintf(&main, "\t%q\n", path)
		}
	}
	main.WriteString(")\n\nfunc main() {\n\tctx := context.Background()\n\tvar err error\n\tswitch os.Args[1] {\n" + cases.String() +
		"\t}\n\tif err != nil {\n\t\tfmt.Println(err)\n\t\tos.Exit(1)\n\t}\n}\n")
	source, overlay, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "snippets")
	tree, err := filepath.Abs("..")
	if err != nil {
		return "", err
	}
	// The program is in the module, but not in the tree.
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(tree, "examples/snippets/main.go"): source}})
	if err == nil {
		err = errors.Join(os.WriteFile(source, []byte(main.String()), 0o644), os.WriteFile(overlay, replace, 0o644))
	}
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-overlay", overlay, "-ldflags=-s -w", "-o", program, "./examples/snippets")
	build.Dir, build.Env = tree, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the Go in documents does not compile: %w\n%s", err, out)
	}
	return program, nil
}

// follow does what a document says.
func follow(t *testing.T, doc string, list []block, build func() (string, error)) {
	shell := startShell(t)
	for _, b := range list {
		if !b.runs() {
			continue
		}
		where := fmt.Sprintf("line %d", b.line)
		skip := false
		for _, line := range b.before {
			if m := runBy.FindStringSubmatch(line); m != nil {
				skip = true
				if !hasTest(t, filepath.Join("..", m[1]), m[2]) {
					t.Errorf("%s: there is no %s in %s", where, m[2], m[1])
				}
			}
			skip = skip || notRun.MatchString(line)
			if m := endOf.FindStringSubmatch(line); m != nil {
				shell.end(where, strings.TrimSpace(m[1]))
			}
			if line == usedRedis {
				shell.ask(where, startUsedRedis)
			}
		}
		if skip {
			continue
		}
		switch b.language {
		case "go":
			program, err := build()
			if err != nil {
				t.Fatal(err)
			}
			_, want, compare := strings.Cut(b.text, "// Output: ")
			shell.run(where, program+" "+b.where(doc), want, compare)
		case "python":
			script := filepath.Join(shell.dir, fmt.Sprintf(".line%d.py", b.line))
			if err := os.WriteFile(script, []byte(b.text), 0o644); err != nil {
				t.Fatal(err)
			}
			shell.run(where, "python3 "+script, "", false)
		default:
			for _, c := range commands(&b) {
				shell.run(where, c.text, c.want, b.language == "console")
			}
		}
	}
}

// usedRedis is for what a document needs and a reader has: a server under load.
const usedRedis = "<!-- a Redis is used at 6390 -->"

const startUsedRedis = `redis-server --port 6390 --save '' --daemonize no >/dev/null 2>&1 &
until redis-cli -p 6390 ping >/dev/null 2>&1; do sleep 0.05; done
redis-benchmark -p 6390 -q -t set -n 20000 -r 5000 -d 100 -P 16 >/dev/null 2>&1
while redis-benchmark -p 6390 -q -t get -n 1000 -r 5000 -P 16 >/dev/null 2>&1; do sleep 0.1; done &
echo started`

// hasTest reports whether the package in dir has a test of that name.
func hasTest(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "\nfunc "+test+"(") {
			return true
		}
	}
	return false
}

type command struct{ text, want string }

// commands are those of a block, with what they print if it is a console's.
func commands(b *block) (list []command) {
	if b.language == "console" {
		for _, part := range strings.Split("\n"+b.text, "\n$ ")[1:] {
			text, want, _ := strings.Cut(part, "\n")
			list = append(list, command{text, want})
		}
		return list
	}
	text := strings.ReplaceAll(b.text, "\\\n", "")
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			list = append(list, command{text: line})
		}
	}
	return list
}

// shell is a shell in namespaces of its own.
type shell struct {
	t       *testing.T
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stdout  *bufio.Scanner
	dir     string         // where it is
	daemons map[string]int // their processes there, by command
	n       int
}

// documentShell is the argument with which the test program becomes such a shell.
const documentShell = "document-shell"

// enterDocument makes this process, which is alone in new namespaces, a shell.
func enterDocument() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot keep mounts to itself: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib", "/dev/shm"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("cannot mount %s: %w", dir, err)
		}
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("cannot switch the loopback interface on: %w", err)
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		return err
	}
	return unix.Exec(bash, []string{"bash", "--noprofile", "--norc"}, os.Environ())
}

func startShell(t *testing.T) *shell {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{t: t, dir: t.TempDir(), daemons: map[string]int{}}
	python, err := testpython.Find("zmq", "msgpack", "numpy", "redis") // a reader is told to have them
	if err != nil {
		t.Fatal(err)
	}
	if python, err = exec.LookPath(python); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(s.dir, ".bin")
	tree, err := filepath.Abs("..")
	if err == nil {
		err = errors.Join(os.Mkdir(bin, 0o755), os.Symlink(proctest.Binary(), filepath.Join(bin, "polder")))
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(bin, "python3"), []byte("#!/bin/sh\nexec "+python+` "$@"`+"\n"), 0o755))
	for _, name := range []string{"clients", "docs", "examples"} {
		err = errors.Join(err, os.Symlink(filepath.Join(tree, name), filepath.Join(s.dir, name)))
	}
	if err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command(self, documentShell)
	s.cmd.Dir = s.dir
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "POLDER_") { // what this program is told, a daemon would not understand
			s.cmd.Env = append(s.cmd.Env, e)
		}
	}
	s.cmd.Env = append(s.cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"), "TREE="+tree, "CGO_ENABLED=0")
	s.cmd.Stderr = os.Stderr
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	s.cmd.SysProcAttr = attr
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("cannot make namespaces, which takes root or the right to make user namespaces: %v", err)
	}
	s.stdout = bufio.NewScanner(out)
	t.Cleanup(s.close)
	return s
}

// close ends the shell, and with it all that it has started.
func (s *shell) close() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill() // it has not ended
		_ = s.cmd.Wait()
	}
}

// ask has the shell do something, and returns the last line that it says.
func (s *shell) ask(where, script string) string {
	s.t.Helper()
	timer := time.AfterFunc(hang, func() { _ = s.cmd.Process.Kill() })
	defer timer.Stop()
	if _, err := io.WriteString(s.stdin, script+"\n"); err != nil {
		s.t.Fatalf("%s: the shell has ended: %v", where, err)
	}
	if !s.stdout.Scan() {
		s.t.Fatalf("%s: %s: no end of it within %v", where, script, hang)
	}
	return s.stdout.Text()
}

// run runs a command. A daemon is ready when it has said where it listens.
func (s *shell) run(where, text, want string, compare bool) {
	s.t.Helper()
	do := strings.ReplaceAll(text, "go run ./cmd/polder", "polder")
	do = strings.ReplaceAll(do, "go build -o polder ./cmd/polder", `(d=$PWD; cd "$TREE" && go build -o $d/polder ./cmd/polder)`)
	do = strings.ReplaceAll(do, "CGO_ENABLED=0 (", "(") // it is set
	do = regexp.MustCompile(`go run (\./\S+)(.*)`).ReplaceAllString(do, `(cd "$$TREE" && go run $1$2)`)
	s.n++
	out := filepath.Join(s.dir, fmt.Sprintf(".out%d", s.n))
	if daemon.MatchString(strings.TrimSuffix(do, " &")) {
		do = strings.TrimSuffix(do, " &")
		pid := 0
		_, _ = fmt.Sscan(s.ask(where, do+" >"+out+" 2>"+out+".err </dev/null & echo $!"), &pid)
		s.daemons[do] = pid
		proctest.Until(s.t, text+" says where it listens, or that it cannot", func() bool {
			b, _ := os.ReadFile(out)
			return strings.Count(string(b), "\n") > 1 || s.ask(where, fmt.Sprintf("kill -0 %d 2>/dev/null && echo yes || echo no", pid)) == "no"
		})
		if said, _ := os.ReadFile(out); len(said) == 0 {
			why, _ := os.ReadFile(out + ".err")
			s.t.Fatalf("%s: %s ended: %s", where, text, why)
		}
		return
	}
	// --no-raw prints what a terminal shows.
	do = regexp.MustCompile(`\bredis-cli `).ReplaceAllString(do, "redis-cli --no-raw ")
	var got, code string
	try := func() bool {
		code = s.ask(where, do+" >"+out+" 2>&1 </dev/null; echo $?")
		b, err := os.ReadFile(out)
		if err != nil {
			s.t.Fatal(err)
		}
		got = strings.TrimSpace(overwritten.ReplaceAllString(string(b), ""))
		return !compare || matches(got, strings.TrimSpace(want))
	}
	ok := try()
	// What a reader sees a moment later.
	for end := time.Now().Add(20 * time.Second); !ok && strings.HasPrefix(do, "polder status") && time.Now().Before(end); ok = try() {
		time.Sleep(100 * time.Millisecond)
	}
	if !ok {
		s.t.Errorf("%s: $ %s\ngot:\n%s\nwant:\n%s", where, text, got, want)
	}
	if code != "0" && !strings.Contains(want, "rror") && !strings.Contains(want, "cannot") {
		s.t.Fatalf("%s: $ %s\nexit code %s:\n%s", where, text, code, got)
	}
}

// overwritten is what a terminal does not show any more.
var overwritten = regexp.MustCompile(`(?m)^.*\r`)

// end ends the daemon that listens at a port, or all, as Ctrl-C does.
func (s *shell) end(where, port string) {
	s.t.Helper()
	for _, do := range slices.Sorted(maps.Keys(s.daemons)) {
		if port != "" && !strings.Contains(do, "--listen 127.0.0.1:"+port) {
			continue
		}
		pid := s.daemons[do]
		delete(s.daemons, do)
		if code := s.ask(where, fmt.Sprintf("kill -TERM %d; wait %d; echo $?", pid, pid)); code != "0" {
			s.t.Errorf("%s: %s ended with code %s", where, do, code)
		}
	}
}

// matches compares what was printed with what the document says; "..." stands for
// anything within a line, and by itself for any lines.
func matches(got, want string) bool {
	var pattern strings.Builder
	pattern.WriteString(`^`)
	for line := range strings.SplitSeq(want, "\n") {
		if strings.TrimSpace(line) == "..." {
			pattern.WriteString(`(?:.*\n)*`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(strings.TrimRight(line, " ")), `\.\.\.`, `.*`) + ` *\n`)
	}
	pattern.WriteString(`$`)
	return regexp.MustCompile(spaces.ReplaceAllString(pattern.String(), " +")).MatchString(got + "\n")
}

// spaces are columns, which may be wider.
var spaces = regexp.MustCompile(`  +`)

// TestWhatADocumentLeavesOutMayBeAnything: a line, or a part of one.
func TestWhatADocumentLeavesOutMayBeAnything(t *testing.T) {
	for _, tt := range []struct {
		got, want string
		ok        bool
	}{
		{"a\nb", "a\nb", true}, {"a\nb", "a", false}, {"a\nb\nc", "a\n...\nc", true}, {"a\nc", "a\n...\nc", true},
		{"a 17 b", "a ... b", true}, {"a 17 c", "a ... b", false}, {"a    b", "a  b", true}, {"", "...", true}, {"x.y", "xzy", false}, {"a\nb\nc", "...\nb\n...", true},
	} {
		if matches(tt.got, tt.want) != tt.ok {
			t.Errorf("%q is printed where the document says %q: got %v, want %v", tt.got, tt.want, !tt.ok, tt.ok)
		}
	}
}
