package component_test

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"polder/memnode/component"
)

// shelf keeps values under keys, each in memory of the Env's. The tests' "table" is one in the node, their "column"
// one in a worker.
type shelf struct {
	env    *component.Env
	values map[string][]byte
}

const (
	table  = "table"
	column = "column"

	opLen = 1 // gives a u64

	maxKey, maxValue = 1 << 10, 60 << 10
)

func newShelf(env *component.Env, _ *component.Call, params []byte) (component.Object, error) {
	if len(params) != 0 {
		return nil, fmt.Errorf("a shelf takes no parameters, got %d bytes", len(params))
	}
	return &shelf{env: env, values: make(map[string][]byte)}, nil
}

func (s *shelf) Read(_ *component.Call, key, out []byte) ([]byte, error) {
	v, ok := s.values[string(key)]
	if !ok {
		return nil, component.ErrNotFound
	}
	return append(out, v...), nil
}

func (s *shelf) Write(c *component.Call, key, data []byte) error {
	if len(key) > maxKey || len(data) > maxValue {
		return fmt.Errorf("a key of %d bytes and a value of %d, want at most %d and %d", len(key), len(data), maxKey, maxValue)
	}
	v, err := s.env.Alloc(max(len(data), 1))
	if err != nil {
		return err
	}
	_ = s.Delete(c, key)
	s.values[string(bytes.Clone(key))] = v[:copy(v, data)]
	return nil
}

func (s *shelf) Delete(_ *component.Call, key []byte) error {
	v, ok := s.values[string(key)]
	if !ok {
		return component.ErrNotFound
	}
	s.env.Free(v[:1])
	delete(s.values, string(key))
	return nil
}

func (s *shelf) Compute(_ *component.Call, op uint16, _, out []byte) ([]byte, error) {
	if op != opLen {
		return nil, fmt.Errorf("a shelf has no operation %d", op)
	}
	return binary.LittleEndian.AppendUint64(out, uint64(len(s.values))), nil
}
