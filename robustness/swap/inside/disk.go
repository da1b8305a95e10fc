package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/child"
)

const (
	device = "/dev/nbd0"
	mount  = "/tmp/disk"
)

// disk has the kernel use a device as a disk.
func disk(node string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	socket := "/tmp/block.sock"
	p, err := child.StartReady(ctx, child.Command{Path: "/bin/polder", Args: []string{
		"block", "--far", node, "--insecure", "--size", "256MiB", "--local", "16MiB", "--op-timeout", "1m", "--listen", "unix:" + socket, "--admin", "off"}})
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"nbd-client", "-unix", socket, device, "-N", "polder", "-C", "4", "-b", "4096"},
		{"mkfs.ext4", "-q", device},
	} {
		if _, err := sh(args...); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(mount, 0o755); err != nil {
		return err
	}
	s := soak{rand: rand.New(rand.NewPCG(1, 2)), files: map[string]content{}}
	for range 3 { // of which each checks what the one before has left
		if err := unix.Mount(device, mount, "ext4", 0, "discard"); err != nil {
			return fmt.Errorf("cannot mount: %w", err)
		}
		err := errors.Join(s.check(), s.change())
		if err := errors.Join(err, unix.Unmount(mount, 0)); err != nil {
			return err
		}
		if _, err := sh("e2fsck", "-fn", device); err != nil {
			return err
		}
	}
	if _, err := sh("nbd-client", "-d", device); err != nil {
		return err
	}
	fmt.Printf("%d files written, %d removed, %d read\n", s.written, s.removed, s.read)
	return p.Stop()
}

// soak writes, removes and reads files, of which it knows what is in them.
type soak struct {
	rand                   *rand.Rand
	files                  map[string]content
	written, removed, read int
}

// content is what a file has: what it is called, over and over.
type content struct {
	seed uint64
	size int
}

func (c content) of(name string) []byte {
	line := fmt.Appendf(nil, "%s, %d\n", name, c.seed)
	return bytes.Repeat(line, c.size/len(line)+1)[:c.size]
}

const (
	most    = 64      // files
	largest = 1 << 20 // bytes
)

// change writes and removes files.
func (s *soak) change() error {
	for range 100 {
		name := filepath.Join(mount, fmt.Sprint(s.rand.IntN(most)))
		if _, ok := s.files[name]; ok && s.rand.IntN(3) == 0 {
			if err := os.Remove(name); err != nil {
				return err
			}
			delete(s.files, name)
			s.removed++
			continue
		}
		c := content{s.rand.Uint64(), s.rand.IntN(largest)}
		if err := os.WriteFile(name, c.of(name), 0o600); err != nil {
			return err
		}
		s.files[name] = c
		s.written++
	}
	return nil
}

// check reads all files, from the device.
func (s *soak) check() error {
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return err
	}
	for name, want := range s.files {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if !bytes.Equal(b, want.of(name)) {
			return fmt.Errorf("%s has %d other bytes", name, len(b))
		}
		s.read++
	}
	return nil
}
