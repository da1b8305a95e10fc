package main

import (
	"strings"
	"testing"
)

func TestADayOfRequests(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", 43_200, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) < 7 {
		t.Fatalf("got %q", out.String())
	}
	for i, want := range []string{
		"43200 requests, 30 in the minute from noon on, of which ",
		"50% took less than 1",
		"99% took less than ",
		" took a second or more; the slowest:",
		" 503 /item/",
		" 503 /item/",
		" 503 /item/",
	} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d: got %q, want %q in it", i, lines[i], want)
		}
	}
}
