package demo

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"path/filepath"
)

// file is a file of the tree, and what became of it.
type file struct {
	path string // below the tree's root; the key
	full string
	size int64

	sum    [sha256.Size]byte // of what was stored
	stored bool              // otherwise it is too large for the server
	equal  bool              // what came back has the same sum
}

// list finds the regular files under dir.
func list(dir string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files = append(files, file{path: rel, full: path, size: info.Size()})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the files of %s: %w", dir, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("cannot store the files of %s: there are none", dir)
	}
	return files, nil
}

// batches cuts files, by index, into runs that are small enough for one
// pipeline.
func batches(files []file) [][]int {
	const most, bytes = 32, 1 << 20
	var all [][]int
	var run []int
	var size int64
	for i := range files {
		if len(run) == most || len(run) > 0 && size+files[i].size > bytes {
			all = append(all, run)
			run, size = nil, 0
		}
		run = append(run, i)
		size += files[i].size
	}
	return append(all, run)
}
