package robustness

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/linear"
	"polder/internal/proctest"
	"polder/partition"
	"polder/resp/proto"
)

// clusterOp is a command on one key, as porcupine sees it. No two commands write the same, but for INCR.
type clusterOp struct {
	name, key string
	arg       string // what is written, or appended
}

// unknownOutcome is the output of a command that may have been carried out, or may be later.
const unknownOutcome = "?"

// clusterModel is a string that is empty at first.
var clusterModel = porcupine.Model{
	Partition: linear.By(func(in clusterOp) string { return in.key }),
	Init:      func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		was, in, out := state.(string), input.(clusterOp), output.(string)
		is, want := was, was
		switch in.name {
		case "SET":
			is, want = in.arg, "OK"
		case "GETSET":
			is = in.arg
		case "APPEND":
			is = was + in.arg
			want = strconv.Itoa(len(is))
		case "INCR":
			n, _ := strconv.Atoi(was)
			is = strconv.Itoa(n + 1)
			want = is
		}
		return out == want || out == unknownOutcome, is
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v -> %.100v", input, output) },
}

// clusterHistory is what clients did to the keys of a shared heap.
type clusterHistory struct {
	cycle int // whose keys they are
	began time.Time
	done  atomic.Int64 // commands that were acknowledged

	mu   sync.Mutex
	ops  []porcupine.Operation // guarded by mu
	keys map[string]bool       // guarded by mu
}

func (h *clusterHistory) now() int64 { return int64(time.Since(h.began)) }

// did takes note of a command that was sent at the time call, and of what the client knows now of its outcome. It reports whether that is known.
func (h *clusterHistory) did(client int, in clusterOp, call int64, out string, err error) (known bool) {
	end := h.now()
	switch word := refusal(err); {
	case err == nil || errors.Is(err, redis.Nil):
		h.done.Add(1)
	case word == "MOVED" || word == "CLUSTERDOWN" || word == "LOADING" || undialed(err):
		return true // it was not carried out, and will not be
	case in.name == "GET":
		return false
	default:
		out, end = unknownOutcome, 1<<62
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: end})
	h.keys[in.key] = true
	return out != unknownOutcome
}

// undialed reports whether there was no connection.
func undialed(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// attemptsOf has the hook know of what command a client makes attempts.
type attemptsOf struct {
	client int
	in     clusterOp
	failed bool // it is not known what has become of one
}

type attemptsKey struct{}

// DialHook and the other two make clusterHistory a hook, which takes note of every attempt: a client of clusters makes another one of what was certainly
// not carried out. Of what may have been there is none.
func (h *clusterHistory) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *clusterHistory) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *clusterHistory) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		a, ok := ctx.Value(attemptsKey{}).(*attemptsOf)
		if ok && a.failed {
			return errors.New("it may have been carried out")
		}
		if !ok || !strings.EqualFold(cmd.Name(), a.in.name) { // what a client asks for itself
			return next(ctx, cmd)
		}
		call := h.now()
		err := next(ctx, cmd)
		out := ""
		switch cmd := cmd.(type) {
		case *redis.StringCmd:
			out = cmd.Val()
		case *redis.StatusCmd:
			out = cmd.Val()
		case *redis.IntCmd:
			out = strconv.FormatInt(cmd.Val(), 10)
		}
		a.failed = !h.did(a.client, a.in, call, out, err)
		return err
	}
}

// do has a client carry out a command.
func (h *clusterHistory) do(ctx context.Context, c redis.Cmdable, client int, in clusterOp) error {
	ctx = context.WithValue(ctx, attemptsKey{}, &attemptsOf{client: client, in: in})
	switch in.name {
	case "GET":
		return c.Get(ctx, in.key).Err()
	case "SET":
		return c.Set(ctx, in.key, in.arg, 0).Err()
	case "GETSET":
		return c.GetSet(ctx, in.key, in.arg).Err()
	case "INCR":
		return c.Incr(ctx, in.key).Err()
	}
	return c.Append(ctx, in.key, in.arg).Err()
}

// transaction has a client that knows of no cluster, and makes one attempt, do a GETSET by a transaction.
func (h *clusterHistory) transaction(ctx context.Context, c *redis.Client, client int, in clusterOp) {
	var got *redis.StringCmd
	call := h.now()
	cmds, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		got = p.Get(ctx, in.key)
		p.Set(ctx, in.key, in.arg, 0)
		return nil
	})
	if errors.Is(err, redis.Nil) { // the key was not there
		err = cmds[len(cmds)-1].Err()
	}
	h.did(client, in, call, got.Val(), err)
}

// How many keys of a kind there are, and how often one is appended to, about, before another takes its place.
const (
	registers, counters, logs = 4, 3, 2
	mostAppended              = 500
)

// next is a command, by chance. That it is the nth of a client makes what it writes unlike all else.
func (h *clusterHistory) next(r *rand.Rand, client, n int) clusterOp {
	unique := fmt.Sprintf("%d-%d,", client, n)
	switch kind := r.IntN(10); {
	case kind < 5:
		return clusterOp{[]string{"GET", "GET", "SET", "GETSET"}[r.IntN(4)], fmt.Sprintf("register:%d:%d", h.cycle, r.IntN(registers)), unique}
	case kind < 8:
		return clusterOp{[]string{"GET", "INCR", "INCR"}[r.IntN(3)], fmt.Sprintf("counter:%d:%d", h.cycle, r.IntN(counters)), ""}
	default:
		return clusterOp{[]string{"GET", "APPEND"}[r.IntN(2)], fmt.Sprintf("log:%d:%d:%d", h.cycle, r.IntN(logs), h.done.Load()/(10*mostAppended)), unique}
	}
}

// use has a client do one thing after the other until stop is closed. A client that knows of no cluster does transactions, too.
func (h *clusterHistory) use(c redis.UniversalClient, client int, stop <-chan struct{}) {
	r := rand.New(rand.NewPCG(uint64(client), 5))
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(r.IntN(12)) * time.Millisecond): // what others do then comes in between
		}
		in := h.next(r, client, n)
		if plain, ok := c.(*redis.Client); ok && in.name == "GETSET" && n%2 == 0 {
			h.transaction(context.Background(), plain, client, in)
			continue
		}
		_ = h.do(context.Background(), c, client, in) // of which the hook takes note
	}
}

// settled is the history without open ends: it is linearizable if, and only if, h is. A command whose outcome is unknown was carried out if a client has
// seen what it writes, and that before the first reply which shows it: there it ends. If nobody has seen it, it is left out, since all is as if it never
// was. INCRs write nothing of their own. A number that no INCR was answered is due to an unknown one, and the smallest such number is given to the one that
// was sent first: if any of them fits, it does. What such an INCR or APPEND would have been answered is known, and with it the checker has less to try.
//
// Preconditions: all keys have been read since the last command that was acknowledged.
func (h *clusterHistory) settled() (ops []porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	unknown := map[string][]porcupine.Operation{}
	for _, op := range h.ops {
		if op.Output == unknownOutcome {
			unknown[op.Input.(clusterOp).key] = append(unknown[op.Input.(clusterOp).key], op)
		} else {
			ops = append(ops, op)
		}
	}
	for key, open := range unknown {
		slices.SortFunc(open, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		answered, highest := map[string]bool{}, 0
		seen := func(by func(out string) bool) (when int64, ok bool) {
			for _, op := range ops {
				in, out := op.Input.(clusterOp), op.Output.(string)
				if in.key == key && out != unknownOutcome && (in.name == "GET" || in.name == "GETSET" || in.name == "INCR") && by(out) && (!ok || op.Return < when) {
					when, ok = op.Return, true
				}
			}
			return when, ok
		}
		for _, op := range ops {
			if in := op.Input.(clusterOp); in.key == key && strings.HasPrefix(key, "counter:") {
				n, _ := strconv.Atoi(op.Output.(string))
				highest = max(highest, n)
				answered[op.Output.(string)] = answered[op.Output.(string)] || in.name == "INCR"
			}
		}
		missing := 1
		for _, op := range open {
			in := op.Input.(clusterOp)
			reply := op.Output
			by := func(out string) bool {
				at := strings.Index(","+out, ","+in.arg)
				if at >= 0 && in.name == "APPEND" {
					reply = strconv.Itoa(at + len(in.arg))
				}
				return at >= 0
			}
			if in.name == "INCR" {
				for answered[strconv.Itoa(missing)] {
					missing++
				}
				if missing > highest {
					break
				}
				least := missing
				reply = strconv.Itoa(least)
				by = func(out string) bool { n, _ := strconv.Atoi(out); return n >= least }
				missing++
			}
			if when, ok := seen(by); ok {
				op.Return, op.Output = max(when, op.Call), reply
				ops = append(ops, op)
			}
		}
	}
	return ops
}

// check has somebody read all keys, and fails if the history cannot be that of one server.
func (h *clusterHistory) check(t *testing.T, at *child.Process) {
	t.Helper()
	c := connect(t, at)
	c.AddHook(h)
	h.mu.Lock()
	keys := h.keys
	h.mu.Unlock()
	for key := range keys {
		proctest.Until(t, "it is known what "+key+" is", func() bool {
			return cmp.Or(h.do(t.Context(), c, -1, clusterOp{"GET", key, ""}), error(redis.Nil)) == redis.Nil
		})
	}
	ops := h.settled()
	if len(ops) == 0 {
		t.Fatal("nothing happened")
	}
	t.Logf("%d commands on %d keys; of %d it was not known whether they were carried out, of which %d were", h.done.Load(), len(keys), len(h.ops)-int(h.done.Load()), len(ops)-int(h.done.Load()))
	for _, one := range clusterModel.Partition(ops) {
		if is := porcupine.CheckOperationsTimeout(clusterModel, one, 2*hang); is != porcupine.Ok {
			key := one[0].Input.(clusterOp).key
			why := "is not linearizable"
			if is == porcupine.Unknown {
				why = fmt.Sprintf("may be linearizable or not: it took longer than %v to find out", 2*hang)
			}
			t.Errorf("the history of %s %s", key, why)
			slices.SortFunc(one, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
			for _, op := range one {
				t.Logf("%12.6f to %12.6f: client %d: %s", float64(op.Call)/1e9, float64(op.Return)/1e9, op.ClientId, clusterModel.DescribeOperation(op.Input, op.Output))
			}
			break
		}
	}
}

// burst are connections to a server by each of which a PING comes, and then one command, all at a time. A server that was stopped meanwhile finds both
// together, and so comes to commands about what others have taken over from it before it comes to what tells it of that.
type burst struct {
	h     *clusterHistory
	conns []net.Conn
}

// newBurst connects eight times as often as there are keys. When it returns the server has the connections.
func newBurst(t *testing.T, h *clusterHistory, server *child.Process) *burst {
	t.Helper()
	b := &burst{h: h}
	for range 8 * (registers + counters + logs) {
		nc, err := net.Dial("tcp", server.Addr("redis"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		_ = nc.SetDeadline(time.Now().Add(2 * hang))
		b.conns = append(b.conns, nc)
	}
	b.ping(t)
	for _, nc := range b.conns {
		if _, err := io.ReadFull(nc, make([]byte, len("+PONG\r\n"))); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// ping sends the PINGs.
func (b *burst) ping(t *testing.T) {
	t.Helper()
	for _, nc := range b.conns {
		if _, err := nc.Write(proto.AppendCommand(nil, "PING")); err != nil {
			t.Fatal(err)
		}
	}
}

// ask sends commands, those that may be or nil for any, and takes note of the replies when they come. Some is closed when an eighth have come, and the caller
// waits for all.
func (b *burst) ask(t *testing.T, number int, may func(in clusterOp) bool) (some <-chan struct{}, all *sync.WaitGroup) {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(number), 6))
	var asked []clusterOp
	writes := map[string]int{} // to registers, which leave open in which order they were: of many the checker would try too many
	for i := range b.conns {
		for n := range 1000 {
			in := b.h.next(r, 1000*(number+1)+i, n)
			register := strings.HasPrefix(in.key, "register:") && in.name != "GET"
			if may != nil && !may(in) || register && writes[in.key] == mostWrites {
				continue
			}
			if register {
				writes[in.key]++
			}
			asked = append(asked, in)
			break
		}
	}
	enough, answered := make(chan struct{}), new(atomic.Int64)
	all = new(sync.WaitGroup)
	for i, in := range asked {
		client, nc := 1000*(number+1)+i, b.conns[i]
		args := []string{in.name, in.key}
		if in.arg != "" && in.name != "GET" {
			args = append(args, in.arg)
		}
		call := b.h.now()
		if _, err := nc.Write(proto.AppendCommand(nil, args...)); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			out, err := secondReply(bufio.NewReader(nc))
			b.h.did(client, in, call, out, err)
			if answered.Add(1) == int64(max(1, len(asked)/8)) {
				close(enough)
			}
		})
	}
	return enough, all
}

// mostWrites is how many writes to a register a burst has at most.
const mostWrites = 8

// secondReply reads the reply behind that to a PING.
func secondReply(r *bufio.Reader) (out string, err error) {
	for range 2 {
		if out, err = r.ReadString('\n'); err != nil {
			return "", err
		}
	}
	kind, out := out[0], strings.TrimRight(out[1:], "\r\n")
	if kind == '-' {
		return "", errors.New(out)
	}
	if kind != '$' {
		return out, nil
	}
	n, err := strconv.Atoi(out)
	if n < 0 || err != nil {
		return "", err
	}
	text := make([]byte, n+2)
	_, err = io.ReadFull(r, text)
	return string(text[:n]), err
}

// ownersOf says which server has which partition of a fleet's heap, as a server sees it.
func ownersOf(t *testing.T, at *child.Process) (owners [fleetPartitions]string) {
	t.Helper()
	shards, err := askCluster(t, at, func(ctx context.Context, c *redis.Client) ([]redis.ClusterShard, error) {
		return c.ClusterShards(ctx).Result()
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shards {
		for _, r := range s.Slots {
			for p := partition.Of(int(r.Start), fleetPartitions); p <= partition.Of(int(r.End), fleetPartitions); p++ {
				owners[p] = s.Nodes[0].ID
			}
		}
	}
	return owners
}

// TestASharedHeapIsLinearizable: clients of all kinds use few keys while servers leave, join, are killed, and are stopped and go on after others have
// taken over from them, when they find what clients have asked them for. Whatever clients see, one server would have shown them.
func TestASharedHeapIsLinearizable(t *testing.T) {
	t.Parallel()
	cycles := 1
	if os.Getenv("TEST_SOAK") != "" {
		cycles = 30
	}
	f := startFleet(t, 4)
	defer f.end()
	for cycle := 0; cycle < cycles && !t.Failed(); cycle++ {
		linearCycle(t, f, cycle)
	}
}

// linearCycle has something of everything happen to servers, and checks the history of keys that only this cycle has.
func linearCycle(t *testing.T, f *fleet, cycle int) {
	t.Helper()
	h := &clusterHistory{cycle: cycle, began: time.Now(), keys: map[string]bool{}}
	var clients sync.WaitGroup
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop); clients.Wait() })
	defer end()
	const impatient, patient, ofCluster = 4, 2, 4
	for i := range impatient + patient {
		within := 2 * time.Second
		if i >= impatient {
			within = hang // it has what it asked a server that was stopped
		}
		c := connectAny(t, within, i, f.addrs...)
		c.AddHook(h)
		clients.Go(func() { h.use(c, i, stop) })
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: f.addrs, ClusterStateReloadInterval: oftenEnough, ReadTimeout: 2 * time.Second, NewClient: func(o *redis.Options) *redis.Client {
		n := redis.NewClient(o)
		n.AddHook(h)
		return n
	}})
	defer cluster.Close()
	for i := range ofCluster {
		clients.Go(func() { h.use(cluster, impatient+patient+i, stop) })
	}

	moves, owners := 0, ownersOf(t, f.servers[0])
	// goOn waits until servers have all partitions, the same number each, and clients have used them.
	goOn := func(servers ...*child.Process) {
		t.Helper()
		balanced(t, servers...)
		for p, now := range ownersOf(t, servers[0]) {
			if now != owners[p] {
				owners[p] = now
				moves++
			}
		}
		had := h.done.Load()
		proctest.Until(t, "clients go on", func() bool { return h.done.Load() >= had+200 })
	}
	goOn(f.servers...)
	i := rand.Perm(len(f.servers))

	f.leave(i[0])
	goOn(f.others(i[0])...)
	f.start(i[0])
	goOn(f.servers...)

	// The one with most keys is killed while it carries out what another one has forwarded to it.
	ids := clusterIDs(t, f.servers...)
	has := func(server int, key string) bool {
		return owners[partition.Of(partition.Slot([]byte(key)), fleetPartitions)] == ids[server]
	}
	keys := func(server int) (n int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for key := range h.keys {
			if has(server, key) {
				n++
			}
		}
		return n
	}
	slices.SortFunc(i[1:], func(a, b int) int { return cmp.Compare(keys(b), keys(a)) })
	forwarded := newBurst(t, h, f.servers[i[0]])
	forwarded.ping(t)
	some, all := forwarded.ask(t, 2*cycle, func(in clusterOp) bool { return in.name != "GET" && has(i[1], in.key) })
	<-some
	f.servers[i[1]].Kill()
	all.Wait()
	goOn(f.others(i[1])...)
	f.start(i[1])
	goOn(f.servers...)

	// One is stopped, and another killed when the first one's partitions are about to be taken over.
	late := newBurst(t, h, f.servers[i[2]])
	cont := f.stop(i[2])
	late.ping(t)
	time.Sleep(rand.N(partition.DefaultPatience))
	f.servers[i[3]].Kill()
	f.start(i[3])
	goOn(f.others(i[2])...)
	_, all = late.ask(t, 2*cycle+1, nil)
	cont()
	all.Wait()
	goOn(f.servers...)

	end()
	t.Logf("%d commands were acknowledged while %d partitions moved, a server left, one joined, two were killed and one stopped", h.done.Load(), moves)
	if moves < fleetPartitions {
		t.Errorf("%d partitions have moved, want %d at least", moves, fleetPartitions)
	}
	h.check(t, f.servers[0])
}
