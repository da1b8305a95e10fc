package resp

import (
	"net"
	"strings"
	"sync"
	"testing"

	"polder/partition"
)

// deaf is a server that answers each connection's first commands, and then nothing. It tells heard of what comes then.
func deaf(t *testing.T, answers ...string) (addr string, heard <-chan string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	said := make(chan string, 16)
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 1<<10)
				for left := answers; ; {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					for range strings.Count(string(b[:n]), "*") {
						if len(left) == 0 {
							said <- string(b[:n])
							continue
						}
						_, _ = c.Write([]byte(left[0] + "\r\n"))
						left = left[1:]
					}
				}
			}()
		}
	}()
	return lis.Addr().String(), said
}

// TestCommandsDoNotWaitForAServerThatTheMapHasDropped: what may have been carried out is not sent again, unless it only reads.
func TestCommandsDoNotWaitForAServerThatTheMapHasDropped(t *testing.T) {
	greeted := []string{"+OK"} // READONLY
	for _, row := range []struct {
		what    string
		greeted []string
		cmds    []string
		want    string
	}{
		{"that has not been sent", nil, []string{"INCR K"}, ":1"},
		{"that may have been carried out", greeted, []string{"INCR K"}, "-" + string(errUncertain)},
		{"that only reads", greeted, []string{"GET K"}, "nil"},
		{"in a transaction that only reads", greeted, []string{"MULTI", "GET K", "STRLEN K", "EXEC"}, "[nil :0]"},
		{"in a transaction that does not", greeted, []string{"MULTI", "GET K", "INCR K", "EXEC"}, "-" + string(errUncertain)},
		{"in a transaction that tells others", greeted, []string{"MULTI", "GET K", "PUBLISH c x", "EXEC"}, "-" + string(errUncertain)},
	} {
		c := startCluster(t, 2, 2, roomy/8)
		key := c.keyIn(1, "k")
		addr, heard := deaf(t, row.greeted...)
		m := *c.now.Load()
		m.Servers = []partition.Server{m.Servers[0], {ID: clusterID(1), Addr: addr}}
		c.now.Store(&m)
		cl := dial(t, c.addrs[0])
		var got string
		var all sync.WaitGroup
		all.Go(func() {
			for _, cmd := range row.cmds {
				got = cl.words(strings.ReplaceAll(cmd, "K", key))
			}
		})
		<-heard
		c.move(1, 0)
		m = *c.now.Load()
		m.Servers = m.Servers[:1]
		c.now.Store(&m)
		c.links.Forget(addr)
		c.servers[0].MapChanged()
		all.Wait()
		if got != row.want {
			t.Errorf("a command %s: got %s, want %s", row.what, got, row.want)
		}
	}
}
