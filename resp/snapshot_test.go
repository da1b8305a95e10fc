package resp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"polder/far/disk"
	"polder/far/saved"
	"polder/resp/keyspace"
	"polder/resp/reply"
)

// TestASnapshotIsReadPartByPart by a few clients at a time, and a server opens the heap that was made of it: with large hashes and times to
// live, and without what was written since.
func TestASnapshotIsReadPartByPart(t *testing.T) {
	k := newKept(t, keyspace.Journal{})
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
	if got := k.do("POLDER", "SNAPSHOT", "odd"); got != "-"+string(reply.ErrSyntax)+"\r\n" {
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

// TestAPartitionIsCopiedThoughItMoves: who copies it does not hold it up, is told, and goes on at the server that has it then.
func TestAPartitionIsCopiedThoughItMoves(t *testing.T) {
	c := startCluster(t, 2, 2, roomy/8)
	cls := []*client{dial(t, c.addrs[0]), dial(t, c.addrs[1])}
	do := func(server int, args ...string) answer {
		cls[server].send(encode(args...))
		return cls[server].recv()
	}
	const keys = 400
	for i := range keys {
		if got := do(0, "SET", "{"+c.keyIn(0, "k")+"}"+fmt.Sprint(i), strings.Repeat("v", 4000)).String(); got != "+OK" {
			t.Fatal(got)
		}
	}
	for _, args := range [][]string{{}, {"0123456789abcdef"}, {"PARTITION"}, {"PARTITION", "2"}, {"PARTITION", "-1"}, {"PARTITION", "x"}} {
		if got := do(0, append([]string{"POLDER", "SNAPSHOT"}, args...)...).String(); got != "-"+string(errWhichPartition) {
			t.Errorf("%q: %s", args, got)
		}
	}
	if got := do(1, "POLDER", "SNAPSHOT", "PARTITION", "0").String(); got != "-"+string(errPartitionAway) {
		t.Errorf("at the other server: %s", got)
	}

	var file bytes.Buffer
	w := saved.NewWriter(&file)
	take := func(server int) {
		t.Helper()
		var have []byte
		for position, n := range w.Have() {
			have = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(have, position), n)
		}
		if got := do(server, "POLDER", "SNAPSHOT", "PARTITION", "0", string(have)); len(got.elems) != 2 {
			t.Fatalf("a snapshot: %s", got)
		}
	}
	part := func(server int) (more bool) {
		t.Helper()
		r := do(server, "POLDER", "PART")
		if r.line == "$-1" {
			return false
		}
		if err := w.Add([]byte(r.bulk)); err != nil {
			t.Fatalf("%v: %.100s", err, r)
		}
		return true
	}
	take(0)
	for range 3 { // of which the first is before anything, and the others bring records
		if !part(0) {
			t.Fatal("it has come to its end")
		}
	}
	c.move(0, 1)
	if got := do(0, "POLDER", "PART").String(); got != "-"+string(errPartitionGone) {
		t.Fatalf("when the partition has gone: %.100s", got)
	}
	if got := do(0, "POLDER", "PART").String(); got != "-"+string(errNoSnapshot) {
		t.Errorf("then: %.100s", got)
	}
	if n := c.servers[0].snapshots.Load(); n != 0 {
		t.Errorf("the server counts %d snapshots", n)
	}
	had := w.Offset()
	take(1)
	for part(1) {
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	if had < 2000 || len(w.Have()) == 0 {
		t.Errorf("it had %d bytes before", had)
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
	if err := os.Mkdir(filepath.Join(to.dir, "journal"), 0o700); err != nil { // the copy has what the journal had
		t.Fatal(err)
	}
	to.open()
	defer to.abandon()
	if got := to.do("DBSIZE"); got != fmt.Sprintf(":%d\r\n", keys) {
		t.Errorf("DBSIZE of the copy is %q, want %d", got, keys)
	}

	// One that is there when the partition goes does not keep it.
	take(1)
	c.move(0, 0)
	for i := range keys {
		if got := do(1, "GET", "{"+c.keyIn(0, "k")+"}"+fmt.Sprint(i)).bulk; len(got) != 4000 {
			t.Fatalf("key %d afterwards: %.50q", i, got)
		}
	}
}
