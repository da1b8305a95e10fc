package pool_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"polder/internal/invariants"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/baseline"
	"polder/pool/finemem"
	"polder/pool/manager"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
	"polder/verbs"
)

var update = flag.Bool("update", false, "write the table of attacks into docs/security.md")

// attacked are the managers that the attacks are run against.
var attacked = []pool.Manager{
	rpcmw.Manager{},
	baseline.RPCMW1{},
	baseline.FineMR{},
	baseline.StaticMR{},
	baseline.ODRP{},
	onesided.Manager{},
	onesided.Manager{Native: true},
	finemem.Manager{},
}

// An attack is something that a malicious client does, and what comes of it.
type attack struct {
	name string
	run  func(*scene) outcome
	// breaks names the managers that are known not to withstand it.
	breaks []string
}

// outcome is what an attacker got. It is the same in every run.
type outcome struct {
	got  string
	rule string // that stopped it
	// harm: it got at what is another's.
	harm bool
	none bool // the attack makes no sense against this manager
}

const type1 = wire.RPCMW1

var attacks = []attack{
	{"reads a neighbour's chunk with keys guessed from its own", guessedKey, []string{type1}},
	{"reads a neighbour's chunk with its stolen key", stolenKey(verbs.OpRead), []string{type1, finemem.Name}},
	{"adds to a word of a neighbour's chunk with its stolen key", stolenKey(verbs.OpFetchAdd), []string{type1, finemem.Name}},
	{"tries all 256 keys of a chunk that it has freed and another has borrowed", enumerate, []string{type1}},
	{"reads what it has freed, and another has borrowed, with the old key", staleKey, nil},
	{"reads its own chunk through a queue pair of another connection", otherQueuePair, nil},
	{"reads over the end of its chunk", outside(attackChunk - 4), nil},
	{"reads before the beginning of its chunk", outside(-4), nil},
	{"reads at an address that wraps around", wrapping, nil},
	{"frees a neighbour's chunk", freeForeign, nil},
	{"frees a chunk that there is not", freeForged, nil},
	{"frees its chunk twice", freeTwice, nil},
	{"frees its chunk and a neighbour's in one request", freeMixed, nil},
	{"asks for chunks without a queue pair to open them to", allocNowhere, nil},
	{"names queue pairs in an allocation that are not its own", strangeQueuePairs, nil},
	{"has the answer to an allocation written where it may not", strangeDestination, nil},
	{"sends its chains addresses of entries that are not its own", strangeEntries, nil},
	{"frees a page that it is being sent, and takes no answer", freeUnderway, nil},
	{"reads and writes the node's own registrations, whose keys and addresses it knows, through every queue pair it has", structures, nil},
	{"borrows until there is nothing more", exhaust, nil},
	{"sends more requests than it has credits", flood, nil},
	{"sends malformed requests", malformed, nil},
	{"claims a neighbour's session without its secret", stealSession, nil},
	{"replays the bytes of a neighbour's connection", replay, nil},
	{"sends packets twice, with checksums that are right", duplicatePackets, nil},
	{"sends packets with random bytes changed, with checksums that are right", mutatePackets, nil},
	{"sends bytes that are no packets", garbage, nil},
}

// Every attack, against every manager, gets what docs/security.md says, and
// nobody but the attacker notices.
func TestAttack(t *testing.T) {
	table, ran, against := &attackTable{}, 0, attacked
	if invariants.Enabled {
		against = attacked[len(attacked)-2:] // the default one and another; "make plain" has them all
	}
	for _, a := range attacks {
		for _, m := range against {
			t.Run(a.name+"/"+m.Name(), func(t *testing.T) {
				ran++
				s := newScene(t, pooltest.TCP, m)
				o := a.run(s)
				if o.none {
					return
				}
				if want := slices.Contains(a.breaks, m.Name()); o.harm != want {
					t.Errorf("got: %s (harm: %v, want %v)", o.got, o.harm, want)
				}
				s.check(secret)
				table.add(a.name, m.Name(), o)
			})
		}
	}
	if t.Failed() {
		return
	}
	t.Logf("what attacks on %d managers got:\n%s", len(against), table)
	if ran == len(attacks)*len(attacked) {
		table.compare(t)
	}
}

func refused(rule string) outcome {
	return outcome{got: "remote access error; its queue pair is broken", rule: rule}
}

// apart is the rule that keeps another's queue pairs from a chunk.
func (s *scene) apart() string {
	switch s.manager.Name() {
	case wire.RPCMW1, finemem.Name:
		return "none: a window of type 1 serves every queue pair"
	case wire.FineMR, wire.StaticMR:
		return "a chunk is registered in the borrower's own protection domain"
	case wire.ODRP:
		return "a chain translates by the client's own table, which has the client's own pages"
	}
	return "a window of type 2B serves the borrower's queue pair only"
}

// access is the outcome of one access to what is another's.
func (s *scene) access(data []byte, status verbs.Status) outcome {
	s.t.Helper()
	switch {
	case status == verbs.StatusRemAccessErr:
		return refused(s.apart())
	case s.manager.Name() == wire.ODRP && status == verbs.StatusWRFlushErr:
		return outcome{got: "nothing; its connection is cut", rule: s.apart()}
	case status != verbs.StatusSuccess:
		s.t.Fatalf("got %v", status)
	case s.manager.Name() == wire.ODRP && bytes.Equal(data, make([]byte, len(data))):
		return outcome{got: "an empty page of its own", rule: s.apart()}
	}
	if !bytes.Equal(data, secret) && !bytes.Equal(data, newSecret) {
		s.t.Fatalf("got %q", data)
	}
	return outcome{got: "the other's data", rule: s.apart(), harm: true}
}

func guessedKey(s *scene) outcome {
	if s.manager.Name() == wire.ODRP { // no keys
		return outcome{none: true}
	}
	for distance := uint32(1); distance <= 12; distance++ {
		for _, index := range []uint32{s.mine.Keys[0].Index() - distance, s.mine.Keys[0].Index() + distance} {
			g := s.theirs
			g.Keys[0] = verbs.MakeRKey(index, s.mine.Keys[0].Key())
			data, status := s.attacker.read(g, len(secret))
			if status == verbs.StatusSuccess {
				return s.access(data, status)
			}
			s.again()
		}
	}
	return refused(s.unguessed())
}

// unguessed is the rule that keeps who guesses keys from a chunk.
func (s *scene) unguessed() string {
	if s.manager.Name() == finemem.Name {
		return "a window and its key are drawn at random for every borrower"
	}
	return s.apart()
}

func stolenKey(op verbs.Opcode) func(*scene) outcome {
	return func(s *scene) outcome {
		if op == verbs.OpRead {
			return s.access(s.attacker.read(s.theirs, len(secret)))
		}
		// A word that the neighbour does not look at.
		status := s.attacker.one(verbs.SendWR{Op: op, RemoteAddr: s.theirs.Addr + 512, RKey: s.theirs.Keys[0], Swap: 1}, 8)
		if s.manager.Name() == wire.ODRP { // a page of its own, if any
			return s.access(s.attacker.read(s.theirs, len(secret)))
		}
		return s.access(secret, status)
	}
}

func enumerate(s *scene) outcome {
	if s.manager.Name() == wire.ODRP { // no keys
		return outcome{none: true}
	}
	old := s.mine
	if err := s.attacker.free(old.Chunk); err != nil {
		s.t.Fatal(err)
	}
	s.handOver(old.Chunk)
	for key := range 256 {
		g := old
		g.Keys[0] = verbs.MakeRKey(old.Keys[0].Index(), uint8(key))
		data, status := s.attacker.read(g, len(newSecret))
		if status == verbs.StatusSuccess {
			return s.access(data, status)
		}
		s.again()
	}
	return refused(s.unguessed())
}

func staleKey(s *scene) outcome {
	if err := s.attacker.free(s.mine.Chunk); err != nil {
		s.t.Fatal(err)
	}
	s.handOver(s.mine.Chunk)
	o := s.access(s.attacker.read(s.mine, len(newSecret)))
	if s.manager.Name() != wire.ODRP {
		o.rule = "a chunk changes hands under a new key only"
	}
	return o
}

func otherQueuePair(s *scene) outcome {
	s.attacker.write(s.mine, secret)
	other := s.join()
	s.extras = append(s.extras, other)
	o := s.access(other.read(s.mine, len(secret)))
	if o.harm {
		o.got, o.harm = "its own data", false
	}
	return o
}

func outside(off int64) func(*scene) outcome {
	return func(s *scene) outcome {
		g := s.mine
		g.Addr += uint64(off)
		data, status := s.attacker.read(g, 8)
		if status == verbs.StatusSuccess && s.boundless() {
			return outcome{got: "what lies there", rule: "none: the device checks windows, not their bounds", harm: true}
		}
		return s.bounds(s.access(data, status))
	}
}

func wrapping(s *scene) outcome {
	g := s.mine
	g.Addr = ^uint64(0) - 3
	return s.bounds(s.access(s.attacker.read(g, 8)))
}

// boundless reports whether chunks are windows on a device that does not check
// their bounds.
func (s *scene) boundless() bool {
	name := s.manager.Name()
	return (strings.HasPrefix(name, wire.RPCMW) || name == finemem.Name) && !s.attacker.dev.Attr().BoundsMW
}

// bounds is o, with the rule that keeps a client within its chunk.
func (s *scene) bounds(o outcome) outcome {
	if s.manager.Name() != wire.ODRP {
		o.rule = "bounds are checked on every access"
	}
	return o
}

// notFreed is the outcome of a free that must not succeed.
func (s *scene) notFreed(lent int64, err error) outcome {
	s.t.Helper()
	if got := s.cluster.Nodes[0].Stats().Lent; got != lent {
		s.t.Errorf("%d chunks are lent, want %d", got, lent)
	}
	switch {
	case err == nil:
		return outcome{got: "it is freed", harm: true}
	case errors.Is(err, manager.ErrRefused):
		return outcome{got: "a refusal", rule: "a request frees chunks of the client's own or nothing"}
	}
	s.t.Fatalf("got %v", err)
	return outcome{}
}

// trusting reports whether clients are trusted with the node's metadata: what they
// may allocate and free is for themselves to check.
func (s *scene) trusting() bool { return s.manager.Name() == finemem.Name }

func freeForeign(s *scene) outcome {
	if s.trusting() {
		return outcome{none: true}
	}
	if s.oneSided() {
		return s.rawFrees(func(c *clerk) []uint64 { return []uint64{c.entry(s.theirs.Chunk)} })
	}
	lent := s.cluster.Nodes[0].Stats().Lent
	return s.notFreed(lent, s.attacker.free(s.theirs.Chunk))
}

func freeForged(s *scene) outcome {
	if s.trusting() {
		return outcome{none: true}
	}
	if s.oneSided() {
		return s.rawFrees(func(c *clerk) []uint64 {
			table := c.entry(0)
			return []uint64{c.entry(attackChunks), table + 8, table - 8, 0, ^uint64(0), table + 1<<20, s.mine.Addr}
		})
	}
	lent := s.cluster.Nodes[0].Stats().Lent
	var o outcome
	for _, chunk := range []uint32{attackChunks, 1 << 31, 1<<32 - 1} {
		o = s.notFreed(lent, s.attacker.free(chunk))
	}
	return o
}

func freeTwice(s *scene) outcome {
	if s.trusting() {
		return outcome{none: true}
	}
	if s.oneSided() {
		return rawFreeTwice(s)
	}
	lent := s.cluster.Nodes[0].Stats().Lent
	s.notFreed(lent, s.attacker.free(s.mine.Chunk, s.mine.Chunk))
	if err := s.attacker.free(s.mine.Chunk); err != nil {
		s.t.Fatal(err)
	}
	return s.notFreed(lent-1, s.attacker.free(s.mine.Chunk))
}

func freeMixed(s *scene) outcome {
	if s.trusting() {
		return outcome{none: true}
	}
	if s.oneSided() { // a request names one
		return outcome{none: true}
	}
	lent := s.cluster.Nodes[0].Stats().Lent
	return s.notFreed(lent, s.attacker.free(s.mine.Chunk, s.theirs.Chunk))
}

func allocNowhere(s *scene) outcome {
	lent := s.cluster.Nodes[0].Stats().Lent
	for _, r := range s.manage(wire.AppendRequest(nil, wire.OpAlloc, 1, 3, 0)) {
		if r.Status != wire.StatusNoAccess && (!s.oneSided() || r.Status != wire.StatusBad) {
			s.t.Fatalf("got %v", r.Status)
		}
	}
	if got := s.cluster.Nodes[0].Stats().Lent; got != lent {
		return outcome{got: "chunks", harm: true}
	}
	if s.oneSided() {
		return outcome{got: "a refusal", rule: "chunks are not to be had by messages"}
	}
	return outcome{got: "a refusal", rule: "chunks are opened to the queue pair that the node made for the connection"}
}

func structures(s *scene) outcome {
	dev := s.node.dev
	dev.mu.Lock()
	regions, windows := slices.Clone(dev.regions), slices.Clone(dev.windows)
	dev.mu.Unlock()
	qps := len(s.attacker.conn.hellos)
	try := func(op verbs.Opcode, addr uint64, key verbs.RKey, k int) (o outcome, ok bool) {
		b, qps, answers := s.raw()
		defer b.close()
		var m wire.Metadata
		if s.trusting() && m.Decode(answers[k]) == nil && m.Key == key {
			return o, false // it has been told to use that, and to others it is shut
		}
		if b.poke(qps[k], verbs.SendWR{Op: op, RemoteAddr: addr, RKey: key}) != verbs.StatusSuccess {
			return o, false
		}
		return outcome{got: fmt.Sprintf("%v at %#x with key %v through queue pair %d", op, addr, key, k), harm: true}, true
	}
	for i, region := range regions {
		if isChunk(region, regions) { // other attacks try that
			continue
		}
		for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpWrite, verbs.OpFetchAdd} {
			for k := range qps {
				if o, ok := try(op, region.Addr(), region.RKey(), k); ok {
					return o
				}
			}
		}
		if len(region.Bytes()) == attackChunk*attackChunks { // windows on chunks are meant to be there
			continue
		}
		for j, w := range windows {
			if o, ok := try(verbs.OpRead, region.Addr(), w.RKey(), (i+j)%qps); ok {
				return o
			}
		}
	}
	return refused("what is registered for the node's own use grants its clients nothing")
}

// isChunk reports whether a region is a chunk of the memory that is lent.
func isChunk(region verbs.MR, regions []verbs.MR) bool {
	if len(region.Bytes()) != attackChunk {
		return false
	}
	for _, r := range regions {
		for off := 0; len(r.Bytes()) == attackChunk*attackChunks && off < len(r.Bytes()); off += attackChunk {
			if &r.Bytes()[off] == &region.Bytes()[0] {
				return true
			}
		}
	}
	return false
}

func exhaust(s *scene) outcome {
	if s.trusting() {
		return outcome{none: true}
	}
	if s.oneSided() {
		return rawExhaust(s)
	}
	n := 1 // it has one
	for {
		_, err := s.attacker.tryAlloc()
		if errors.Is(err, manager.ErrNoMemory) {
			break
		}
		if err != nil {
			s.t.Fatal(err)
		}
		n++
	}
	if n != attackBudget {
		return outcome{got: fmt.Sprintf("%d chunks", n), harm: true}
	}
	return outcome{got: "its budget", rule: "a client has a budget"}
}

func flood(s *scene) outcome {
	b, qps, _ := s.raw()
	defer b.close()
	n := copy(b.mr.Bytes(), wire.AppendRequest(nil, wire.OpOwned, 1, 1, 0))
	var wrs []verbs.SendWR
	for range 64 {
		wrs = append(wrs, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{Addr: b.mr.Addr(), Length: uint32(n), LKey: b.mr.LKey()}}})
	}
	if err := qps[0].PostSend(wrs...); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	select {
	case <-b.conn.Done():
	case <-ctx.Done():
		return outcome{got: "an answer to each", harm: true}
	}
	return outcome{got: "its connection is cut", rule: "as many receives are posted as a client has credits"}
}

func malformed(s *scene) outcome {
	alloc := wire.AppendRequest(nil, wire.OpAlloc, 5, 1, 0)
	bad := [][]byte{
		append([]byte{99}, alloc[1:]...),
		append([]byte{0xff}, alloc[1:]...),
		wire.AppendRequest(nil, wire.OpAlloc, 5, 0, 0),
		wire.AppendRequest(nil, wire.OpAlloc, 5, 65535, 0),
		wire.AppendRequest(nil, wire.OpFree, 5, 3, 0),
		append(bytes.Clone(alloc), 1, 2, 3),
		make([]byte, wire.MaxMessage),
	}
	replies := s.manage(append(bad, []byte("short"))...)
	if len(replies) != len(bad) {
		s.t.Fatalf("got %d answers, want %d", len(replies), len(bad))
	}
	for i, r := range replies {
		if r.Status != wire.StatusBad {
			s.t.Errorf("request %d: got %v, want %v", i, r.Status, wire.StatusBad)
		}
	}
	return outcome{got: "refusals, and its connection is cut", rule: "a request is decoded whole before it is executed"}
}

func stealSession(s *scene) outcome {
	want := s.victim.session.Info().Session
	want.Secret[0] ^= 1
	thief := s.dial(s.cluster.Nodes[0].Addr)
	defer thief.close()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := thief.attach(ctx, want); err != nil {
		s.t.Fatal(err)
	}
	owned, err := thief.session.Owned(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	if thief.session.Info().Resumed || len(owned) > 0 {
		return outcome{got: "the session", harm: true}
	}
	return outcome{got: "a new session, which owns nothing", rule: "a session is known by 32 random bytes"}
}

// overhear returns what a neighbour says that writes old data, and then new.
func (s *scene) overhear() []byte {
	s.t.Helper()
	p := newTap(s.t, s.cluster.Nodes[0].Addr)
	b := s.dial(p.l.Addr().String())
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := b.attach(ctx, wire.Session{}); err != nil {
		s.t.Fatal(err)
	}
	g := b.alloc()
	b.write(g, secret)
	b.read(g, 100)
	if err := b.free(g.Chunk); err != nil {
		s.t.Fatal(err)
	}
	b.close()
	<-p.done
	return p.said.Bytes()
}

func replay(s *scene) outcome {
	said := s.overhear()
	for range 3 {
		utter(s.t, s.cluster.Nodes[0].Addr, said)
	}
	return outcome{
		got:  "a new session, and packets that are dropped",
		rule: "a packet reaches queue pairs of its own connection only",
	}
}

func duplicatePackets(s *scene) outcome {
	hello, list := frames(s.overhear())
	for i := range list {
		twice := slices.Insert(slices.Clone(list), i, list[i])
		utter(s.t, s.cluster.Nodes[0].Addr, stream(hello, twice))
	}
	return outcome{got: "its queue pair is broken, or its connection cut", rule: "packets have the next sequence number, or break the queue pair"}
}

func mutatePackets(s *scene) outcome {
	hello, list := frames(s.overhear())
	r := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		bad := slices.Clone(list)
		i := r.IntN(len(bad))
		bad[i] = bytes.Clone(bad[i])
		for range 1 + r.IntN(4) {
			bad[i][r.IntN(len(bad[i]))] = byte(r.Uint32())
		}
		utter(s.t, s.cluster.Nodes[0].Addr, stream(hello, bad))
	}
	return outcome{got: "its queue pair is broken, or its connection cut", rule: "a packet is decoded whole, and every key, address and length in it is checked"}
}

func garbage(s *scene) outcome {
	said := s.overhear()
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 40 {
		b := bytes.Clone(said[:r.IntN(len(said))])
		if i%2 == 0 {
			for k := range b {
				b[k] = byte(r.Uint32())
			}
		}
		utter(s.t, s.cluster.Nodes[0].Addr, b)
	}
	return outcome{got: "its connection is cut", rule: "a stream begins with a hello, and a frame has a checksum"}
}

// attackTable is what the attacks got: a row for every attack and outcome, with
// the managers that it was the same for.
type attackTable struct{ rows []*attackRow }

type attackRow struct {
	attack   string
	managers []string
	outcome  outcome
}

func (t *attackTable) add(name, manager string, o outcome) {
	for _, r := range t.rows {
		if r.attack == name && r.outcome.got == o.got && r.outcome.rule == o.rule {
			r.managers = append(r.managers, manager)
			return
		}
	}
	t.rows = append(t.rows, &attackRow{name, []string{manager}, o})
}

func (t *attackTable) String() string {
	var b strings.Builder
	b.WriteString("| a malicious client … | against | gets | stopped by |\n|---|---|---|---|\n")
	for _, r := range t.rows {
		against := strings.Join(r.managers, ", ")
		if len(r.managers) == len(attacked) {
			against = "all"
		}
		got := r.outcome.got
		if r.outcome.harm {
			got = "**" + got + "**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.attack, against, got, r.outcome.rule)
	}
	return b.String()
}

// Where the table stands in the page.
const (
	securityPage = "../docs/security.md"
	tableBegins  = "<!-- attacks -->\n"
	tableEnds    = "<!-- end of attacks -->\n"
)

// compare checks that the page has the same table.
func (t *attackTable) compare(tb testing.TB) {
	tb.Helper()
	page, err := os.ReadFile(securityPage)
	if err != nil {
		tb.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(page), tableBegins)
	_, after, ok2 := strings.Cut(rest, tableEnds)
	if !ok1 || !ok2 {
		tb.Fatalf("%s has no place for the table", securityPage)
	}
	want := before + tableBegins + t.String() + tableEnds + after
	if want == string(page) {
		return
	}
	if !*update {
		tb.Fatalf("%s has another table; run the test with -update", securityPage)
	}
	if err := os.WriteFile(securityPage, []byte(want), 0o644); err != nil {
		tb.Fatal(err)
	}
}
