package crc32c

import "golang.org/x/sys/cpu"

// folding reports whether the processor has what fold needs.
var folding = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42

// fold returns the state after p of a checksum whose state was crc; the state is
// the complement of the checksum.
//
// Preconditions: folding; len(p) is a multiple of 64, and at least 256.
//
//go:noescape
func fold(crc uint32, p []byte) uint32
