package resource

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Rights say what a handle is good for.
type Rights uint64

// The rights of a handle.
const (
	Read Rights = 1 << iota // map the region read-only
	Own                     // activate it, register keys in it, return it
	Maru                    // learn its path; of such a handle the client sees only a part of the MAC
)

// Handle is a capability: whoever presents it in the session that it was
// issued to may do with the region what it says. It is a value of fixed size
// on the wire: four little-endian words and the HMAC-SHA256 over them.
type Handle struct {
	Region uint64
	Holder uint64 // the session
	Length uint64
	Rights Rights
	MAC    [sha256.Size]byte
}

// HandleSize is the size of a marshalled handle.
const HandleSize = 4*8 + sha256.Size

// ErrHandle is returned for a handle that this daemon did not issue, that was
// issued to another session, or that does not grant what is asked.
var ErrHandle = errors.New("the handle does not grant this")

// Append marshals h.
func (h Handle) Append(b []byte) []byte {
	b = h.fields(b)
	return append(b, h.MAC[:]...)
}

func (h Handle) fields(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, h.Region)
	b = binary.LittleEndian.AppendUint64(b, h.Holder)
	b = binary.LittleEndian.AppendUint64(b, h.Length)
	return binary.LittleEndian.AppendUint64(b, uint64(h.Rights))
}

// ParseHandle unmarshals a handle. That says nothing about its being genuine.
func ParseHandle(b []byte) (Handle, error) {
	if len(b) != HandleSize {
		return Handle{}, fmt.Errorf("cannot read a handle of %d bytes, want %d", len(b), HandleSize)
	}
	h := Handle{
		Region: binary.LittleEndian.Uint64(b),
		Holder: binary.LittleEndian.Uint64(b[8:]),
		Length: binary.LittleEndian.Uint64(b[16:]),
		Rights: Rights(binary.LittleEndian.Uint64(b[24:])),
	}
	copy(h.MAC[:], b[32:])
	return h, nil
}

// Secret is what handles are signed with.
type Secret [32]byte

// Sign completes a handle.
func (s *Secret) Sign(h Handle) Handle {
	m := hmac.New(sha256.New, s[:])
	var buf [32]byte
	m.Write(h.fields(buf[:0]))
	m.Sum(h.MAC[:0])
	return h
}

// Check verifies that h was signed with this secret, for holder, with rights.
func (s *Secret) Check(h Handle, holder uint64, rights Rights) error {
	want := s.Sign(h)
	switch {
	case !hmac.Equal(want.MAC[:], h.MAC[:]):
		return fmt.Errorf("%w: it is forged", ErrHandle)
	case h.Holder != holder:
		return fmt.Errorf("%w: it was issued to another client", ErrHandle)
	case h.Rights&rights != rights:
		return fmt.Errorf("%w: it has not the right", ErrHandle)
	}
	return nil
}

const secretName = "secret"

// LoadSecret reads the secret of the state directory dir. The first time, when
// fresh is true, it makes one. A secret that is missing although there are
// allocations is an error: handles in the hands of clients would be void.
func LoadSecret(dir string, fresh bool) (*Secret, error) {
	path := filepath.Join(dir, secretName)
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && fresh:
		return makeSecret(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("cannot start: %s is missing, but the log holds allocations", path)
	case err != nil:
		return nil, fmt.Errorf("cannot read the secret: %w", err)
	case st.Mode().Perm() != 0o600:
		return nil, fmt.Errorf("cannot start: %s has mode %04o, want 0600", path, st.Mode().Perm())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the secret: %w", err)
	}
	var s Secret
	if len(data) != len(s) {
		return nil, fmt.Errorf("cannot start: %s has %d bytes, want %d", path, len(data), len(s))
	}
	copy(s[:], data)
	return &s, nil
}

func makeSecret(path string) (*Secret, error) {
	var s Secret
	rand.Read(s[:])
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot make the secret: %w", err)
	}
	_, err = f.Write(s[:])
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		if err = os.Rename(tmp, path); err == nil {
			err = syncDir(filepath.Dir(path))
		}
	}
	if err != nil {
		os.Remove(tmp)
		return nil, fmt.Errorf("cannot make the secret: %w", err)
	}
	return &s, nil
}
