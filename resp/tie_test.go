package resp

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"polder/partition"
	"polder/resp/forward"
	"polder/resp/reply"
)

// script is commands, each with its reply. K is a key at another server, X one of the same slot, O one of another slot there, H one that
// is here. What begins with ! another client says at the server that has K.
type script [][2]string

// TestAPlainClientWatchesAtAnotherServer as it does at one that is alone.
func TestAPlainClientWatchesAtAnotherServer(t *testing.T) {
	c := startCluster(t, 2, 4, roomy/8)
	k := c.keyIn(1, "k")
	names := strings.NewReplacer(" K", " "+k, " X", " {"+k+"}x", " O", " "+c.keyIn(3, "o"), " H", " "+c.keyIn(0, "h"))
	crossed, aborted := "-"+string(errCrossSlot), "-"+string(errExecAbort)
	ok, queued, null := "+OK", "+QUEUED", "*nil"
	for name, row := range map[string]script{
		"unchanged":              {{"WATCH K", ok}, {"GET K", `"0"`}, {"MULTI", ok}, {"INCR K", queued}, {"EXEC", "[:1]"}, {"GET K", `"1"`}},
		"changed":                {{"WATCH K", ok}, {"!SET K 2", ok}, {"MULTI", ok}, {"SET K 3", queued}, {"EXEC", null}, {"GET K", `"2"`}},
		"changed by itself":      {{"WATCH K", ok}, {"SET K 2", ok}, {"MULTI", ok}, {"SET K 3", queued}, {"EXEC", null}},
		"watched no more":        {{"WATCH K", ok}, {"!SET K 2", ok}, {"UNWATCH", ok}, {"MULTI", ok}, {"INCR K", queued}, {"EXEC", "[:3]"}},
		"discarded":              {{"WATCH K", ok}, {"!SET K 2", ok}, {"MULTI", ok}, {"DISCARD", ok}, {"MULTI", ok}, {"INCR K", queued}, {"EXEC", "[:3]"}},
		"reset":                  {{"WATCH K", ok}, {"!SET K 2", ok}, {"RESET", "+RESET"}, {"MULTI", ok}, {"INCR K", queued}, {"EXEC", "[:3]"}},
		"once more":              {{"WATCH K", ok}, {"WATCH X", ok}, {"!SET K 2", ok}, {"MULTI", ok}, {"INCR K", queued}, {"EXEC", null}},
		"once more, of the slot": {{"WATCH K", ok}, {"WATCH X", ok}, {"!SET X 2", ok}, {"MULTI", ok}, {"INCR K", queued}, {"EXEC", null}},
		"after an EXEC":          {{"WATCH K", ok}, {"MULTI", ok}, {"EXEC", "[]"}, {"!SET K 2", ok}, {"MULTI", ok}, {"INCR K", queued}, {"EXEC", "[:3]"}},
		"about no key":           {{"WATCH K", ok}, {"!SET K 2", ok}, {"MULTI", ok}, {"PING", queued}, {"EXEC", null}},
		"about nothing":          {{"WATCH K", ok}, {"!SET K 2", ok}, {"MULTI", ok}, {"EXEC", null}},
		"without MULTI":          {{"WATCH K", ok}, {"EXEC", "-" + string(errExecNoMulti)}, {"!SET K 2", ok}, {"MULTI", ok}, {"INCR K", queued}, {"EXEC", null}},
		"UNWATCH in it":          {{"WATCH K", ok}, {"!SET K 2", ok}, {"MULTI", ok}, {"UNWATCH", queued}, {"EXEC", null}},
		"refused":                {{"WATCH K", ok}, {"MULTI", ok}, {"NOSUCH", "-*"}, {"EXEC", aborted}, {"!SET K 2", ok}, {"MULTI", ok}, {"INCR K", queued}, {"EXEC", "[:3]"}},
		"an error in it":         {{"WATCH K", ok}, {"MULTI", ok}, {"HGET K f", queued}, {"INCR K", queued}, {"EXEC", "[-" + string(reply.ErrWrongType) + " :1]"}},
		"another version":        {{"WATCH K", ok}, {"HELLO 3", "*"}, {"MULTI", ok}, {"GET X", queued}, {"HGETALL X", queued}, {"EXEC", "[_ %[]]"}},
		"another version, null":  {{"WATCH K", ok}, {"HELLO 3", "*"}, {"!SET K 2", ok}, {"MULTI", ok}, {"INCR K", queued}, {"EXEC", "_"}},
		"in a MULTI":             {{"MULTI", ok}, {"WATCH K", "-" + string(errWatchInMulti)}, {"INCR K", queued}, {"EXEC", "[:1]"}},
		"across":                 {{"WATCH K", ok}, {"WATCH O", crossed}, {"WATCH H", crossed}, {"GET H", "nil"}, {"MULTI", ok}, {"GET H", crossed}, {"EXEC", aborted}},
		"across there":           {{"WATCH K", ok}, {"MULTI", ok}, {"GET O", crossed}, {"EXEC", aborted}},
		"here and there":         {{"WATCH H", ok}, {"WATCH K", crossed}, {"MULTI", ok}, {"GET K", crossed}, {"EXEC", aborted}},
		"by who wants to know":   {{"WATCH K", ok}, {"READONLY", ok}, {"MULTI", ok}, {"GET K", "-MOVED*"}, {"EXEC", aborted}, {"WATCH K", "-MOVED*"}},
		"by who leaves":          {{"WATCH K", ok}},
	} {
		cl, other := dial(t, c.addrs[0]), dial(t, c.addrs[1])
		other.words("DEL {" + k + "}x")
		other.words("SET " + k + " 0")
		for i, step := range row {
			by := cl
			cmd, others := strings.CutPrefix(step[0], "!")
			if others {
				by = other
			}
			got := by.words(names.Replace(cmd))
			if begin, any := strings.CutSuffix(step[1], "*"); any && strings.HasPrefix(got, begin) {
				continue
			}
			if got != step[1] {
				t.Errorf("%s: %d: %s: got %s, want %s", name, i, step[0], got, step[1])
			}
		}
		cl.c.Close()
		eventually(t, "nobody watches any more", func() bool { return c.servers[1].parts[1].Load().WatchedKeys() == 0 })
	}
}

// TestAMoveBreaksWatchesAtAnotherServer, wherever what is watched goes, and to watch it once more does not mend that.
func TestAMoveBreaksWatchesAtAnotherServer(t *testing.T) {
	c := startCluster(t, 3, 3, roomy/8)
	key := c.keyIn(1, "k")
	for name, moves := range map[string][]int{"here": {0}, "to a third": {2}, "there and back": {2, 1}, "here and back": {0, 1}} {
		for _, again := range []bool{false, true} {
			cl := dial(t, c.addrs[0])
			say := func(cmd, want string) {
				t.Helper()
				if got := cl.words(strings.ReplaceAll(cmd, "K", key)); got != want {
					t.Errorf("%s, watched again: %v: %s: got %s, want %s", name, again, cmd, got, want)
				}
			}
			say("SET K 1", "+OK")
			say("WATCH K", "+OK")
			for _, to := range moves {
				c.move(1, to)
			}
			if again {
				say("WATCH K", "+OK")
			}
			say("MULTI", "+OK")
			say("INCR K", "+QUEUED")
			say("EXEC", "*nil")
			say("WATCH K", "+OK")
			say("GET K", `"1"`)
			say("MULTI", "+OK")
			say("INCR K", "+QUEUED")
			say("EXEC", "[:2]")
			cl.c.Close()
			c.move(1, 1)
		}
	}
	// What was watched here, and has gone, is watched once more.
	cl, here := dial(t, c.addrs[0]), c.keyIn(0, "h")
	cl.words("WATCH " + here)
	c.move(0, 1)
	for _, want := range []string{"*nil", "[:1]"} {
		for _, cmd := range []string{"WATCH " + here, "MULTI"} {
			if got := cl.words(cmd); got != "+OK" {
				t.Errorf("%s: got %s, want OK", cmd, got)
			}
		}
		cl.words("INCR " + here)
		if got := cl.words("EXEC"); got != want {
			t.Errorf("EXEC of what was watched here before: got %s, want %s", got, want)
		}
	}
}

// TestALostServerBreaksWatches: EXEC fails, and says whether that is certain.
func TestALostServerBreaksWatches(t *testing.T) {
	for _, row := range []struct {
		cmd, want string
		before    bool // the server is lost before EXEC
	}{{"INCR K", "*nil", true}, {"INCR K", "-" + string(errUncertain), false}, {"GET K", "*nil", false}} {
		c := startCluster(t, 2, 2, roomy/8)
		key := c.keyIn(1, "k")
		addr, heard := deaf(t, "+OK", "+OK") // READONLY and WATCH
		m := *c.now.Load()
		m.Servers = []partition.Server{m.Servers[0], {ID: clusterID(1), Addr: addr}}
		c.now.Store(&m)
		cl := dial(t, c.addrs[0])
		if got := cl.words("WATCH " + key); got != "+OK" {
			t.Fatalf("WATCH: got %s", got)
		}
		cl.words("MULTI")
		cl.words(strings.ReplaceAll(row.cmd, "K", key))
		var all sync.WaitGroup
		exec := func() {
			if got := cl.words("EXEC"); got != row.want {
				t.Errorf("EXEC of %s, the server is lost before: %v: got %s, want %s", row.cmd, row.before, got, row.want)
			}
		}
		if !row.before {
			all.Go(exec)
			<-heard
		}
		c.links.Forget(addr)
		if row.before {
			exec()
		}
		all.Wait()
	}
}

// TestWatchesAtOtherServersAreBounded: who comes too late is told where the keys are.
func TestWatchesAtOtherServersAreBounded(t *testing.T) {
	c := startClusterOver(t, 2, 2, roomy/8, Config{}, forward.Config{Held: 2})
	key := c.keyIn(1, "k")
	want := fmt.Sprintf("-TRYAGAIN it takes a connection to another server: 2 connections are held already, which is the most; connect to %s, which has the keys", c.addrs[1])
	at := c.now.Load()
	refuses, _ := deaf(t, "+OK", "-LOADING no")
	m := *at
	m.Servers = []partition.Server{m.Servers[0], {ID: clusterID(1), Addr: refuses}}
	c.now.Store(&m)
	for range 3 { // what is refused holds nothing
		if got := dial(t, c.addrs[0]).words("WATCH " + key); got != "-LOADING no" {
			t.Errorf("WATCH that is refused: got %s", got)
		}
	}
	c.now.Store(at)
	ends := []func(*client){
		func(cl *client) { cl.words("MULTI"); cl.words("EXEC") },
		func(cl *client) { cl.words("UNWATCH") },
		func(cl *client) { cl.c.Close() },
	}
	for _, end := range ends {
		var all []*client
		for range 3 {
			all = append(all, dial(t, c.addrs[0]))
		}
		for i, cl := range all {
			if got := cl.words("WATCH " + key); i < 2 && got != "+OK" || i == 2 && got != want {
				t.Errorf("WATCH of client %d: got %s, want OK of two, then %s", i, got, want)
			}
		}
		end(all[0])
		eventually(t, "there is room again", func() bool { return all[2].words("WATCH "+key) == "+OK" })
		for _, cl := range all {
			cl.c.Close()
		}
		eventually(t, "nobody watches any more", func() bool { return c.servers[1].parts[1].Load().WatchedKeys() == 0 })
	}
}

// TestATransactionElsewhereHasNothingAboutTheConnection: the other server would take it to be about the connection
// between the servers, which others use, too. CLIENT REPLY OFF there, and the reply to EXEC would never come.
func TestATransactionElsewhereHasNothingAboutTheConnection(t *testing.T) {
	c := startCluster(t, 2, 2, roomy/8)
	key := c.keyIn(1, "k")
	other := dial(t, c.addrs[0])
	other.words("HSET {" + key + "}h f v")
	want := other.words("HGETALL {" + key + "}h")
	const refused = "-" + string(errConnAway)
	for _, first := range []string{"PING", "WATCH " + key} {
		for _, row := range [][2]string{
			{"HELLO 3", refused}, {"AUTH default x", refused}, {"READONLY", refused}, {"READWRITE", refused}, {"ASKING", refused},
			{"CLIENT ID", refused}, {"CLIENT SETNAME x", refused}, {"CLIENT REPLY OFF", refused}, {"CLIENT REPLY ON", refused},
			{"CLIENT KILL TYPE normal", refused}, {"REPLCONF capa eof", refused},
			{"MONITOR", "[:1 -ERR MONITOR isn't allowed for DENY BLOCKING client]"}, {"PING", "[:1 +PONG]"}, {"SELECT 0", "[:1 +OK]"},
			{"INCR {" + key + "}a", "[:1 :1]"},
		} {
			cl := dial(t, c.addrs[0])
			for _, line := range []string{first, "MULTI", "INCR " + key, row[0]} {
				cl.words(line)
			}
			if got := cl.words("EXEC"); got != row[1] {
				t.Errorf("a transaction with %s elsewhere, after %s: got %s, want %s", row[0], first, got, row[1])
			}
			value := `"1"`
			if row[1] == refused { // nothing has changed
				value = "nil"
			}
			expect(t, cl, "GET "+key, value)
			cl.words("DEL " + key + " {" + key + "}a")
			for range 3 { // the connection would be one of these
				if got := other.words("HGETALL {" + key + "}h"); got != want {
					t.Errorf("after %s and a transaction with %s another client got %s, want %s", first, row[0], got, want)
				}
			}
		}
	}
}
