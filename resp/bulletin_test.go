package resp

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"polder/partition"
)

// TestCommandsThatWaitForAPartitionSeldomAsk: thousands may, while another server takes over.
func TestCommandsThatWaitForAPartitionSeldomAsk(t *testing.T) {
	m := &partition.Map{Partitions: 1, Servers: []partition.Server{{ID: clusterID(0), Addr: "127.0.0.1:1"}}, Owner: []string{clusterID(0)}, Next: []string{""}}
	var asked atomic.Int64
	srv, err := NewLoading(Config{Logger: slog.New(slog.DiscardHandler), OpTimeout: 500 * time.Millisecond, Cluster: &Cluster{
		ID: clusterID(0), Map: func() *partition.Map { asked.Add(1); return m }, Doubt: func() {},
	}})
	if err != nil {
		t.Fatal(err)
	}
	cl := dial(t, serve(t, srv, func() error { return nil }))
	asked.Store(0)
	if got := cl.words("GET k"); !strings.HasPrefix(got, "-LOADING") {
		t.Errorf("got %s, want LOADING", got)
	}
	if n := asked.Load(); n > 30 { // 1 ms, 2, 4, ... 64, and then every 100
		t.Errorf("one command has looked at the map %d times", n)
	}
}

// TestNewsWakeWhoWaits: what is taken before something changes is closed, and not what is taken afterwards.
func TestNewsWakeWhoWaits(t *testing.T) {
	var srv Server
	before, too := srv.news.next(), srv.news.next()
	srv.MapChanged()
	<-before
	<-too
	select {
	case <-srv.news.next():
		t.Error("old news")
	default:
	}
}
