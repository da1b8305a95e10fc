package vm

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kernel is a kernel that has been taken out of its package.
type Kernel struct {
	// Dir holds vmlinux, name (the package's file name) and modules/.
	Dir string
}

// Image is the path of the uncompressed kernel.
func (k *Kernel) Image() string { return filepath.Join(k.Dir, "vmlinux") }

// Name is the name of the package's file: linux-image-6.1.0-56-amd64_6.1.192-2_amd64.
func (k *Kernel) Name() string {
	b, err := os.ReadFile(filepath.Join(k.Dir, "name"))
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// OpenKernel returns the kernel in dir, which it fills if it is empty: from
// the package file pkg, or, if that is empty, from the distribution's. The
// modules named are kept, and those that they depend on. Progress is told to
// say.
func OpenKernel(ctx context.Context, dir, pkg string, modules []string, say func(string)) (*Kernel, error) {
	k := &Kernel{Dir: dir}
	want := strings.Join(modules, " ")
	if have, err := os.ReadFile(filepath.Join(dir, "wanted")); err == nil && string(have) == want && pkg == "" {
		return k, nil
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "kernel-")
	if err != nil {
		return nil, fmt.Errorf("cannot keep a kernel: %w", err)
	}
	defer os.RemoveAll(tmp)
	if pkg == "" {
		say("fetching the kernel's package")
		if pkg, err = fetchPackage(ctx, tmp); err != nil {
			return nil, err
		}
	}
	say("taking the kernel out of " + filepath.Base(pkg))
	tree := filepath.Join(tmp, "tree")
	if _, err := command(ctx, "", "dpkg-deb", "-x", pkg, tree); err != nil {
		return nil, fmt.Errorf("cannot unpack %s: %w", pkg, err)
	}
	out := filepath.Join(tmp, "kernel")
	if err := os.MkdirAll(filepath.Join(out, "modules"), 0o755); err != nil {
		return nil, fmt.Errorf("cannot keep a kernel: %w", err)
	}
	if err := takeImage(ctx, tree, filepath.Join(out, "vmlinux")); err != nil {
		return nil, err
	}
	if err := takeModules(ctx, tree, modules, filepath.Join(out, "modules")); err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(pkg), ".deb")
	if err := os.WriteFile(filepath.Join(out, "name"), []byte(name), 0o644); err != nil {
		return nil, fmt.Errorf("cannot keep a kernel: %w", err)
	}
	// Written last: a directory without it is one that was not finished.
	if err := os.WriteFile(filepath.Join(out, "wanted"), []byte(want), 0o644); err != nil {
		return nil, fmt.Errorf("cannot keep a kernel: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("cannot replace the kernel: %w", err)
	}
	if err := os.Rename(out, dir); err != nil {
		return nil, fmt.Errorf("cannot keep a kernel: %w", err)
	}
	return k, nil
}

// fetchPackage downloads the package of the distribution's current kernel
// into dir and returns its path.
func fetchPackage(ctx context.Context, dir string) (string, error) {
	out, err := command(ctx, dir, "apt-cache", "depends", "--important", "linux-image-amd64")
	if err != nil {
		return "", fmt.Errorf("cannot find the kernel's package (on a system without apt, name the file of Debian's linux-image-*-amd64 with -kernel): %w", err)
	}
	var name string
	for line := range strings.Lines(out) {
		if dep, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(dep, "linux-image-") {
			name = dep
			break
		}
	}
	if name == "" {
		return "", fmt.Errorf("cannot find the kernel's package: linux-image-amd64 depends on none:\n%s", out)
	}
	if _, err := command(ctx, dir, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name); err != nil {
		return "", fmt.Errorf("cannot download %s (is the list of packages up to date? apt-get update): %w", name, err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "linux-image-*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("cannot find the package that was downloaded in %s: found %q", dir, found)
	}
	return found[0], nil
}

// takeImage writes the uncompressed kernel in the tree of a package to path.
func takeImage(ctx context.Context, tree, path string) error {
	found, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("cannot find the kernel in its package: found %q", found)
	}
	image, err := os.ReadFile(found[0])
	if err != nil {
		return fmt.Errorf("cannot read the kernel: %w", err)
	}
	packed, err := payload(image)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", filepath.Base(found[0]), err)
	}
	out, err := unpack(ctx, packed)
	if err != nil {
		return fmt.Errorf("cannot unpack %s: %w", filepath.Base(found[0]), err)
	}
	if _, err := elf.NewFile(bytes.NewReader(out)); err != nil {
		return fmt.Errorf("cannot use the kernel in %s: %w", filepath.Base(found[0]), err)
	}
	if err := os.WriteFile(path, out, 0o644); err != nil {
		return fmt.Errorf("cannot keep a kernel: %w", err)
	}
	return nil
}

// payload returns the compressed kernel in a bzImage (the kernel's
// Documentation/arch/x86/boot.rst: setup_sects, payload_offset and
// payload_length).
func payload(image []byte) ([]byte, error) {
	if len(image) < 0x250 || string(image[0x202:0x206]) != "HdrS" {
		return nil, errors.New("it is not a bzImage")
	}
	if v := binary.LittleEndian.Uint16(image[0x206:]); v < 0x208 {
		return nil, fmt.Errorf("its boot protocol is %d.%02d, older than 2.08", v>>8, v&0xff)
	}
	sectors := int(image[0x1f1])
	if sectors == 0 {
		sectors = 4
	}
	off := (sectors+1)*512 + int(binary.LittleEndian.Uint32(image[0x248:]))
	length := int(binary.LittleEndian.Uint32(image[0x24c:]))
	// The length counts four bytes behind the compressed kernel that say how
	// long it is uncompressed.
	if length < 10 || off > len(image) || length > len(image)-off {
		return nil, fmt.Errorf("its payload of %d bytes at %d is not in its %d bytes", length, off, len(image))
	}
	return image[off : off+length-4], nil
}

// unpack uncompresses what xz, zstd or gzip have compressed.
func unpack(ctx context.Context, packed []byte) ([]byte, error) {
	for _, f := range []struct{ magic, tool string }{
		{"\xfd7zXZ", "xz"}, {"\x28\xb5\x2f\xfd", "zstd"}, {"\x1f\x8b", "gzip"},
	} {
		if !bytes.HasPrefix(packed, []byte(f.magic)) {
			continue
		}
		cmd := exec.CommandContext(ctx, f.tool, "-dc")
		cmd.Stdin = bytes.NewReader(packed)
		var complaint bytes.Buffer
		cmd.Stderr = &complaint
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", f.tool, err, complaint.Bytes())
		}
		return out, nil
	}
	return nil, fmt.Errorf("cannot tell the compression of data that begins with %x", packed[:min(4, len(packed))])
}

// takeModules copies modules and what they depend on from the tree of a
// package to dir, uncompressed, with a file "order" that names them in the
// order in which they can be loaded.
func takeModules(ctx context.Context, tree string, wanted []string, dir string) error {
	set := newModuleSet()
	err := filepath.WalkDir(filepath.Join(tree, "lib", "modules"), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == "modules.builtin":
			return set.addBuiltin(path)
		case d.Type().IsRegular():
			set.add(path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot list the kernel's modules: %w", err)
	}
	order, err := set.order(wanted, func(path string) ([]byte, error) {
		b, err := os.ReadFile(path)
		if err == nil && !strings.HasSuffix(path, ".ko") {
			b, err = unpack(ctx, b)
		}
		return b, err
	})
	if err != nil {
		return err
	}
	var names strings.Builder
	for _, m := range order {
		if err := os.WriteFile(filepath.Join(dir, m.name+".ko"), m.data, 0o644); err != nil {
			return fmt.Errorf("cannot keep module %s: %w", m.name, err)
		}
		fmt.Fprintln(&names, m.name+".ko")
	}
	return os.WriteFile(filepath.Join(dir, "order"), []byte(names.String()), 0o644)
}

// Modules returns the paths of the kernel's modules in the order in which they
// can be loaded.
func (k *Kernel) Modules() ([]string, error) {
	dir := filepath.Join(k.Dir, "modules")
	b, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		return nil, fmt.Errorf("cannot list the kernel's modules: %w", err)
	}
	var paths []string
	for _, name := range strings.Fields(string(b)) {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths, nil
}

// command runs a command and returns what it printed.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, complaint.Bytes())
	}
	return out.String(), nil
}
