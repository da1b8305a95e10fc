package main

import (
	"strings"
	"testing"
)

func TestProfilesAreServed(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "100000 profiles, 1000 requests served.") {
		t.Errorf("got %q", out.String())
	}
}
