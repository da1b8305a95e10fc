package daemon

import (
	"encoding/hex"
	"errors"
	"fmt"

	"polder/internal/config"
	"polder/memnode/wire"
)

// readSecret reads the secret that a node and its brokers have in common from a
// file. It returns zero if path is empty.
func readSecret(path string) (secret [wire.SecretSize]byte, err error) {
	if path == "" {
		return secret, nil
	}
	wrong := func(err error) error {
		return &config.Error{Source: "--service-secret-file", Value: path, Err: err}
	}
	text, err := config.ReadSecret("service-secret-file", path)
	if err != nil {
		return secret, err
	}
	const digits = 2 * wire.SecretSize
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != wire.SecretSize {
		return secret, wrong(fmt.Errorf("expected %d hexadecimal digits, such as openssl rand -hex %d prints", digits, wire.SecretSize))
	}
	copy(secret[:], b)
	if secret == [wire.SecretSize]byte{} {
		return secret, wrong(errors.New("expected a secret, not zeros"))
	}
	return secret, nil
}
