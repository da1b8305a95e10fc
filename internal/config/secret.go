package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// maxSecret is the length of the longest secret in bytes.
const maxSecret = 1024

// ReadSecret reads the secret in the file at path, which the named flag gave:
// its only line. It is "" if path is. A file that others than its owner can read
// holds no secret, and is refused.
func ReadSecret(flag, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	wrong := func(err error) (string, error) { return "", &Error{Source: "--" + flag, Value: path, Err: err} }
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if err != nil {
		return wrong(fmt.Errorf("cannot open the file: %w", err))
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return wrong(fmt.Errorf("cannot look at the file: %w", err))
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return wrong(fmt.Errorf("expected a file of mode 0600, which only its owner can read; it has %v", st.Mode()))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+3)) // and the end of the line
	if err != nil {
		return wrong(fmt.Errorf("cannot read the file: %w", err))
	}
	secret := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	switch {
	case secret == "" || len(secret) > maxSecret:
		return wrong(fmt.Errorf("expected a secret of 1 to %d bytes", maxSecret))
	case strings.ContainsAny(secret, "\r\n"):
		return wrong(errors.New("expected a secret of one line"))
	}
	return secret, nil
}
