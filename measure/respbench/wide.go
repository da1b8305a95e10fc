package respbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"polder/internal/config"
	"polder/measure/benchout"
)

// wideTimeout bounds one command.
const wideTimeout = time.Minute

// wideValue is the value of every field and key.
const wideValue = "0123456789abcdef"

// wideCase is a command with many or large arguments, or with a long reply.
type wideCase struct {
	name   string
	before [][]byte // commands that make every round the same; not measured
	cmd    []byte
	begins string // of the reply
	size   int    // of the reply, in bytes
	warm   int    // rounds that do not count
}

// command encodes a command that consists of words and of what more returns for each number from 0 to n-1.
func command(words []string, n int, more func(i int) []string) []byte {
	var body []byte
	count := 0
	add := func(list []string) {
		count += len(list)
		for _, w := range list {
			body = fmt.Appendf(body, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	add(words)
	for i := range n {
		add(more(i))
	}
	return append(fmt.Appendf(nil, "*%d\r\n", count), body...)
}

// wideCases returns the cases with n fields or keys. WATCH has a tenth of that, because
// Redis takes time proportional to the square of the number of keys for it.
func wideCases(n int) []wideCase {
	one := func(words ...string) []byte { return command(words, 0, nil) }
	name := func(i int) string { return fmt.Sprintf("name:%08d", i) }
	pair := func(i int) []string { return []string{name(i), wideValue} }
	key := func(i int) []string { return []string{name(i)} }
	watched := n / 10

	hset := command([]string{"HSET", "hash"}, n, pair)
	mset := command([]string{"MSET"}, n, pair)
	number := fmt.Sprintf(":%d\r\n", n)
	head := fmt.Sprintf("*%d\r\n", 2*n)
	element := func(s string) int { return len(fmt.Sprintf("$%d\r\n%s\r\n", len(s), s)) }
	flush, unwatch := one("FLUSHALL"), one("UNWATCH")
	return []wideCase{
		{fmt.Sprintf("HSET of %d fields", n), [][]byte{flush}, hset, number, len(number), 0},
		{fmt.Sprintf("HGETALL of %d fields", n), nil, one("HGETALL", "hash"), head, len(head) + n*(element(name(0))+element(wideValue)), 0},
		{fmt.Sprintf("MSET of %d keys", n), [][]byte{flush}, mset, "+OK\r\n", 5, 0},
		{fmt.Sprintf("WATCH of %d keys", watched), [][]byte{unwatch}, command([]string{"WATCH"}, watched, key), "+OK\r\n", 5, 0},
		{fmt.Sprintf("DEL of %d keys", n), [][]byte{unwatch, mset}, command([]string{"DEL"}, n, key), number, len(number), 0},
	}
}

// wide measures commands with many arguments, and with large ones.
func (b *bench) wide(ctx context.Context) error {
	const mib = 1 << 20
	if err := b.alone(ctx, wideCases(b.scale.wide), 256*mib); err != nil {
		return err
	}
	if b.scale.large == 0 {
		return nil
	}
	// With values of 36 MiB, --max-value is 64 MiB and --client-memory 256 MiB. The first
	// SETs, which do not count, write until all pages of the budget have been touched: the
	// time that the operating system takes for the first use of a page is not the server's.
	most, fit := b.scale.large/9*16, 16
	cases := largeCases(b.scale.large)
	cases[0].warm = fit + fit/4
	return b.alone(ctx, cases, int64(fit*b.scale.large), "--max-value", fmt.Sprint(most), "--client-memory", fmt.Sprint(4*most))
}

// largeCases returns SET and GET of one value of n bytes, as an attention cache stores it.
func largeCases(n int) []wideCase {
	set := command([]string{"SET", "large", strings.Repeat("0123456789abcdef", n/16)}, 0, nil)
	head := fmt.Sprintf("$%d\r\n", n)
	return []wideCase{
		{"SET of " + config.FormatSize(int64(n)), nil, set, "+OK\r\n", 5, 0},
		{"GET of " + config.FormatSize(int64(n)), nil, command([]string{"GET", "large"}, 0, nil), head, len(head) + n + 2, 0},
	}
}

// alone measures cases with one command at a time and everything in local memory.
func (b *bench) alone(ctx context.Context, cases []wideCase, budget int64, flags ...string) (err error) {
	redis, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.close()) }()
	local, err := startUp(ctx, b.cfg.Polder, "local", budget, 2*budget, flags...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.close()) }()
	servers := []*server{redis, local}
	clients := make([]*wideClient, len(servers))
	for i, s := range servers {
		if clients[i], err = dialWide(ctx, s); err != nil {
			return err
		}
		defer clients[i].conn.Close()
	}
	for _, c := range cases {
		took := make([][]float64, len(servers))
		warm := max(c.warm, 1)
		for round := range warm + b.scale.rounds {
			for _, i := range rand.Perm(len(servers)) {
				b.cfg.Progress(b.done, b.total, servers[i].name+" "+c.name)
				d, err := clients[i].measure(c)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", servers[i].name, c.name, err)
				}
				if round >= warm {
					took[i] = append(took[i], float64(d)/float64(time.Millisecond))
					b.done++
				}
			}
		}
		r := benchout.Row{Bench: "resp", Case: local.name + " " + c.name, Metric: "time", Value: median(took[1]), Unit: "ms"}
		if err := b.cfg.Printer.Print(r.Against(rival, median(took[0]), benchout.Lower)); err != nil {
			return err
		}
	}
	return nil
}

// wideClient sends a command and waits for its reply.
type wideClient struct {
	conn net.Conn
	buf  []byte
}

func dialWide(ctx context.Context, s *server) (*wideClient, error) {
	conn, err := (&net.Dialer{Timeout: startTimeout}).DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", s.name, err)
	}
	return &wideClient{conn: conn}, nil
}

// measure returns how long a case takes.
func (w *wideClient) measure(c wideCase) (time.Duration, error) {
	for _, cmd := range c.before {
		if _, err := w.do(cmd, "+OK\r\n", 5); err != nil {
			return 0, err
		}
	}
	return w.do(c.cmd, c.begins, c.size)
}

// do sends a command and reads its reply, which must begin with begins and have size
// bytes: so the client, whose time is measured too, need not search for the reply's end.
func (w *wideClient) do(cmd []byte, begins string, size int) (time.Duration, error) {
	if cap(w.buf) < size {
		w.buf = make([]byte, size)
	}
	buf := w.buf[:size]
	start := time.Now()
	if err := w.conn.SetDeadline(start.Add(wideTimeout)); err != nil {
		return 0, err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := w.conn.Write(cmd)
		sent <- err
	}()
	n, asExpected := 0, true
	var err error
	for n < size && err == nil && asExpected {
		var k int
		k, err = w.conn.Read(buf[n:])
		n += k
		asExpected = strings.HasPrefix(begins, string(buf[:min(n, len(begins))]))
	}
	took := time.Since(start)
	if err != nil {
		w.conn.Close()
	}
	if err := errors.Join(err, <-sent); err != nil {
		return 0, err
	}
	if !asExpected {
		return 0, fmt.Errorf("got a reply of %.100q, want %q", buf[:n], begins)
	}
	return took, nil
}
