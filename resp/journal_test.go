package resp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"polder/far"
	"polder/far/disk"
	"polder/internal/invariants"
	"polder/resp/keyspace"
)

// keptServer is a server over a heap that is kept, which crashes and is opened again.
type keptServer struct {
	t       testing.TB
	dir     string
	journal keyspace.Journal
	local   int64
	size    int64                       // of the disk
	ready   func(context.Context) error // Config.Ready

	store *disk.Store
	heap  *far.Heap
	srv   *Server
	s     *session
}

func newKept(t testing.TB, j keyspace.Journal) *keptServer {
	k := &keptServer{t: t, dir: t.TempDir(), journal: j, local: 8 << 20, size: 64 << 20}
	k.open()
	t.Cleanup(func() { k.abandon() })
	return k
}

func (k *keptServer) tryOpen() error {
	j := k.journal
	j.Dir = filepath.Join(k.dir, "journal")
	var err error
	if k.store, err = disk.Open(disk.Config{Dir: k.dir, SegmentSize: 128 << 10, Size: k.size}); err != nil {
		return err
	}
	if k.heap, err = far.Open(context.Background(), k.store, far.Config{Local: k.local}); err != nil {
		return err
	}
	if k.srv, err = NewLoading(Config{Loops: -1, Journal: j, Ready: k.ready, Logger: slog.New(slog.DiscardHandler), OpTimeout: 10 * time.Second}); err != nil {
		return err
	}
	if err = k.srv.Open(context.Background(), k.heap); err != nil {
		return err
	}
	k.s = k.srv.newSession()
	return nil
}

func (k *keptServer) open() {
	k.t.Helper()
	if err := k.tryOpen(); err != nil {
		k.t.Fatal(err)
	}
}

// do runs a command as a driver does: the reply counts when it may be shown.
func (k *keptServer) do(args ...string) string {
	k.t.Helper()
	k.s.in = []byte(encode(args...))
	for {
		switch st := k.s.run(); st {
		case needInput:
			if !k.s.shown() {
				k.t.Fatalf("%.50q: the reply may not be shown", args)
			}
			out := string(k.s.Out)
			k.s.Out = k.s.Out[:0]
			return out
		case needFlush:
		case needFetch:
			var w wants
			k.s.wants(&w)
			k.s.fetched(k.srv.fetch(k.srv.data, &w))
		default:
			k.t.Fatalf("%.50q: %d", args, st)
		}
	}
}

// crash has the disk be as it is now, whatever is in memory, and opens what is there.
func (k *keptServer) crash() {
	k.t.Helper()
	dir := k.image()
	k.abandon()
	k.dir = dir
	k.open()
}

// image is a copy of the disk as it is now. No checkpoint counts while it is made.
func (k *keptServer) image() string {
	k.t.Helper()
	locks := k.srv.newSession()
	defer locks.close()
	locks.LockKey(nil, true, nil) // which a checkpoint waits for
	defer locks.Unlock()
	dir := k.t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(k.dir)); err != nil {
		k.t.Fatal(err)
	}
	return dir
}

func (k *keptServer) abandon() {
	if k.s != nil {
		k.s.close()
	}
	if k.srv != nil {
		k.srv.Close()
	}
	if k.heap != nil {
		k.heap.Close()
	}
	if k.store != nil {
		k.store.Close()
	}
	k.s, k.srv, k.heap, k.store = nil, nil, nil, nil
}

// dump is what is stored, by key.
func (k *keptServer) dump() string {
	var lines []string
	for i := range modelKeys {
		key := modelKey(i)
		line := key + " " + k.do("TYPE", key) + " " + strconv.FormatBool(k.do("PTTL", key) != ":-1\r\n")
		if strings.Contains(line, "hash") {
			fields := bulks(k.do("HGETALL", key))
			all := make(map[string]string)
			for i := 0; i+1 < len(fields); i += 2 {
				all[fields[i]] = fields[i+1]
			}
			for _, f := range slices.Sorted(maps.Keys(all)) {
				line += " " + f + "=" + all[f]
			}
			line += " " + k.do("HLEN", key)
		} else if strings.Contains(line, "string") {
			line += " " + k.do("GET", key)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func bulks(reply string) (list []string) {
	b := []byte(reply)
	for len(b) > 0 {
		line, rest, _ := bytes.Cut(b, []byte("\r\n"))
		if line[0] == '$' {
			n, _ := strconv.Atoi(string(line[1:]))
			list, rest = append(list, string(rest[:n])), rest[n+2:]
		}
		b = rest
	}
	return list
}

const modelKeys = 6

func modelKey(i int) string { return fmt.Sprint("key", i) }

// TestWhatWasAnsweredSurvivesACrash has a server crash after any commands, among which are checkpoints and good
// ends, and what is there then is what was there before.
func TestWhatWasAnsweredSurvivesACrash(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		k := newKept(t, keyspace.Journal{Durable: true})
		defer k.abandon()
		key := func() string { return modelKey(rapid.IntRange(0, modelKeys-1).Draw(rt, "key")) }
		fields := func(most int) (args []string) {
			n, from := rapid.IntRange(1, most).Draw(rt, "fields"), rapid.IntRange(0, 900).Draw(rt, "from")
			for i := range n {
				args = append(args, fmt.Sprint("f", from+i))
			}
			return args
		}
		command := func() []string {
			switch rapid.IntRange(0, 13).Draw(rt, "command") {
			case 0:
				return []string{"SET", key(), strings.Repeat("v", rapid.IntRange(0, 9000).Draw(rt, "size"))}
			case 1:
				return []string{"DEL", key(), key()}
			case 2:
				return []string{"APPEND", key(), "more"}
			case 3, 4, 5:
				args := []string{"HSET", key()}
				for _, f := range fields(700) {
					args = append(args, f, f+strings.Repeat("x", rapid.IntRange(0, 60).Draw(rt, "length")))
				}
				return args
			case 6, 7:
				return append([]string{"HDEL", key()}, fields(400)...)
			case 8:
				return []string{"RENAME", key(), key()}
			case 9:
				return []string{"COPY", key(), key(), "REPLACE"}
			case 10:
				return []string{"PEXPIRE", key(), "1000000"}
			case 11:
				return []string{"PERSIST", key()}
			case 12:
				return []string{"HINCRBY", key(), "n", "7"}
			}
			return []string{"MSET", key(), "a", key(), "b"}
		}
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			switch rapid.IntRange(0, 19).Draw(rt, "step") {
			case 0, 1:
				want := k.dump()
				k.crash()
				if got := k.dump(); got != want {
					rt.Fatalf("after a crash: got\n%.2000s\nwant\n%.2000s", got, want)
				}
			case 2:
				if err := k.heap.Checkpoint(context.Background()); err != nil {
					rt.Fatal(err)
				}
			case 3:
				want := k.dump()
				k.abandon()
				k.open()
				if got := k.dump(); got != want {
					rt.Fatalf("after a good end: got\n%.2000s\nwant\n%.2000s", got, want)
				}
			case 4:
				k.do("FLUSHALL")
			case 5, 6:
				k.do("MULTI")
				for range rapid.IntRange(0, 4).Draw(rt, "queued") {
					k.do(command()...)
				}
				k.do("EXEC")
			default:
				k.do(command()...)
			}
		}
		want := k.dump()
		k.crash()
		if got := k.dump(); got != want {
			rt.Fatalf("in the end: got\n%.2000s\nwant\n%.2000s", got, want)
		}
	})
}

// TestEachKindOfChangeSurvivesACrash crashes after each command of a list in which there is every kind of change.
func TestEachKindOfChangeSurvivesACrash(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	k := newKept(t, keyspace.Journal{Durable: true})
	defer k.abandon()
	many := func(args ...string) []string {
		for i := range 700 {
			args = append(args, fmt.Sprint("f", i), strings.Repeat("v", i%60))
		}
		return args
	}
	commands := [][]string{
		{"SET", "key0", "a"}, {"APPEND", "key0", strings.Repeat("b", 1<<20)}, {"PEXPIRE", "key0", "1000000"}, {"SETRANGE", "key0", "7", "x"},
		{"HSET", "key1", "f", "v"}, {"HDEL", "key1", "f"},
		many("HSET", "key1"), {"HSET", "key1", "f0", "new", "g", "w"}, {"PEXPIRE", "key1", "1000000"}, {"HDEL", "key1", "f1", "f2"},
		many(many("HSET", "key1", "h1", strings.Repeat("x", 10000), "h2", strings.Repeat("x", 40000))...),
		{"RENAME", "key1", "key2"}, {"COPY", "key2", "key3"}, {"HSET", "key3", "only", "here"}, {"PERSIST", "key3"},
		{"RENAME", "key0", "key3"}, {"DEL", "key2", "key5"}, many("HSET", "key4"), {"SET", "key4", "text"}, {"FLUSHALL"}, {"INCR", "key5"},
	}
	for _, args := range commands {
		if reply := k.do(args...); strings.HasPrefix(reply, "-") {
			t.Fatalf("%.50q: %s", args, reply)
		}
		if n := k.do("DBSIZE"); args[0] == "FLUSHALL" && n != ":0\r\n" {
			t.Fatalf("after FLUSHALL: DBSIZE %q, want 0", n)
		}
		want := k.dump()
		k.crash()
		if got := k.dump(); got != want {
			t.Fatalf("after %.50q and a crash: got\n%.1000s\nwant\n%.1000s", args, got, want)
		}
	}
}

// TestWhatExpiresAfterACrash: a hash that has expired when the journal is replayed does not come back in part.
func TestWhatExpiresAfterACrash(t *testing.T) {
	k := newKept(t, keyspace.Journal{Durable: true})
	defer k.abandon()
	args := []string{"HSET", "key0"}
	for i := range 600 {
		args = append(args, fmt.Sprint("f", i), "v")
	}
	k.do(args...)
	k.do("HSET", "key1", "f", "v")
	k.do("SET", "key2", "1")
	for i := range 3 {
		k.do("PEXPIRE", modelKey(i), "60")
	}
	if err := k.heap.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	if r := k.do("HSET", "key0", "g", "w"); r == ":1\r\n" && k.do("HLEN", "key0") == ":601\r\n" {
		k.do("HSET", "key1", "g", "w")
		k.do("INCR", "key2")
	}
	for i := range 3 {
		if k.do("PTTL", modelKey(i)) == ":-1\r\n" { // it had expired already, and what was written is another key
			k.do("DEL", modelKey(i))
		}
	}
	eventually(t, "the keys to expire", func() bool { return k.do("EXISTS", "key0", "key1", "key2") == ":0\r\n" })
	k.crash()
	if got := k.do("EXISTS", "key0", "key1", "key2"); got != ":0\r\n" {
		t.Errorf("after they have expired: EXISTS %q, want none", got)
	}
}

// TestAJournalIsReplayedWithoutBeingAskedFor: the heap of a durable server is whole in the hands of one that is not, and later.
func TestAJournalIsReplayedWithoutBeingAskedFor(t *testing.T) {
	k := newKept(t, keyspace.Journal{Durable: true})
	defer k.abandon()
	k.do("SET", "key0", "a")
	k.journal.Durable = false
	k.crash()
	if got := k.do("GET", "key0"); got != "$1\r\na\r\n" {
		t.Fatalf("by a server that is not durable: GET %q", got)
	}
	k.do("SET", "key0", "b") // nobody was promised anything
	k.crash()
	if got := k.do("GET", "key0"); got != "$1\r\na\r\n" {
		t.Fatalf("after its crash: GET %q, want what it has begun with", got)
	}
	k.journal.Durable = true
	k.crash()
	k.do("SET", "key0", "c")
	k.crash()
	if got := k.do("GET", "key0"); got != "$1\r\nc\r\n" {
		t.Errorf("by a server that is durable again: GET %q", got)
	}
}

// TestAJournalThatDoesNotFit has journals that are missing, another heap's, damaged, or have a gap: the server does not start.
func TestAJournalThatDoesNotFit(t *testing.T) {
	other := newKept(t, keyspace.Journal{Durable: true})
	other.do("SET", "key0", "other")
	for _, c := range []struct{ name, want string }{
		{"missing", "not what clients were promised"},
		{"another heap's", "is the journal"},
		{"with a gap", "some are missing"},
		{"damaged", "cannot replay the journal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newKept(t, keyspace.Journal{Durable: true})
			early := k.image()
			for i := range 3 {
				k.do("SET", "key0", fmt.Sprint(i))
			}
			switch c.name {
			case "with a gap":
				if err := k.heap.Checkpoint(context.Background()); err != nil {
					t.Fatal(err)
				}
				k.do("SET", "key0", "behind it")
			}
			copied := k.image()
			k.abandon()
			k.dir = copied
			dir := filepath.Join(copied, "journal")
			switch c.name {
			case "missing":
				os.RemoveAll(dir)
			case "another heap's":
				os.RemoveAll(dir)
				if err := os.CopyFS(dir, os.DirFS(filepath.Join(other.dir, "journal"))); err != nil {
					t.Fatal(err)
				}
			case "with a gap": // the heap of before, and the journal of now
				os.RemoveAll(filepath.Join(early, "journal"))
				if err := os.CopyFS(filepath.Join(early, "journal"), os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
				k.dir = early
			case "damaged":
				for _, path := range segments(t, dir) {
					b, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					b[40] ^= 1
					if err := os.WriteFile(path, b, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := k.tryOpen(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got the error %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestAJournalOfAHeapThatIsGone begins with what a heap has left behind that was removed.
func TestAJournalOfAHeapThatIsGone(t *testing.T) {
	k := newKept(t, keyspace.Journal{Durable: true})
	k.do("SET", "key0", "a")
	dir := k.image()
	k.abandon()
	if k.dir = t.TempDir(); os.Rename(filepath.Join(dir, "journal"), filepath.Join(k.dir, "journal")) != nil {
		t.Fatal("cannot move the journal")
	}
	k.open()
	defer k.abandon()
	if got := k.do("DBSIZE"); got != ":0\r\n" {
		t.Errorf("a new heap: DBSIZE %q, want 0", got)
	}
}

// segments are files of a journal that have records.
func segments(t *testing.T, dir string) (paths []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(all) == 0 {
		t.Fatalf("there are no segments in %s: %v", dir, err)
	}
	return all
}

// TestNothingIsAnsweredThatCannotBeJournaled breaks the journal under a server.
func TestNothingIsAnsweredThatCannotBeJournaled(t *testing.T) {
	log := new(memLog)
	k := newKept(t, keyspace.Journal{Durable: true, Log: func(_ context.Context, replay func(rec []byte) error) (keyspace.RecordLog, error) {
		return log, log.replay(replay)
	}})
	k.do("SET", "key0", "a")
	log.broken = true
	k.s.feed([]byte(encode("SET", "key0", "lost")))
	if k.s.shown() {
		t.Error("what is not in the journal may be shown")
	}
	k.s.Out = k.s.Out[:0]
	log = &memLog{recs: slices.Clone(log.recs)}
	for _, args := range [][]string{{"SET", "key0", "b"}, {"GET", "key0"}} {
		if got := k.do(args...); !strings.HasPrefix(got, "-MISCONF") {
			t.Errorf("%q: got %q, want MISCONF", args, got)
		}
	}
	if got := k.do("PING"); got != "+PONG\r\n" {
		t.Errorf("PING: got %q", got)
	}
	k.crash()
	if got := k.do("GET", "key0"); got != "$1\r\na\r\n" {
		t.Errorf("after another start: GET %q, want what was answered", got)
	}
}

// TestSaveTakesACheckpoint: SAVE, BGSAVE and BGREWRITEAOF keep what there is, also without a journal, and WAITAOF tells the truth.
func TestSaveTakesACheckpoint(t *testing.T) {
	for _, durable := range []bool{false, true} {
		k := newKept(t, keyspace.Journal{Durable: durable, Every: time.Minute})
		for i, save := range []string{"SAVE", "BGSAVE", "BGREWRITEAOF"} {
			k.do("SET", "key0", save)
			before := k.heap.LastCheckpoint()
			if got := k.do(save); got[0] != '+' {
				t.Fatalf("%s: %q", save, got)
			}
			eventually(t, "a checkpoint by "+save, func() bool { return k.heap.LastCheckpoint().After(before) && !k.srv.data.Persistence().Saving })
			if got, want := k.do("LASTSAVE"), fmt.Sprintf(":%d\r\n", k.heap.LastCheckpoint().Unix()); got != want {
				t.Errorf("LASTSAVE: got %q, want %q", got, want)
			}
			if k.crash(); !strings.Contains(k.do("GET", "key0"), save) {
				t.Errorf("%d: after %s and a crash: %q", i, save, k.do("GET", "key0"))
			}
		}
		want := map[bool]string{false: "-ERR WAITAOF cannot be used", true: "*2\r\n:1\r\n:0\r\n"}[durable]
		k.do("SET", "key0", "new")
		if got := k.do("WAITAOF", "1", "0", "0"); !strings.HasPrefix(got, want) {
			t.Errorf("durable %v: WAITAOF: got %q, want %q", durable, got, want)
		}
		k.abandon()
	}
	heap := newHeap(t, roomy)
	srv, err := NewServer(heap, Config{Loops: -1})
	if err != nil {
		t.Fatal(err)
	}
	k := &keptServer{t: t, srv: srv, s: srv.newSession()}
	for _, save := range []string{"SAVE", "BGSAVE", "BGREWRITEAOF"} {
		if got := k.do(save); !strings.HasPrefix(got, "-ERR nothing is kept") {
			t.Errorf("without a heap that is kept: %s: %q", save, got)
		}
	}
	k.abandon()
	heap.Close()
}

// TestNothingIsAnsweredBeforeItMayBe: when all is there Config.Ready is called, and until it returns clients are told that the server loads.
func TestNothingIsAnsweredBeforeItMayBe(t *testing.T) {
	k := newKept(t, keyspace.Journal{Durable: true})
	k.do("set", "a", "1")
	k.abandon()
	called := false
	k.ready = func(context.Context) error {
		called = true
		if !k.srv.data.IsLoading() || k.srv.data.Len() != 1 {
			t.Error("Ready is called when clients are answered, or before the journal was replayed")
		}
		return nil
	}
	k.open()
	if got := k.do("get", "a"); !called || got != "$1\r\n1\r\n" {
		t.Errorf("GET: %q, want 1; called: %v", got, called)
	}
	k.abandon()
	k.ready = func(context.Context) error { return errors.New("it is another's") }
	if err := k.tryOpen(); err == nil || err.Error() != "it is another's" || !k.srv.data.IsLoading() {
		t.Errorf("Open when Ready fails: %v", err)
	}
	k.s = k.srv.newSession()
}
