//go:build browser

package browser

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testaddr"
)

// shoot writes a picture for the documents if POLDER_SHOTS says where to.
func shoot(p *page, name string) {
	if dir := os.Getenv("POLDER_SHOTS"); dir != "" {
		p.shoot(filepath.Join(dir, name))
	}
}

// fill stores and reads values until the context is done.
func fill(ctx context.Context, addr string) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
		defer func() { _ = c.Close() }()
		value := strings.Repeat("polder ", 150)
		for i := 0; ctx.Err() == nil; i++ {
			p := c.Pipeline()
			for j := range 64 {
				key := fmt.Sprint("key:", (i*64+j)*7919%40_000)
				if i < 625 || j%16 == 0 {
					p.Set(ctx, key, value, 0)
				} else {
					p.Get(ctx, fmt.Sprint("key:", int(math.Sqrt(float64((i*64+j)*104729%4_000_000)))))
				}
			}
			_, _ = p.Exec(ctx) // some fail when a node is dead
			if i >= 625 {
				time.Sleep(5 * time.Millisecond) // the pictures want a load, not a race
			}
		}
	}()
	return done
}

// agree checks that the page shows of each metric what the daemon says, once no
// figure moves any more.
func agree(t *testing.T, p *page, daemon *child.Process, metrics ...string) {
	t.Helper()
	for _, name := range metrics {
		var shown, said float64
		proctest.Until(t, "the page has the daemon's "+name, func() bool {
			// The rows of one metric follow the one that has its name.
			err := p.eval(fmt.Sprintf(`(() => { let r = document.getElementById(%q), sum = 0; if (!r) return -1;
				do { sum += Number(r.children[2].dataset.value); r = r.nextElementSibling; } while (r && !r.id); return sum; })()`, name), &shown)
			if err != nil {
				t.Fatal(err)
			}
			said = proctest.State(t, daemon).Metrics.Sum(name)
			return shown == said
		})
		t.Logf("%s: %v on the page and in the metrics", name, shown)
	}
}

func cpu(t *testing.T, daemon *child.Process) float64 {
	return proctest.State(t, daemon).Metrics.Sum("process_cpu_seconds_total")
}

func TestThePageFollowsAServerWhoseNodeDies(t *testing.T) {
	nodes := []*child.Process{}
	for range 2 {
		nodes = append(nodes, proctest.Start(t, "node", "--lend", "128MiB", "--grace", "1s"))
	}
	start := func(admin, front string) *child.Process {
		return proctest.Start(t, "serve", "--far", nodes[0].Addr("verbs")+","+nodes[1].Addr("verbs"), "--local", "16MiB",
			"--admin", admin, "--listen", front, "--op-timeout", "500ms")
	}
	server := start(testaddr.Host()+":0", testaddr.Host()+":0")
	admin, front := server.Addr("admin"), server.Addr("redis")

	p := open(t, 1280, 1500, false)
	began := time.Now()
	p.visit("http://" + admin + "/")
	p.until("#health", "all well")
	p.until("#live", "live")
	var size int
	if err := p.eval(`performance.getEntries().filter((e) => e.encodedBodySize && !e.name.endsWith("/stream")).reduce((a, e) => a + e.encodedBodySize, 0)`, &size); err != nil || size == 0 || size > 200<<10 {
		t.Errorf("the page has %d bytes (%v), want at most 200 KiB", size, err)
	}
	t.Logf("shown after %v, %d bytes", time.Since(began).Round(time.Millisecond), size)

	// The cost of being looked at, while nothing else happens.
	first, from := time.Now(), cpu(t, server)
	proctest.Until(t, "ten seconds have passed", func() bool { return time.Since(first) > 10*time.Second })
	share := (cpu(t, server) - from) / time.Since(first).Seconds()
	t.Logf("the daemon takes %.2f %% of a core with a page open", 100*share)
	if share > 0.02 {
		t.Errorf("with a page open the daemon takes %.1f %% of a core, want less than 2 %%", 100*share)
	}

	ctx, cancel := context.WithCancel(t.Context())
	filled := fill(ctx, front)
	before := p.text("#live")
	proctest.Until(t, "the page has moved on", func() bool { return p.text("#live") != before })
	p.until("#tables", "127.0.0.1")
	var points int
	proctest.Until(t, "the plots have a few points", func() bool {
		if err := p.eval(`Math.max(...[...document.querySelectorAll('.plot path')].map((e) => e.getAttribute('d').split('L').length))`, &points); err != nil {
			t.Fatal(err)
		}
		return points > 12 || os.Getenv("POLDER_SHOTS") == "" && points > 3
	})
	shoot(p, "console.png")
	nodes[0].Kill()
	p.until("#tables .state.bad", "down")
	p.until("#attention", "is down")
	p.until("#health", "1 node is down")
	p.until("#events", "connection lost")
	cancel()
	<-filled
	shoot(p, "console-node-down.png")
	agree(t, p, server, "polder_pool_node_up", "polder_resp_keys", "polder_far_entries", "polder_far_lost_entries_total", "polder_pool_lost_total",
		"polder_far_local_bytes", "polder_pool_borrowed_bytes", "polder_resp_lost_replies_total", "polder_pool_operation_seconds", "polder_far_misses_total")
	if c := p.complaints(); len(c) > 0 {
		t.Errorf("the page complains: %s", c)
	}

	// The last figures stay, and the page says that they are old, until the
	// daemon is back.
	server.Kill()
	p.until("#live", "trying again")
	p.until("#service", "serve")
	server = start(admin, front)
	p.until("#about", fmt.Sprint("process ", server.PID()))
	p.until("#live", "live")
	for _, c := range p.complaints() {
		if !strings.Contains(c, "net::ERR_") {
			t.Errorf("the page complains: %s", c)
		}
	}
	agree(t, p, server, "polder_resp_keys", "polder_pool_node_up")

	// Somebody who reads the plots with the keyboard.
	var label string
	if err := p.eval(`(() => { const s = document.querySelector('.plot svg'); s.focus();
		s.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'})); return s.getAttribute('aria-label'); })()`, &label); err != nil || !strings.Contains(label, ", at ") {
		t.Errorf("a plot reads %q (%v), want the figures at a time", label, err)
	}
}

func TestThePageAsksForTheToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	const token = "0123456789abcdef0123456789abcdef"
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	node := proctest.Start(t, "node", "--lend", "64MiB", "--admin-token-file", file)
	p := open(t, 1000, 700, true)
	p.visit("http://" + node.Addr("admin") + "/")
	p.until("#health", "a token is needed")
	var body string
	if err := p.eval(`document.documentElement.outerHTML`, &body); err != nil || strings.Contains(body, "polder_") || strings.Contains(body, node.Addr("verbs")) {
		t.Errorf("the page says something of the daemon to a stranger (%v)", err)
	}
	enter := func(token string) {
		t.Helper()
		if err := p.eval(fmt.Sprintf(`(() => { document.getElementById('token').value = %q; document.querySelector('#login button').click(); return 0 })()`, token), new(int)); err != nil {
			t.Fatal(err)
		}
	}
	enter("not the token of it")
	p.until("#refused", "does not know this token")
	enter(token)
	p.until("#health", "all well")
	p.until("#figures", "Lent")
	p.ask("Page.reload", nil, nil)
	p.until("#health", "all well")
	shoot(p, "console-node-dark.png")
	for _, c := range p.complaints() {
		if !strings.Contains(c, "401") {
			t.Errorf("the page complains: %s", c)
		}
	}
}
