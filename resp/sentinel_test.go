package resp

import (
	"log/slog"
	"strings"
	"testing"

	"polder/resp/topology"
)

// TestSentinel: a server that stands by says where the one is that has the heap, and tells those who have subscribed when it is another one.
func TestSentinel(t *testing.T) {
	srv, err := NewLoading(Config{Loops: -1, Heap: "orders", Logger: slog.New(slog.DiscardHandler), OpTimeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	heap := newHeap(t, roomy)
	addr := serve(t, srv, heap.Close)
	c, sub, psub := dial(t, addr), dial(t, addr), dial(t, addr)
	check := func(when string, want ...string) {
		t.Helper()
		for i := 0; i < len(want); i += 2 {
			if got := c.do(strings.Fields(want[i])...).String(); got != want[i+1] {
				t.Errorf("%s: %s: got %s, want %s", when, want[i], got, want[i+1])
			}
		}
	}
	sub.do("SUBSCRIBE", "+switch-master")
	psub.do("PSUBSCRIBE", "+switch*")
	const nosuch = "-ERR No such master with that name"
	check("nothing is known", "PING", "+PONG", "GET k", "-"+string(errLoading), "SENTINEL MASTERS", "[]",
		"SENTINEL GET-MASTER-ADDR-BY-NAME orders", "*nil", "SENTINEL MASTER orders", nosuch, "SENTINEL SENTINELS orders", nosuch, "SENTINEL REPLICAS orders", nosuch,
		"ROLE", `["slave" "" :0 "connect" :0]`)

	srv.SetMaster(topology.Master{Addr: "10.0.0.5:6379", Epoch: 3})
	master := func(ip, flags, epoch, others string) string {
		return `["name" "orders" "ip" "` + ip + `" "port" "6379" "runid" "" "flags" "` + flags + `" "role-reported" "master" "config-epoch" "` + epoch +
			`" "num-slaves" "0" "num-other-sentinels" "` + others + `" "quorum" "1"]`
	}
	five := master("10.0.0.5", "master", "3", "1")
	check("another one has the heap", "PING", "+PONG", "GET k", "-"+string(errLoading), "SENTINEL MASTERS", "["+five+"]", "SENTINEL MASTER orders", five,
		"SENTINEL GET-MASTER-ADDR-BY-NAME orders", `["10.0.0.5" "6379"]`, "SENTINEL GET-MASTER-ADDR-BY-NAME others", "*nil", "SENTINEL MASTER others", nosuch,
		"SENTINEL SENTINELS orders", `[["name" "10.0.0.5:6379" "ip" "10.0.0.5" "port" "6379" "runid" "" "flags" "sentinel"]]`,
		"SENTINEL REPLICAS orders", "[]", "SENTINEL SLAVES orders", "[]", "ROLE", `["slave" "10.0.0.5" :6379 "connected" :0]`)

	srv.SetMaster(topology.Master{Epoch: 3, Down: true})
	check("it is down", "SENTINEL MASTER orders", master("10.0.0.5", "s_down,o_down,master", "3", "0"), "SENTINEL SENTINELS orders", "[]", "ROLE", `["slave" "10.0.0.5" :6379 "connect" :0]`)

	srv.SetMaster(topology.Master{Addr: "[fd00::7]:6379", Epoch: 4, Self: true})
	check("this one has the heap, and opens it", "PING", "-"+string(errLoading), "SENTINEL MASTER orders", master("fd00::7", "master", "4", "0"),
		"SENTINEL GET-MASTER-ADDR-BY-NAME orders", `["fd00::7" "6379"]`, "ROLE", `["master" :0 []]`)
	const news = "orders 10.0.0.5 6379 fd00::7 6379"
	if got, want := sub.recv().String(), `["message" "+switch-master" "`+news+`"]`; got != want {
		t.Errorf("a subscriber got %s, want %s", got, want)
	}
	if got, want := psub.recv().String(), `["pmessage" "+switch*" "+switch-master" "`+news+`"]`; got != want {
		t.Errorf("a subscriber of a pattern got %s, want %s", got, want)
	}
	if err := srv.Open(t.Context(), heap); err != nil {
		t.Fatal(err)
	}
	check("it serves", "PING", "+PONG", "SET k v", "+OK", "ROLE", `["master" :0 []]`)
}

// TestSentinelWithoutANamedHeap is an error that says what would be right.
func TestSentinelWithoutANamedHeap(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	c := dial(t, addr)
	for _, cmd := range []string{"SENTINEL MASTERS", "SENTINEL MASTER x", "SENTINEL GET-MASTER-ADDR-BY-NAME x"} {
		if got := c.do(strings.Fields(cmd)...).String(); got != "-"+string(errNoSentinel) {
			t.Errorf("%s: got %s", cmd, got)
		}
	}
}
