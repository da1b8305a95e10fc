package resp

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"polder/far/disk"
	"polder/far/saved"
)

// TestASnapshotIsReadPartByPart by a few clients at a time, and a server opens the heap that was made of it: with large hashes and times to
// live, and without what was written since.
func TestASnapshotIsReadPartByPart(t *testing.T) {
	k := newKept(t, Journal{})
	if got := k.do("POLDER", "PART"); got != "-"+string(errNoSnapshot)+"\r\n" {
		t.Errorf("a part of nothing: %q", got)
	}
	for i := range 2000 {
		k.do("SET", fmt.Sprint("key", i), strings.Repeat("v", i))
	}
	for i := range 3000 {
		k.do("HSET", "large", fmt.Sprint("field", i), strings.Repeat("f", 100))
	}
	k.do("PEXPIREAT", "key7", "9999999999999")
	if got := k.do("POLDER", "SNAPSHOT", "odd"); got != "-"+string(errSyntax)+"\r\n" {
		t.Errorf("with a list of nothing: %q", got)
	}
	if got := k.do("POLDER", "SNAPSHOT"); !strings.HasPrefix(got, "*2\r\n$16\r\n") {
		t.Fatalf("a snapshot: %q", got)
	}
	for i := range 2000 {
		k.do("SET", fmt.Sprint("key", i), "another")
	}
	k.do("DEL", "large")
	k.do("SAVE")
	var file bytes.Buffer
	w := saved.NewWriter(&file)
	for {
		got := k.do("POLDER", "PART")
		if strings.HasPrefix(got, "$-1\r\n") {
			break
		}
		_, b, ok := strings.Cut(got, "\r\n")
		if !ok || got[0] != '$' {
			t.Fatalf("a part: %.100q", got)
		}
		if err := w.Add([]byte(strings.TrimSuffix(b, "\r\n"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	if got := k.do("POLDER", "PART"); got != "-"+string(errNoSnapshot)+"\r\n" {
		t.Errorf("a part behind the last one: %q", got)
	}

	first := k.s
	var others []*session
	for i := range mostSnapshots + 2 {
		k.s = k.srv.newSession()
		others = append(others, k.s)
		got, want := k.do("POLDER", "SNAPSHOT"), "*2\r\n"
		if i >= mostSnapshots {
			want = "-TRYAGAIN "
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("client %d: %q", i, got)
		}
		if again := k.do("POLDER", "SNAPSHOT"); i == 0 && !strings.HasPrefix(again, "*2\r\n") {
			t.Errorf("the same client takes another one: %q", again)
		}
	}
	for _, s := range others {
		s.close()
	}
	if k.s = first; !strings.HasPrefix(k.do("POLDER", "SNAPSHOT"), "*2\r\n") {
		t.Error("when the others have gone there is no snapshot")
	}

	to := &keptServer{t: t, dir: t.TempDir(), local: 8 << 20}
	store, err := disk.Open(disk.Config{Dir: to.dir, SegmentSize: 128 << 10, Size: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := saved.Restore(context.Background(), store, bytes.NewReader(file.Bytes()), nil); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	to.open()
	defer to.abandon()
	for i := range 2000 {
		if got, want := to.do("GET", fmt.Sprint("key", i)), strings.Repeat("v", i); !strings.HasSuffix(got, "\r\n"+want+"\r\n") {
			t.Fatalf("key %d is %.50q", i, got)
		}
	}
	for _, c := range [][3]string{{"HLEN", "large", ":3000\r\n"}, {"PEXPIRETIME", "key7", ":9999999999999\r\n"}, {"TTL", "key8", ":-1\r\n"}} {
		if got := to.do(c[0], c[1]); got != c[2] {
			t.Errorf("%s %s: %q, want %q", c[0], c[1], got, c[2])
		}
	}
}
