// Package readyfile writes the file by which a daemon says that it serves, and
// where: one JSON object of addresses by service, and a newline.
package readyfile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Write writes addrs to path, unless path is empty. A reader finds either no
// new file or all of it: it is written beside path and renamed. What is no
// regular file already, such as a pipe, is written to as it is.
func Write(path string, addrs map[string]string) error {
	if path == "" {
		return nil
	}
	list, err := json.Marshal(addrs)
	if err == nil {
		err = replace(path, append(list, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot write the ready file: %w", err)
	}
	return nil
}

func replace(path string, content []byte) error {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return os.WriteFile(path, content, 0o644)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the one to report
	}
	return err
}
