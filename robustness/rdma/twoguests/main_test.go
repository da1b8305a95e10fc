//go:build ibverbs

package twoguests

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"polder/internal/child"
	"polder/robustness/rdma/plan"
)

// peer is the other guest's address.
var peer = os.Getenv("POLDER_RDMA_PEER")

// rdmaDevice is this guest's RDMA device.
var rdmaDevice = os.Getenv("POLDER_RDMA_DEVICE")

func TestMain(m *testing.M) {
	// The program refuses variables of its name that it does not know.
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "POLDER_") {
			os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}

const (
	mib = 1 << 20
	// hang is when a request counts as hanging. It is far above every
	// deadline of the server's.
	hang = 30 * time.Second
	// outage is how long the wire is cut.
	outage = 5 * time.Second
)

// nodeAddr is where the other guest's memory node listens.
func nodeAddr(t *testing.T) string {
	t.Helper()
	if peer == "" {
		t.Fatal("POLDER_RDMA_PEER is not set: these tests run in two guests (make test-rdma)")
	}
	return "rdma://" + peer + ":7070"
}

func ask(t *testing.T, request string) {
	t.Helper()
	if err := plan.Ask(request); err != nil {
		t.Fatal(err)
	}
}

// startServer runs a server that borrows from the other guest's node with
// local bytes of its own.
func startServer(t *testing.T, args ...string) *child.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := child.StartReady(ctx, child.Command{Path: "/bin/polder", Args: append([]string{
		"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--far", nodeAddr(t), "--manager", "rpcmw", "--insecure"}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("polder serve wrote: %s", p.Stderr())
		}
	})
	return p
}

// connect returns a client that neither retries nor hides errors.
func connect(t *testing.T, server *child.Process) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: server.Addr("redis"), MaxRetries: -1, PoolSize: 8,
		ReadTimeout: hang, WriteTimeout: hang, PoolTimeout: hang,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// value is size bytes that belong to a key and to no other.
func value(key string, size int) string {
	sum := sha256.Sum256([]byte(key))
	return strings.Repeat(hex.EncodeToString(sum[:]), size/64+1)[:size]
}

// refusal is the first word of an error reply, such as LOST or TRYAGAIN, and ""
// for an error of the connection.
func refusal(err error) string {
	var reply redis.Error
	if errors.As(err, &reply) {
		word, _, _ := strings.Cut(reply.Error(), " ")
		return word
	}
	return ""
}

// batch is how many commands are sent at a time.
const batch = 64

// keys is a set of keys with values of one size.
type keys struct {
	prefix  string
	n, size int
}

func (k keys) name(i int) string { return fmt.Sprintf("%s:%d", k.prefix, i) }

// store stores all of them.
func (k keys) store(t *testing.T, c *redis.Client) {
	t.Helper()
	for from := 0; from < k.n; from += batch {
		p := c.Pipeline()
		for i := from; i < min(from+batch, k.n); i++ {
			p.Set(t.Context(), k.name(i), value(k.name(i), k.size), 0)
		}
		if _, err := p.Exec(t.Context()); err != nil {
			t.Fatalf("storing %s to %s: %v", k.name(from), k.name(min(from+batch, k.n)-1), err)
		}
	}
}

// check reads all of them, many at a time.
func (k keys) check(t *testing.T, c *redis.Client) {
	t.Helper()
	for from := 0; from < k.n; from += batch {
		p := c.Pipeline()
		for i := from; i < min(from+batch, k.n); i++ {
			p.Get(t.Context(), k.name(i))
		}
		cmds, err := p.Exec(t.Context())
		if err != nil {
			t.Fatalf("reading %s to %s: %v", k.name(from), k.name(min(from+batch, k.n)-1), err)
		}
		for i, cmd := range cmds {
			name := k.name(from + i)
			if got := cmd.(*redis.StringCmd).Val(); got != value(name, k.size) {
				t.Fatalf("GET %s: got %d bytes, want the %d that were stored", name, len(got), k.size)
			}
		}
	}
}

// load reads keys again and again, and counts what comes of it. An answer that
// is neither right nor a refusal ends it.
type load struct {
	mu      sync.Mutex
	served  int            // guarded by mu
	refused map[string]int // guarded by mu: by the refusal's first word
	err     error          // guarded by mu: what ended it
	changed chan struct{}  // holds one when there is something new
	stop    chan struct{}
	ended   chan struct{}
}

func startLoad(t *testing.T, c *redis.Client, k keys) *load {
	l := &load{refused: map[string]int{}, changed: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	t.Cleanup(l.end)
	go func() {
		defer close(l.ended)
		for i := 0; ; i++ {
			select {
			case <-l.stop:
				return
			default:
			}
			key := k.name(i % k.n)
			got, err := c.Get(context.Background(), key).Result()
			l.count(key, got, err, k.size)
		}
	}()
	return l
}

func (l *load) count(key, got string, err error, size int) {
	l.mu.Lock()
	switch word := refusal(err); {
	case err == nil && got == value(key, size):
		l.served++
	case word != "":
		l.refused[word]++
	case l.err == nil:
		l.err = fmt.Errorf("GET %s: got %d bytes, %v", key, len(got), err)
	}
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// end stops the load. It may be called again.
func (l *load) end() {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	<-l.ended
}

// counts returns how many requests were served and refused, all in all.
func (l *load) counts() (served int, refused map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	refused = map[string]int{}
	for word, n := range l.refused {
		refused[word] = n
	}
	return l.served, refused
}

// until waits until what load has counted since now is enough.
func (l *load) until(t *testing.T, what string, enough func(served int, refused map[string]int) bool) {
	t.Helper()
	served, refused := l.counts()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for {
		s, r := l.counts()
		for word := range r {
			r[word] -= refused[word]
		}
		l.mu.Lock()
		err := l.err
		l.mu.Unlock()
		switch {
		case err != nil:
			t.Fatal(err)
		case enough(s-served, r):
			return
		}
		select {
		case <-l.changed:
		case <-limit.C:
			t.Fatalf("waited in vain until %s: %d served, %v refused", what, s-served, r)
		}
	}
}
