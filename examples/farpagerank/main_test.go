package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// In a star everybody follows node 0; the made-up graph does not fit. The ranks
// are those that plain slices give.
func TestPageRank(t *testing.T) {
	file := filepath.Join(t.TempDir(), "star.edges")
	if err := os.WriteFile(file, []byte("1 0\n2 0\n3 0\n0 1\n0 2\n0 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, want string }{
		{file, "4 nodes, 6 edges"},
		{"", "50000 nodes, 2000000 edges"},
	} {
		var out strings.Builder
		if err := run(t.Context(), "", c.file, &out); err != nil {
			t.Fatal(err)
		}
		node, rank := inLocalMemory(t, c.file)
		if want := fmt.Sprintf("%s; node %d has the highest rank, %.6f.\n", c.want, node, rank); !strings.HasPrefix(out.String(), want) {
			t.Errorf("got %q, want %q", out.String(), want)
		}
		if c.file == "" && !regexp.MustCompile(`iB in [1-9]\d* far segments`).MatchString(out.String()) {
			t.Errorf("got %q, want edges in far segments", out.String())
		}
	}
	if err := run(t.Context(), "", filepath.Join(t.TempDir(), "none"), &strings.Builder{}); err == nil {
		t.Error("a file that is not there is ranked")
	}
	for _, wrong := range []string{"1 2\n3\n", "one two\n", "1 4000000000\n"} {
		if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), "", file, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: got %v, want an error that names the file", wrong, err)
		}
	}
}

// inLocalMemory returns the node of the highest rank and its rank, computed
// without far memory.
func inLocalMemory(t *testing.T, file string) (int, float64) {
	var edges [][2]uint32
	nodes := uint32(0)
	if err := read(file, func(from, to uint32) error {
		edges, nodes = append(edges, [2]uint32{from, to}), max(nodes, from+1, to+1)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	degree := make([]float64, nodes)
	for _, e := range edges {
		degree[e[0]]++
	}
	rank := slices.Repeat([]float64{1 / float64(nodes)}, int(nodes))
	for range 10 {
		next := slices.Repeat([]float64{0.15 / float64(nodes)}, int(nodes))
		for _, e := range edges {
			next[e[1]] += 0.85 * rank[e[0]] / degree[e[0]]
		}
		rank = next
	}
	best := slices.Max(rank)
	return slices.Index(rank, best), best
}
