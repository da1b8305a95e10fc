//go:build !race

// These tests open a log thousands of times, one after the other, in which the
// race detector has nothing to find and which it makes five times slower.

package wal

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// step is 1 where a file holds something, and larger in the zeros behind.
func step(file string, at int64) int64 {
	data, err := os.ReadFile(file)
	if err == nil && allZero(data[at:]) {
		return 61
	}
	return 1
}

func TestTruncatedAtEveryByteItReplaysAPrefixOrRefuses(t *testing.T) {
	dir, want := history(t)
	files, err := filepath.Glob(filepath.Join(dir, "*.[lc]*"))
	if err != nil {
		t.Fatal(err)
	}
	accepted, refused := 0, 0
	for _, file := range files {
		name := filepath.Base(file)
		st, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		last := file == files[len(files)-1]
		for n := int64(0); n < st.Size(); n += step(file, n) {
			copied := damaged(t, dir, name, func(b []byte) []byte { return b[:n] })
			l, got, _, err := reopen(copied, Options{SegmentSize: 4 << 10, noSync: true})
			switch {
			case err == nil:
				l.Close()
				accepted++
				if !isPrefix(got, want) {
					t.Fatalf("%s cut to %d bytes: what is replayed is no prefix", name, n)
				}
				if !last && len(got) != len(want) {
					t.Fatalf("%s cut to %d bytes: %d of %d records are replayed, although it is not the last file", name, n, len(got), len(want))
				}
			case !errors.As(err, new(*CorruptError)):
				t.Fatalf("%s cut to %d bytes: got %v, want a CorruptError", name, n, err)
			default:
				refused++
			}
		}
	}
	t.Logf("cut at %d places: %d accepted as a torn tail, %d refused", accepted+refused, accepted, refused)
}

func TestFlippedAtEveryByteItIsRefused(t *testing.T) {
	dir, want := history(t)
	files, err := filepath.Glob(filepath.Join(dir, "*.[lc]*"))
	if err != nil {
		t.Fatal(err)
	}
	harmless, refused := 0, 0
	for _, file := range files {
		name := filepath.Base(file)
		st, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		for at := int64(0); at < st.Size(); at += step(file, at) {
			bit := byte(1) << (at % 8)
			copied := damaged(t, dir, name, func(b []byte) []byte { b[at] ^= bit; return b })
			l, got, _, err := reopen(copied, Options{SegmentSize: 4 << 10, noSync: true})
			var corrupt *CorruptError
			switch {
			case err == nil:
				l.Close()
				harmless++
				if !slices.Equal(got, want) {
					t.Fatalf("%s with bit %d of byte %d flipped: %d of %d records are replayed, and nothing is said", name, at%8, at, len(got), len(want))
				}
			case !errors.As(err, &corrupt):
				t.Fatalf("%s with byte %d flipped: got %v, want a CorruptError", name, at, err)
			case corrupt.Offset > at:
				t.Fatalf("%s with byte %d flipped: the error says offset %d", name, at, corrupt.Offset)
			default:
				refused++
			}
		}
	}
	t.Logf("flipped %d bits: %d refused with the offset, %d without effect", harmless+refused, refused, harmless)
}
