package main

import (
	"strings"
	"testing"
)

// TestServeRefusesWhatBelongsToTheOtherTier: a flag that would do nothing is a
// mistake, and the message says what would make sense of it.
func TestServeRefusesWhatBelongsToTheOtherTier(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"serve --tier soft --far 127.0.0.1:7070", "--far"},
		{"serve --tier soft --manager native", "--manager"},
		{"serve --coordinator /run/s", "without --tier soft"},
		{"serve --far 127.0.0.1:7070 --memcached 127.0.0.1:11211", "without --tier soft"},
		{"serve --tier lukewarm", "expected one of far, soft"},
		{"serve --tier soft --budget 1MiB", "16MiB"},
		{"serve --tier soft --budget 1TiB", "512GiB"},
		{"serve files --budget 1TiB site", "512GiB"},
		{"serve --tier soft --memcached nowhere", "HOST:PORT"},
	} {
		root := newRoot(nil)
		root.SetArgs(strings.Fields(tt.args))
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want it to contain %q", tt.args, err, tt.want)
		}
	}
}
