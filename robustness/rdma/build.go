package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"polder/robustness/rdma/vm"
)

type programKind int

const (
	goTest    programKind = iota // go test -c, with the build tag ibverbs
	goProgram                    // go build, with the build tag ibverbs
	cProgram                     // a C file, with libibverbs
)

// program is something to build.
type program struct {
	kind   programKind
	source string // import path, or path of the C file from the module's root
}

// name is the name of the file.
func (p program) name() string {
	switch p.kind {
	case goTest:
		return strings.ReplaceAll(p.source, "/", "-") + ".test"
	case cProgram:
		return strings.TrimSuffix(path.Base(p.source), ".c") + "-c"
	}
	return path.Base(p.source)
}

// path is where the program is in a guest.
func (p program) path() string { return "/bin/" + p.name() }

// builder builds programs, each once.
type builder struct {
	dir   string
	flags flags
	built map[program]bool
}

// flags are how a program is compiled and linked.
type flags struct {
	static        bool
	compile, link string
}

// sharedFlags link with the host's own libibverbs, which finds the provider of
// the host's device by itself.
func sharedFlags() flags { return flags{compile: "-O2 -g", link: "-libverbs"} }

func newBuilder(dir string, f flags) (*builder, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot keep test binaries: %w", err)
	}
	return &builder{dir: dir, flags: f, built: map[program]bool{}}, nil
}

// staticFlags link with libibverbs and its provider for Soft-RoCE, without
// shared libraries, which a guest does not have. The name of the provider's
// library has the version of the
// interface between libibverbs and its providers: librxe-rdmav34.a.
func staticFlags() (flags, error) {
	out, err := exec.Command("gcc", "-print-file-name=libibverbs.a").Output()
	if err != nil {
		return flags{}, fmt.Errorf("cannot find libibverbs (.ci/deps-rdma installs it): %w", err)
	}
	dir := filepath.Dir(strings.TrimSpace(string(out)))
	found, err := filepath.Glob(filepath.Join(dir, "librxe-rdmav*.a"))
	if err != nil || len(found) != 1 {
		return flags{}, fmt.Errorf("cannot find libibverbs' provider for Soft-RoCE in %s (.ci/deps-rdma installs it): found %q", dir, found)
	}
	provider := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), "lib"), ".a")
	return flags{
		static:  true,
		compile: "-O2 -g -DRDMA_STATIC_PROVIDERS=rxe",
		link:    "-Wl,--start-group -l" + provider + " -libverbs -lnl-route-3 -lnl-3 -lpthread -Wl,--end-group",
	}, nil
}

// file is where a program has been built.
func (b *builder) file(p program) string { return filepath.Join(b.dir, p.name()) }

func (b *builder) build(ctx context.Context, p program) error {
	if b.built[p] {
		return nil
	}
	var err error
	switch p.kind {
	case cProgram:
		err = b.compile(ctx, p)
	case goTest:
		err = b.goBuild(ctx, p, "test", "-c", "-trimpath")
	default:
		err = b.goBuild(ctx, p, "build", "-trimpath")
	}
	b.built[p] = err == nil
	return err
}

func (b *builder) goBuild(ctx context.Context, p program, args ...string) error {
	// The pure Go resolver: glibc's does not work in a static program.
	args = append(args, "-tags", "ibverbs netgo osusergo")
	if b.flags.static {
		args = append(args, "-ldflags", `-s -w -linkmode external -extldflags "-static"`)
	}
	env := []string{"CGO_ENABLED=1", "CGO_CFLAGS=" + b.flags.compile, "CGO_LDFLAGS=" + b.flags.link}
	return vm.Build(ctx, b.file(p), p.source, env, args...)
}

func (b *builder) compile(ctx context.Context, p program) error {
	args := append(strings.Fields(b.flags.compile), "-Wall", "-Wextra", "-Werror", "-o", b.file(p), p.source)
	if b.flags.static {
		args = append(args, "-static")
	}
	args = append(args, strings.Fields(b.flags.link)...)
	out, err := exec.CommandContext(ctx, "gcc", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot build %s: gcc %s: %w\n%s", p.source, strings.Join(args, " "), err, out)
	}
	return nil
}
