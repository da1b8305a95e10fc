package softnic

import (
	"fmt"
	"testing"

	"polder/verbs"
)

// pace does what two nodes have to do, one thing after the other, and logs it.
func pace(a, b *node) (step func() bool, log *[]string) {
	type turn struct {
		n *node
		t Task
	}
	var turns []turn
	for _, n := range []*node{a, b} {
		n.nic.Pace(func(t Task) { turns = append(turns, turn{n, t}) })
	}
	log = new([]string)
	return func() bool {
		if len(turns) == 0 {
			return false
		}
		t := turns[0]
		o, next := t.n.nic.Peek(t.t)
		switch {
		case o.Packet != 0:
			*log = append(*log, fmt.Sprintf("%v %d", o.Packet, o.Bytes))
			t.n.nic.Respond(t.t)
		case next.Ready:
			*log = append(*log, fmt.Sprintf("%v %d ahead %d", next.Op, next.Bytes, t.t.Ahead(make([]byte, 256))/verbs.WQESize))
			t.n.nic.Execute(t.t)
		default:
			turns = turns[1:]
		}
		return true
	}, log
}

// TestPace: a paced NIC does one thing at a time, says before what it will be, and
// does what one that runs by itself does.
func TestPace(t *testing.T) {
	a, b := newNodes(t, Config{MTU: 64})
	step, log := pace(a, b)
	q, _ := a.pair()
	for step() {
	}
	*log = nil
	copy(a.mem, "written")
	copy(b.mem[4096:], "read")
	wrs := []verbs.SendWR{
		{ID: 1, Op: verbs.OpWrite, SGL: a.at(0, 100), RemoteAddr: b.mr.Addr, RKey: b.mr.Key},
		{ID: 2, Op: verbs.OpRead, SGL: a.at(256, 100), RemoteAddr: b.mr.Addr + 4096, RKey: b.mr.Key},
		{ID: 3, Op: verbs.OpFetchAdd, SGL: a.at(512, 8), RemoteAddr: b.mr.Addr + 8192, RKey: b.mr.Key, Swap: 5},
		{ID: 4, Op: verbs.OpNop, Flags: verbs.SendFence | verbs.SendSignaled},
	}
	if err := a.nic.PostSend(q, wrs); err != nil {
		t.Fatal(err)
	}
	if a.nic.Run() || a.nic.Pending() {
		t.Fatal("a paced NIC runs by itself")
	}
	for step() {
	}
	if got := ids(a.poll(a.cq)); got != "[4:success]" {
		t.Errorf("got %s, want [4:success]", got)
	}
	if string(b.mem[:7]) != "written" || string(a.mem[256:260]) != "read" || b.word(8192) != 5 {
		t.Error("the requests had not their effects")
	}
	want := []string{
		"WRITE 64 ahead 4", "WRITE 36 ahead 4", "READ 0 ahead 3", "FETCH_ADD 0 ahead 2",
		"READ_RESP 64", "READ_RESP 36", "ATOMIC_RESP 0", "NOP 0 ahead 1",
	}
	if fmt.Sprint(*log) != fmt.Sprint(want) {
		t.Errorf("got the turns\n%q, want\n%q", *log, want)
	}
}

// TestPaceOutlivesQP: a task of a queue pair that is gone still tells the peer.
func TestPaceOutlivesQP(t *testing.T) {
	a, b := newNodes(t, Config{})
	step, _ := pace(a, b)
	q, pq := a.pair()
	if err := a.nic.DestroyQP(q); err != nil {
		t.Fatal(err)
	}
	for step() {
	}
	if s := b.state(pq); s != verbs.StateError {
		t.Errorf("the peer's queue pair is in state %v, want %v", s, verbs.StateError)
	}
}
