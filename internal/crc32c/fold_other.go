//go:build !amd64

package crc32c

const folding = false

func fold(uint32, []byte) uint32 { panic("BUG: there is no fold for this processor") }
