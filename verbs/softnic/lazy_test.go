package softnic

import (
	"testing"

	"polder/verbs"
)

// ackRig is a client that sends to a server with LazyAcks.
func ackRig(t *testing.T) (client, server *node, q, pq uint32) {
	client, server = newNodes(t, Config{})
	q, pq = client.newQP(QPConfig{}), server.newQP(QPConfig{LazyAcks: true})
	for i := range 2 * lazyLimit {
		server.recv(pq, verbs.RecvWR{ID: uint64(i), SGL: server.at(8*i, 8)})
		client.recv(q, verbs.RecvWR{ID: uint64(i), SGL: client.at(8*i, 8)})
	}
	client.join(q, pq)
	return client, server, q, pq
}

func TestALazyAckGoesWithWhatIsPostedNext(t *testing.T) {
	client, server, q, pq := ackRig(t)
	send := verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: client.at(0, 8)}
	client.post(q, send)
	if got := ids(server.poll(server.rcq)); got != "[0:success]" {
		t.Fatalf("the receiver got %s", got)
	}
	if got := ids(client.poll(client.cq)); got != "[]" {
		t.Fatalf("before there is an answer: got %s, want nothing", got)
	}
	before := server.nic.Counters().PacketsSent
	server.post(pq, verbs.SendWR{Op: verbs.OpSend, SGL: server.at(0, 8)})
	if got := ids(client.poll(client.cq)); got != "[1:success]" {
		t.Fatalf("with the answer: got %s, want [1:success]", got)
	}
	if got := server.nic.Counters().PacketsSent - before; got != 2 {
		t.Errorf("the answer took %d packets, want 2", got)
	}
}

func TestOnlySoManyLazyAcksWait(t *testing.T) {
	client, server, q, _ := ackRig(t)
	for i := range lazyLimit {
		if got := ids(client.poll(client.cq)); got != "[]" {
			t.Fatalf("after %d: got %s, want nothing", i, got)
		}
		client.post(q, verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: client.at(0, 8)})
	}
	if got := len(client.poll(client.cq)); got != lazyLimit {
		t.Fatalf("got %d completions, want all %d", got, lazyLimit)
	}
	// A WRITE is acknowledged at once, and what came before it too.
	client.post(q, verbs.SendWR{ID: 20, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: client.at(0, 8)})
	if got := ids(client.poll(client.cq)); got != "[]" {
		t.Fatalf("got %s, want nothing", got)
	}
	write := client.write(21, 0)
	write.Flags = verbs.SendSignaled
	client.post(q, write)
	if got := ids(client.poll(client.cq)); got != "[20:success 21:success]" {
		t.Fatalf("got %s, want both", got)
	}
	// And a READ's response acknowledges what came before it.
	read := client.write(23, 0)
	read.Op, read.Flags = verbs.OpRead, verbs.SendSignaled
	client.post(q, verbs.SendWR{ID: 22, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: client.at(0, 8)}, read)
	if got := ids(client.poll(client.cq)); got != "[22:success 23:success]" {
		t.Fatalf("got %s, want both", got)
	}
	if got := server.nic.qps.get(client.nic.qps.get(q).remote).rsp.unacked; got != 0 {
		t.Errorf("%d are not acknowledged, want 0", got)
	}
}

// Packets are counted, not messages: or a peer with messages of very many would come
// to the end of what it may have unacknowledged, and both ends would wait.
func TestALongMessageIsAcknowledgedAsItArrives(t *testing.T) {
	client, server := newNodes(t, Config{MTU: 64})
	q, pq := client.newQP(QPConfig{}), server.newQP(QPConfig{LazyAcks: true})
	const size = 2 * lazyLimit * 64
	server.recv(pq, verbs.RecvWR{SGL: server.at(0, size)})
	client.join(q, pq)
	client.post(q, verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: client.at(0, size)})
	if got := ids(client.poll(client.cq)); got != "[1:success]" {
		t.Errorf("got %s, want [1:success]", got)
	}
}
