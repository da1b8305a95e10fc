package resp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"polder/far"
	"polder/resp/hashes"
	"polder/resp/keyspace"
)

// A large hash whose blocks are split while far memory fails, in a store that
// can be filled so far that any of the writes is the first without room.
type splitting struct {
	t       *testing.T
	store   *faultyStore
	heap    *far.Heap
	srv     *Server
	addr    string
	filler  *far.ByteMap
	other   *far.Txn // is in the way of the server's
	fields  int
	filled  int
	want    map[string]string
	session *session
}

func newSplitting(t *testing.T, segments int, timeout time.Duration) *splitting {
	store := &faultyStore{MemStore: far.NewMemStore(256<<10, segments)}
	heap, err := far.NewHeap(store, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	srv, addr := startOn(t, heap, Config{Loops: -1, OpTimeout: timeout})
	p := &splitting{t: t, store: store, heap: heap, srv: srv, addr: addr,
		filler: heap.NewByteMap("filler"), other: heap.NewTxn(), session: srv.newSession()}
	t.Cleanup(p.session.close)
	// What is there first is what goes to far memory.
	old := heap.NewByteMap("old")
	for i := range 40 {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		if err := old.Set(ctx, []byte(strconv.Itoa(i)), far.Entry{Value: make([]byte, 60<<10)}); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	return p
}

// do runs a command, which may wait, once.
func (p *splitting) do(args ...string) answer {
	p.t.Helper()
	p.session.Tries = keyspace.MaxTries + 1
	r, err := readReply(bufio.NewReader(bytes.NewReader(p.session.feed([]byte(encode(args...))))))
	if err != nil {
		p.t.Fatalf("%.60q: %v", args, err)
	}
	return r
}

// large is what leads to the blocks of the hash.
func (p *splitting) large() hashes.Large {
	p.t.Helper()
	p.session.LockKey([]byte("h"), false, nil)
	defer p.session.Unlock()
	h := p.session.LargeOf([]byte("h"))
	if h == nil {
		p.t.Fatal("the hash is not large: the test does not test what it should")
	}
	return *h
}

// writes is how many entries have been stored.
func (p *splitting) writes() (n uint64) {
	for _, m := range p.heap.Stats().Maps {
		n += m.Sets
	}
	return n
}

// entries is the map in which the server has its keys.
func (p *splitting) entries() *far.ByteMap {
	m, _ := p.srv.data.Maps()
	return m
}

// field makes a name that no field has had, of a block other than not.
func (p *splitting) field(not uint32) string {
	for {
		p.fields++
		f := "field:" + strconv.Itoa(p.fields)
		if h := p.large(); h.Bucket(p.srv.data.FieldHash([]byte(f))) != not {
			return f
		}
	}
}

// begin makes a new hash of some blocks.
func (p *splitting) begin() {
	p.t.Helper()
	p.do("DEL", "h")
	p.want = map[string]string{}
	args := []string{"HSET", "h"}
	for range 80 {
		p.fields++
		f, v := "field:"+strconv.Itoa(p.fields), strings.Repeat("v", 300)
		args = append(args, f, v)
		p.want[f] = v
	}
	r := p.do(args...)
	for try := 0; try < 20 && strings.HasPrefix(r.line, "-TRYAGAIN"); try++ {
		r = p.do(args...) // 200 ms are short on a busy machine
	}
	if r.line != ":80" {
		p.t.Fatalf("HSET of a new hash: %s", r)
	}
}

// logSegment is a segment of local memory, in a heap of the smallest budget.
const logSegment = 128 << 10

// fill leaves so much room, at the end of a segment of local memory, and none of
// what is set aside for what shrinks.
func (p *splitting) fill(room int) {
	const slack = 64 // more than an entry takes beside its value
	set := func(set func(context.Context, []byte, far.Entry) error, key string, size int) bool {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		return set(ctx, []byte(key), far.Entry{Value: make([]byte, size-slack)}) == nil
	}
	first := p.filled
	for set(p.filler.Set, strconv.Itoa(p.filled), (logSegment-room)/3) {
		p.filled++
	}
	less := func(ctx context.Context, key []byte, e far.Entry) error { return p.other.Set(ctx, p.filler, key, e) }
	for key := first; key < p.filled && set(less, strconv.Itoa(key), logSegment/4); key++ {
	}
}

// empty makes room again, and waits for it.
func (p *splitting) empty() {
	p.other.Rollback()
	p.filler.Clear()
	for i := range 16 {
		eventually(p.t, "room in far memory", func() bool {
			return p.filler.Set(far.NoWait, []byte("room"+strconv.Itoa(i)), far.Entry{Value: make([]byte, 60<<10)}) == nil
		})
	}
	p.filler.Clear()
}

// check checks that clients of both protocols see the hash as it is to be, and
// that the replies to what they send next are the right ones.
func (p *splitting) check(when string) {
	p.t.Helper()
	for _, ver := range []string{"2", "3"} {
		c := dial(p.t, p.addr)
		c.do("HELLO", ver)
		checkFields(p.t, c, "h", when+", RESP"+ver, p.want)
		if got, want := c.words("HLEN h"), fmt.Sprint(":", len(p.want)); got != want {
			p.t.Fatalf("%s: HLEN is %s, want %s", when, got, want)
		}
		c.c.Close()
	}
}

// checkFields checks what the commands say that show all of a hash.
func checkFields(t *testing.T, c *client, key, when string, want map[string]string) {
	t.Helper()
	for _, cmd := range []string{"HGETALL", "HKEYS", "HVALS"} {
		c.send(encode(cmd, key) + encode("PING"))
		r, pong := c.recv(), c.recv()
		if pong.line != "+PONG" {
			t.Fatalf("%s: PING after %s got %.60s: the replies have shifted", when, cmd, pong)
		}
		each := 1
		if cmd == "HGETALL" {
			each = 2
		}
		if len(r.elems) != each*len(want) {
			t.Fatalf("%s: %s has %d elements, want those of %d fields", when, cmd, len(r.elems), len(want))
		}
		if cmd == "HVALS" {
			continue
		}
		got := map[string]string{}
		for i := 0; i < len(r.elems); i += each {
			f := r.elems[i].bulk
			got[f] = want[f]
			if each == 2 {
				got[f] = r.elems[i+1].bulk
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%s: %s has other fields than it should", when, cmd)
		}
	}
}

// conflict makes each change of a block fail, as another transaction does that
// changes it.
func (p *splitting) conflict(block uint32) {
	p.t.Helper()
	h := p.large()
	_, blocks := p.srv.data.Maps()
	e, err := blocks.Get(p.t.Context(), h.Key(block), nil)
	if err == nil {
		err = p.other.Set(p.t.Context(), blocks, h.Key(block), e)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// TestASplitThatFailsHalfwayChangesNothing has the split of a block fail before
// its first write and between its two. The command then has changed nothing, and
// what it had stored already does not come back when the block is split later on.
func TestASplitThatFailsHalfwayChangesNothing(t *testing.T) {
	for _, c := range []struct {
		name     string
		segments int
		timeout  time.Duration
		writes   uint64 // of the command that fails, the first of which is the new field's
		reply    string
	}{
		{"for want of room", 8, testTimeout / 2, 1, "-OOM "},
		{"for want of an answer", 64, 200 * time.Millisecond, 1, "-TRYAGAIN far memory did not answer in time"},
		{"at its second write", 64, testTimeout / 2, 2, "-TRYAGAIN far memory: another transaction"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newSplitting(t, c.segments, c.timeout)
			deadline := time.Now().Add(testTimeout)
			for round := 0; ; round++ {
				if time.Now().After(deadline) {
					t.Fatalf("none of %d commands failed after %d writes", round, c.writes)
				}
				p.begin()
				if c.writes == 1 {
					p.store.deaf.Store(c.segments == 64)
					p.fill(6<<10 + round%12<<10)
				}
				var before hashes.Large
				var from uint32
				var n uint64
				// After a hundred fields of a KiB there was more room than fill left:
				// evacuation was slow and went on after it.
				failed := false
				for i := 0; i < 100 && !failed; i++ {
					before = p.large()
					_, from = before.Level()
					f, v := p.field(from), strings.Repeat("v", 800)
					if c.writes == 2 {
						p.conflict(from)
					}
					sets := p.writes()
					r := p.do("HSET", "h", f, v)
					n = p.writes() - sets
					if failed = r.line != ":1"; !failed {
						p.want[f] = v
					} else if !strings.HasPrefix(r.line, c.reply) {
						t.Fatalf("HSET: got %s, want %s", r, c.reply)
					}
					if !failed && c.writes == 2 {
						p.other.Rollback()
					}
				}
				p.store.deaf.Store(false)
				p.empty()
				p.check("after the failure")
				if !failed || n != c.writes {
					continue // it failed at another write, or not at all
				}
				for f := range maps.Clone(p.want) {
					if before.Bucket(p.srv.data.FieldHash([]byte(f))) == from {
						if r := p.do("HDEL", "h", f); r.line != ":1" {
							t.Fatalf("HDEL: got %s", r)
						}
						delete(p.want, f)
					}
				}
				for h := p.large(); h.Buckets < before.Buckets+2; h = p.large() {
					f, v := p.field(from), strings.Repeat("w", 300)
					if r := p.do("HSET", "h", f, v); r.line != ":1" {
						t.Fatalf("HSET while there is room: got %s", r)
					}
					p.want[f] = v
				}
				p.check("when the block was split later on")
				return
			}
		})
	}
}

// TestAReplyIsAsLongAsItsContents has a count of fields be wrong: the replies that
// show a hash whole go by what they show.
func TestAReplyIsAsLongAsItsContents(t *testing.T) {
	p := newSplitting(t, 64, testTimeout)
	p.begin()
	for _, wrong := range []int{1, -2} {
		p.session.LockKey([]byte("h"), true, nil)
		h := p.session.LargeOf([]byte("h"))
		right := h.Count
		h.Count += wrong
		p.session.Unlock()
		for _, ver := range []string{"2", "3"} {
			c := dial(t, p.addr)
			c.do("HELLO", ver)
			checkFields(t, c, "h", fmt.Sprintf("the count is off by %d, RESP%s", wrong, ver), p.want)
		}
		p.session.LockKey([]byte("h"), true, nil)
		h.Count = right
		p.session.Unlock()
	}
}

// TestAFailedCommandTakesBackNothingOfOthers has a client look at a hash for a field to delete,
// which is not there. Another client changes the hash. Then a command of the first one fails,
// and what it takes back is its own change, not the other client's.
func TestAFailedCommandTakesBackNothingOfOthers(t *testing.T) {
	p := newSplitting(t, 64, time.Second)
	p.begin()
	first := dial(t, p.addr)
	expect(t, first, "HDEL h none", ":0")
	for i := range 400 { // by another client
		f := "later:" + strconv.Itoa(i)
		p.want[f] = strings.Repeat("w", 200)
		if r := p.do("HSET", "h", f, p.want[f]); r.line != ":1" {
			t.Fatalf("HSET: got %s", r)
		}
	}
	if err := p.other.Set(t.Context(), p.entries(), []byte("h"), far.Entry{Tag: keyspace.TagLarge}); err != nil {
		t.Fatal(err)
	}
	if r := first.do("RENAME", "h", "new"); !strings.HasPrefix(r.line, "-TRYAGAIN") {
		t.Fatalf("RENAME while the entry cannot change: got %s", r)
	}
	p.other.Rollback()
	expect(t, first, "HLEN h", fmt.Sprint(":", len(p.want)))
	checkFields(t, first, "h", "after a failed RENAME", p.want)
}

// TestARenameThatFailsLeavesBothNames has each of the two changes of a RENAME
// fail: that of the old name and that of the new one, which is also a hash.
func TestARenameThatFailsLeavesBothNames(t *testing.T) {
	p := newSplitting(t, 64, testTimeout)
	p.begin()
	if r := p.do("COPY", "h", "taken"); r.line != ":1" {
		t.Fatalf("COPY: got %s", r)
	}
	if r := p.do("HSET", "taken", "more", "1"); r.line != ":1" {
		t.Fatalf("HSET: got %s", r)
	}
	taken := maps.Clone(p.want)
	taken["more"] = "1"
	c := dial(t, p.addr)
	blocks := p.srv.Stats().HashBlocks
	for _, fails := range []string{"h", "taken", "new"} {
		if err := p.other.Set(t.Context(), p.entries(), []byte(fails), far.Entry{Tag: keyspace.TagLarge}); err != nil {
			t.Fatal(err)
		}
		names := []string{fails}
		if fails == "h" {
			names = []string{"taken", "new"}
		}
		for _, name := range names {
			if r := c.do("RENAME", "h", name); !strings.HasPrefix(r.line, "-TRYAGAIN far memory: another transaction") {
				t.Errorf("RENAME to %s while %s cannot change: got %s", name, fails, r)
			}
		}
		p.other.Rollback()
		when := "after a change of " + fails + " failed"
		checkFields(t, c, "h", when, p.want)
		checkFields(t, c, "taken", when, taken)
		expect(t, c, "EXISTS new", ":0")
		if got := p.srv.Stats(); got.HashBlocks != blocks || got.LargeHashes != 2 || got.Keys != 2 {
			t.Errorf("%s: %d blocks of %d large hashes under %d keys, want %d of 2 under 2", when, got.HashBlocks, got.LargeHashes, got.Keys, blocks)
		}
	}
	expect(t, c, "RENAME h new", "+OK")
	checkFields(t, c, "new", "after the rename", p.want)
	expect(t, c, "EXISTS h", ":0")
	expect(t, c, "RENAME new taken", "+OK")
	checkFields(t, c, "taken", "after the rename", p.want)
	expect(t, c, "HDEL taken more", ":0")
	eventually(t, "the end of the blocks of what was replaced", func() bool { st := p.srv.Stats(); return st.HashBlocks < blocks && st.LargeHashes == 1 })
}

// fillAll fills the store until nothing more goes in, however small.
func (p *splitting) fillAll() {
	p.t.Helper()
	p.untilFull(30<<10, func(key []byte, e far.Entry) error { return p.filler.Set(p.t.Context(), key, e) }, &p.filled)
}

// untilFull sets values of a size, then smaller ones, until there is no room in any of the
// segments that are being filled. It counts the keys in n.
func (p *splitting) untilFull(size int, set func(key []byte, e far.Entry) error, n *int) {
	p.t.Helper()
	for ; size > 0; size /= 8 {
		for failed := 0; failed < 32; *n++ {
			if err := set([]byte(strconv.Itoa(*n)), far.Entry{Value: make([]byte, size)}); errors.Is(err, far.ErrFull) {
				failed++
			} else if err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// hset gives h fields and values of the size, and remembers them.
func (p *splitting) hset(from, to, size int) {
	p.t.Helper()
	for at := from; at < to; at += 500 {
		args := []string{"HSET", "h"}
		n := min(at+500, to)
		for i := at; i < n; i++ {
			f, v := "field:"+strconv.Itoa(i), strings.Repeat("v", size)
			args = append(args, f, v)
			p.want[f] = v
		}
		if r := p.do(args...); r.line != fmt.Sprint(":", n-at) {
			p.t.Fatalf("HSET: got %s", r)
		}
	}
}

// oneOfEach returns a field of every block.
func (p *splitting) oneOfEach() (fields []string) {
	h := p.large()
	seen := map[uint32]bool{}
	for _, f := range slices.Sorted(maps.Keys(p.want)) {
		if b := h.Bucket(p.srv.data.FieldHash([]byte(f))); !seen[b] {
			seen[b] = true
			fields = append(fields, f)
		}
	}
	return fields
}

func (p *splitting) struck() int { return struckIn(p.session, "h") }

// allStored waits until everything is stored without what is struck out of it. There are hundreds
// of blocks, and a busy machine may take its time for each.
func (p *splitting) allStored() {
	p.t.Helper()
	for n := p.struck(); n > 0; n = p.struck() {
		eventually(p.t, fmt.Sprintf("less than %d to be struck out", n), func() bool { return p.struck() < n })
	}
}

// struckIn is how many fields are struck out of the hashes under keys.
func struckIn(s *session, keys ...string) (n int) {
	for _, key := range keys {
		s.LockKey([]byte(key), false, nil)
		n += s.StruckOut([]byte(key)).Len()
		if h := s.LargeOf([]byte(key)); h != nil {
			n += h.Struck.Len()
		}
		s.Unlock()
	}
	return n
}

// TestAnyNumberOfFieldsIsDeletedFromAFullServer has a hash of hundreds of blocks lose
// a field of each in one command, and in one of a transaction. What is left of the blocks is far
// more than is kept for it beside them.
func TestAnyNumberOfFieldsIsDeletedFromAFullServer(t *testing.T) {
	p := newSplitting(t, 20, testTimeout/2)
	p.want = map[string]string{}
	p.hset(0, 5000, 250)
	p.fillAll()
	gone := p.oneOfEach()
	if len(gone) < 200 {
		t.Fatalf("there are %d blocks: they fit into what is kept for them", len(gone))
	}
	if r := p.do(append([]string{"HDEL", "h", "none"}, gone...)...); r.line != fmt.Sprint(":", len(gone)) {
		t.Fatalf("HDEL of a field of each of %d blocks: got %s", len(gone), r)
	}
	for _, f := range gone {
		delete(p.want, f)
	}
	p.check("after HDEL")
	p.allStored()

	p.fillAll()
	gone = p.oneOfEach()
	again, kept := gone[0], ""
	for f := range p.want {
		if kept = f; !slices.Contains(gone, f) {
			break
		}
	}
	p.do("MULTI")
	p.do(append([]string{"HDEL", "h"}, gone...)...)
	p.do("SET", "new", strings.Repeat("v", 1<<20))
	if r := p.do("EXEC"); !strings.HasPrefix(r.line, "-OOM ") {
		t.Fatalf("EXEC of HDEL and a SET for which there is no room: got %s", r)
	}
	p.check("when the transaction has failed")
	p.do("MULTI")
	p.do(append([]string{"HDEL", "h"}, gone...)...)
	p.do("HMGET", "h", again, kept)
	p.do("HLEN", "h")
	p.do("HDEL", "h", again, kept)
	p.do("HGET", "h", kept)
	want := fmt.Sprintf("[:%d [nil %q] :%d :1 nil]", len(gone), p.want[kept], len(p.want)-len(gone))
	delete(p.want, kept)
	if r := p.do("EXEC"); r.String() != want {
		t.Fatalf("EXEC: got %.200s, want %.200s", r, want)
	}
	for _, f := range gone {
		delete(p.want, f)
	}
	p.check("after EXEC")
	p.allStored()
	p.check("when all is stored")
	if r := p.do("DEL", "h"); r.line != ":1" {
		t.Errorf("DEL: got %s", r)
	}
}

// smallHashes is more hashes than what is kept in a full store for what is left of them.
const smallHashes = 60

func smallHash(i int) string { return "small" + strconv.Itoa(i) }

func (p *splitting) makeSmallHashes() {
	p.t.Helper()
	for i := range smallHashes {
		if r := p.do("HSET", smallHash(i), "a", strings.Repeat("a", 7000), "b", "b", "c", strings.Repeat("c", 7000)); r.line != ":3" {
			p.t.Fatalf("HSET: got %s", r)
		}
	}
}

// TestHashesOfAFullServerShrinkInOneTransaction has a transaction take a field from each of
// many hashes.
func TestHashesOfAFullServerShrinkInOneTransaction(t *testing.T) {
	p := newSplitting(t, 20, testTimeout/2)
	p.makeSmallHashes()
	p.fillAll()
	for _, round := range []struct{ field, left string }{{"b", "[\"a\" \"c\"]"}, {"a", "[\"c\"]"}} {
		p.do("MULTI")
		for i := range smallHashes {
			p.do("HDEL", smallHash(i), "none", round.field)
		}
		p.do("DEL", smallHash(smallHashes/2))
		p.do("HSET", smallHash(0), "a", strings.Repeat("a", 1<<19))
		if r := p.do("EXEC"); !strings.HasPrefix(r.line, "-OOM ") {
			t.Fatalf("EXEC that stores half a MiB: got %s", r)
		}
		if r := p.do("HEXISTS", smallHash(0), round.field); r.line != ":1" {
			t.Fatalf("HEXISTS when the transaction has failed: got %s", r)
		}
		p.do("MULTI")
		for i := range smallHashes {
			p.do("HDEL", smallHash(i), "none", round.field)
			p.do("HKEYS", smallHash(i))
		}
		r := p.do("EXEC")
		if len(r.elems) != 2*smallHashes {
			t.Fatalf("EXEC: got %s", r)
		}
		for i := range smallHashes {
			if n, left := r.elems[2*i].line, r.elems[2*i+1].String(); n != ":1" || left != round.left {
				t.Errorf("HDEL %s, HKEYS: got %s, %s, want :1, %s", round.field, n, left, round.left)
			}
			if got := p.do("HKEYS", smallHash(i)).String(); got != round.left {
				t.Errorf("HKEYS after EXEC: got %s, want %s", got, round.left)
			}
		}
		p.allStored()
	}
	if st := p.srv.Stats(); st.LargeHashes != 0 {
		t.Errorf("there are %d large hashes, want none", st.LargeHashes)
	}
}

// TestWhatIsStruckOutStaysOut has a full server unable to store what is left of a hash even
// when the transaction has ended, and does with it all that can be done with a hash.
func TestWhatIsStruckOutStaysOut(t *testing.T) {
	for _, large := range []bool{false, true} {
		t.Run(fmt.Sprint("large: ", large), func(t *testing.T) {
			p := newSplitting(t, 24, testTimeout/2)
			p.makeSmallHashes()
			p.want = map[string]string{}
			var fields []string // of one block
			if large {
				p.begin()
				h, blocks := p.large(), map[uint32][]string{}
				for f := range p.want {
					b := h.Bucket(p.srv.data.FieldHash([]byte(f)))
					blocks[b] = append(blocks[b], f)
				}
				fullest := uint32(0)
				for b := range blocks {
					if len(blocks[b]) > len(blocks[fullest]) {
						fullest = b
					}
				}
				p.conflict(fullest)
				fields = blocks[fullest]
			} else {
				p.hset(0, 60, 20)
				e, err := p.entries().Get(t.Context(), []byte("h"), nil)
				if err == nil {
					err = p.other.Set(t.Context(), p.entries(), []byte("h"), e)
				}
				if err != nil {
					t.Fatal(err)
				}
				fields = slices.Collect(maps.Keys(p.want))
			}
			slices.Sort(fields)
			// The cleaner may make room meanwhile. Then the list is stored, which another
			// transaction forbids, and nothing has changed: the server is filled again.
			for tries := 0; ; tries++ {
				p.fillAll()
				p.do("MULTI")
				for i := range smallHashes {
					p.do("HDEL", smallHash(i), "a")
				}
				p.do("HDEL", "h", fields[1], fields[3])
				r := p.do("EXEC")
				if strings.HasPrefix(r.line, "-TRYAGAIN far memory: another transaction") && tries < 50 {
					continue
				}
				if len(r.elems) != smallHashes+1 || r.elems[smallHashes].line != ":2" {
					t.Fatalf("EXEC: got %.300s", r)
				}
				break
			}
			delete(p.want, fields[1])
			delete(p.want, fields[3])
			if got := p.struck(); got != 2 {
				t.Fatalf("%d fields are struck out, want 2", got)
			}
			p.check("while fields are struck out")
			p.empty()
			set := func(f, v string) {
				t.Helper()
				n := ":1"
				if _, there := p.want[f]; there {
					n = ":0"
				}
				if r := p.do("HSET", "h", f, v); r.line != n {
					t.Fatalf("HSET: got %s, want %s", r, n)
				}
				p.want[f] = v
			}
			for _, cmd := range [][]string{{"COPY", "h", "copy"}, {"RENAME", "h", "x"}, {"RENAME", "x", "h"}, {"PEXPIRE", "h", "10000000"}, {"PERSIST", "h"}} {
				if r := p.do(cmd...); r.line[0] == '-' || r.line == ":0" {
					t.Fatalf("%q: got %s", cmd, r)
				}
			}
			p.check("after COPY, RENAME and PEXPIRE")
			set(fields[0], "new")
			set(fields[1], "again")
			p.check("after HSET")
			p.allStored()
			p.check("when all is stored")
			p.do("RENAME", "copy", "h")
			for _, f := range []string{fields[0], fields[1]} {
				delete(p.want, f)
			}
			p.want[fields[0]] = p.do("HGET", "h", fields[0]).bulk
			p.check("of the copy")
		})
	}
}
