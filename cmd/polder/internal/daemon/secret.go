package daemon

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"polder/internal/config"
	"polder/memnode/wire"
)

// readSecret reads the secret that a node and its brokers have in common: zero if
// path is empty. A file that others than its owner can read holds no secret.
func readSecret(path string) (secret [wire.SecretSize]byte, err error) {
	if path == "" {
		return secret, nil
	}
	wrong := func(err error) error {
		return &config.Error{Source: "--service-secret-file", Value: path, Err: err}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if err != nil {
		return secret, wrong(fmt.Errorf("cannot open the file: %w", err))
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return secret, wrong(err)
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return secret, wrong(fmt.Errorf("expected a file of mode 0600, which only its owner can read; it has %v", st.Mode()))
	}
	const digits = 2 * wire.SecretSize
	text := make([]byte, digits+2)
	n, err := f.Read(text)
	if err != nil {
		return secret, wrong(fmt.Errorf("cannot read the file: %w", err))
	}
	b, err := hex.DecodeString(strings.TrimRight(string(text[:n]), "\r\n"))
	if err != nil || len(b) != wire.SecretSize {
		return secret, wrong(fmt.Errorf("expected %d hexadecimal digits, such as openssl rand -hex %d prints", digits, wire.SecretSize))
	}
	copy(secret[:], b)
	if secret == [wire.SecretSize]byte{} {
		return secret, wrong(errors.New("expected a secret, not zeros"))
	}
	return secret, nil
}
