package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/binary"
	"fmt"
	"io"

	"polder/internal/load"
)

// llmBlocks is the sequence of prefix blocks for which an hour of requests to a
// production LLM service asked (Mooncake, FAST '25). Each block is a signed
// varint: the difference of its number from that of the block before.
//
//go:embed testdata/llm-blocks.gz
var llmBlocks []byte

func llmTrace() ([]uint32, error) {
	z, err := gzip.NewReader(bytes.NewReader(llmBlocks))
	if err != nil {
		return nil, fmt.Errorf("cannot read the trace: %w", err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("cannot read the trace: %w", err)
	}
	var out []uint32
	at := int64(0)
	for len(b) > 0 {
		d, n := binary.Varint(b)
		if n <= 0 {
			return nil, fmt.Errorf("cannot read the trace: it is damaged")
		}
		at += d
		b = b[n:]
		out = append(out, uint32(at))
	}
	return out, nil
}

func zipfTrace(keys, length int, seed uint64) []uint32 {
	return load.Sequence(load.Scattered(keys), length, seed)
}
