package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// GuestModules are the kernel modules that a guest needs for Soft-RoCE and a
// wire. crc32_generic is first: rdma_rxe asks the kernel for "crc32" when it is
// loaded, which no dependency says.
var GuestModules = []string{"crc32_generic", "rdma_rxe", "ib_uverbs", "virtio_pci", "virtio_net"}

// CacheDir returns the directory that keeps the kernel and the test binaries
// between runs: polder-rdma in $XDG_CACHE_HOME or ~/.cache.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cannot find a directory for the kernel: %w", err)
	}
	dir := filepath.Join(base, "polder-rdma")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("cannot make a directory for the kernel: %w", err)
	}
	return dir, nil
}

// Build runs the go command to build a program for a guest, linked statically.
// args are those between "go" and "-o".
func Build(ctx context.Context, out, pkg string, env []string, args ...string) error {
	all := append(append([]string{}, args...), "-o", out, pkg)
	cmd := exec.CommandContext(ctx, "go", all...)
	cmd.Env = append(os.Environ(), env...)
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build %s: go %s: %w\n%s", pkg, strings.Join(all, " "), err, b)
	}
	return nil
}

// BuildInit builds the guests' init in dir and returns its path.
func BuildInit(ctx context.Context, dir string) (string, error) {
	out := filepath.Join(dir, "guestinit")
	return out, Build(ctx, out, "polder/robustness/rdma/guestinit", []string{"CGO_ENABLED=0"}, "build")
}
