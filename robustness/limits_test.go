package robustness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/proctest"
)

// TestAFullNodeLosesNothing stores until the node has nothing left to lend.
// The client gets a clear error, everything that was acknowledged is still
// there, and deleting makes room.
func TestAFullNodeLosesNothing(t *testing.T) {
	t.Parallel()
	const (
		most = 20_000
		size = 8 << 10
	)
	node := startNode(t, "32MiB")
	server := startServer(t, node.Addr("verbs"), "8MiB", "--op-timeout", "5s")
	client := connect(t, server)
	ctx := context.Background()
	name := func(i int) string { return fmt.Sprint("key:", i) }

	stored := map[int]bool{}
	var full error
	for i := 0; i < most && full == nil; i++ {
		switch err := client.Set(ctx, name(i), value(name(i), 1, size), 0).Err(); {
		case err == nil:
			stored[i] = true
		case refusal(err) == "OOM":
			full = err
		default:
			t.Fatalf("storing %s: %v, want an OOM error", name(i), err)
		}
	}
	if full == nil {
		t.Fatalf("stored %d MiB with 32 MiB to borrow, and got no error", most*size/mib)
	}
	if len(stored)*size < 24*mib {
		t.Errorf("it was full after %d MiB, of 32 MiB lent and 8 MiB local", len(stored)*size/mib)
	}
	t.Logf("full after %d KiB: %v", len(stored)*size>>10, full)

	readable := func() {
		t.Helper()
		if err := pipelined(ctx, client, most, func(p redis.Pipeliner, i int) { p.Get(ctx, name(i)) },
			func(i int, cmd redis.Cmder) error {
				got, err := cmd.(*redis.StringCmd).Result()
				if !stored[i] {
					if !errors.Is(err, redis.Nil) {
						return fmt.Errorf("%s was refused or deleted: got %d bytes, %v", name(i), len(got), err)
					}
					return nil
				}
				if err != nil || got != value(name(i), 1, size) {
					return fmt.Errorf("%s: got %d bytes, %v", name(i), len(got), err)
				}
				return nil
			}); err != nil {
			t.Fatal(err)
		}
	}
	readable()

	// Deleting needs no room, and makes some.
	n := len(stored) / 2
	for i := range n {
		if err := client.Del(ctx, name(i)).Err(); err != nil {
			t.Fatalf("deleting %s: %v", name(i), err)
		}
		delete(stored, i)
	}
	proctest.Until(t, "there is room again", func() bool {
		err := client.Set(ctx, name(0), value(name(0), 1, size), 0).Err()
		if err != nil && refusal(err) != "OOM" {
			t.Fatal(err)
		}
		return err == nil
	})
	stored[0] = true
	for i := 1; i < n/2; i++ {
		if err := client.Set(ctx, name(i), value(name(i), 1, size), 0).Err(); err != nil {
			t.Fatalf("storing %s again: %v", name(i), err)
		}
		stored[i] = true
	}
	readable()
}

// TestAClientThatDoesNotReadIsDisconnected asks for far more than fits into
// buffers and reads none of it. The server's memory stays bounded, others are
// served, and the connection is ended.
func TestAClientThatDoesNotReadIsDisconnected(t *testing.T) {
	t.Parallel()
	const (
		local  = 16 * mib
		beside = 64 * mib
		size   = 1 * mib
	)
	node := startNode(t, "256MiB")
	server := startServer(t, node.Addr("verbs"), "16MiB")
	client := connect(t, server)
	ctx := context.Background()
	if err := client.Set(ctx, "large", value("large", 1, size), 0).Err(); err != nil {
		t.Fatal(err)
	}

	lazy, err := net.Dial("tcp", server.Addr("redis"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lazy.Close() }()
	gone := make(chan error, 1)
	go func() {
		request := strings.Repeat("GET large\r\n", 100)
		for {
			if err := lazy.SetWriteDeadline(time.Now().Add(hang)); err != nil {
				gone <- err
				return
			}
			if _, err := lazy.Write([]byte(request)); err != nil {
				gone <- err
				return
			}
		}
	}()
	proctest.Until(t, "the client is disconnected", func() bool {
		if got, err := client.Get(ctx, "large").Result(); err != nil || len(got) != size {
			t.Fatalf("another client got %d bytes, %v", len(got), err)
		}
		n, err := server.Resident()
		if err != nil {
			t.Fatal(err)
		}
		if n > local+beside {
			t.Fatalf("the server has %d KiB resident, more than %d", n>>10, (local+beside)>>10)
		}
		select {
		case err := <-gone:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("the server neither reads nor disconnects: %v", err)
			}
			return true
		default:
			return false
		}
	})
	if s := statusOf(t, server); s.Redis.OutputDrops == 0 {
		t.Error("the server does not count clients that were disconnected for not reading")
	}
}
