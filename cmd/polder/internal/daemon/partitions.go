package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"polder/far"
	"polder/far/named"
	"polder/far/prom"
	"polder/holder"
	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/scheme"
	"polder/partition"
	"polder/pool"
	"polder/resp"
	"polder/resp/clientmem"
	"polder/resp/forward"
)

// maxSharedName is the longest name of a heap of partitions: the heap of a partition has the partition's number
// behind that name.
const maxSharedName = 58

// PartitionHeap is the name of a partition's heap.
func PartitionHeap(heap string, number int) string { return heap + "." + strconv.Itoa(number) }

// shared is what a server keeps about a heap that it shares with other servers. Each partition is a heap of its own,
// with its own memory at nodes, manifest and log. The servers agree in a register on who has which partition, see
// package partition.
type shared struct {
	p       *process
	cfg     ServeConfig
	id      string
	least   int64 // the least budget of a partition: what it has if this server has all partitions
	largest int   // bytes of a value
	server  *resp.Server
	made    chan struct{} // closed when server is set, or will stay nil
	member  *partition.Member
	links   *forward.Links     // to the other servers
	kept    Registers          // the registers of the map, and of the manifests of all partitions
	others  []partition.Server // the servers in the last map; used by changed only
	left    sync.Once
	ended   chan struct{} // closed when this server has left
	arrived atomic.Bool   // this server has had its share of partitions since it joined the map

	dividing sync.Mutex // held while the budget is divided; locked before mu
	looked   int        // calls of reweighOnce since the weights were last considered; guarded by dividing
	undone   bool       // some budgets differ from the weights, since one has yet to shrink; guarded by dividing

	mu      sync.Mutex
	open    map[int]*sharedPart // guarded by mu
	opening int                 // partitions that are being opened; guarded by mu
}

// sharedPart is a partition that this server has.
type sharedPart struct {
	of     *process // a process of the partition's own, in name only: the partition is its only part
	m      memory
	opened memory // a copy of m made when it was opened, for other goroutines to read while m is being closed
	weigh  weight // its share of the budget; guarded by dividing
}

func (c *ServeConfig) checkPartitions() error {
	n := strconv.Itoa(c.Partitions)
	switch {
	case c.Partitions == 0:
		return nil
	case c.Heap == "" || len(c.Witness) == 0:
		return refuse("partitions", n, "none without --heap and --witness: servers agree through witnesses, or etcd, on who has which partition")
	case c.Disk != "":
		return refuse("partitions", n, "none with --disk")
	case strings.HasPrefix(c.Listen, scheme.Unix):
		return refuse("listen", c.Listen, "HOST:PORT with --partitions: other servers and clients are told where this one is")
	case c.Standby:
		return refuse("standby", "true", "none with --partitions: each server takes over what another one had")
	case len(c.Heap) > maxSharedName:
		return refuse("heap", c.Heap, "a name of up to %d characters with --partitions", maxSharedName)
	case c.Local/int64(c.Partitions) < far.MinLocal:
		return refuse("partitions", n, "at most %d with --local %s: a server may have all of them, and each needs %s", c.Local/far.MinLocal, config.FormatSize(c.Local), config.FormatSize(far.MinLocal))
	}
	return nil
}

// servePartitions serves the partitions of a heap that this server gets, until the process ends.
func (p *process) servePartitions(ctx context.Context, cfg ServeConfig) error {
	stopLimit := limitGoMemory()
	p.onClose(func() error { stopLimit(); return nil })
	id := make([]byte, 20)
	rand.Read(id)
	s := &shared{p: p, cfg: cfg, id: hex.EncodeToString(id), made: make(chan struct{}), ended: make(chan struct{}), open: map[int]*sharedPart{}}
	var err error
	if s.kept, err = p.registers(&cfg.BorrowConfig); err != nil {
		return err
	}
	p.onClose(s.kept.Close)
	register, err := s.kept.Register(cfg.Heap)
	if err != nil {
		return err
	}
	p.onClose(register.Close)
	p.health = func() error {
		return fmt.Errorf("%s: it is not known yet who has which partition of heap %s", s.kept, cfg.Heap)
	}
	if err := p.serveAdmin(); err != nil {
		return err
	}
	s.links = forward.New(forward.Config{Password: p.Password, Dial: s.dial})
	p.onClose(func() error { s.links.Close(); return nil })
	if s.member, err = s.join(ctx, register); err != nil {
		return err
	}
	p.onEnd("the partitions", s.leave)
	p.spawn("the server of partitions has nothing to serve", func() error {
		select {
		case <-s.member.Removed():
			return fmt.Errorf("heap %s: %w", cfg.Heap, partition.ErrRemoved)
		case <-s.ended:
			return nil
		}
	})
	s.least = cfg.Local / int64(s.member.Map().Partitions)
	s.largest = int(cfg.largest(s.least))
	s.server, err = resp.NewLoading(resp.Config{
		Password:     p.Password(),
		MaxBulk:      s.largest,
		MaxClients:   cfg.MaxClients,
		OutputLimit:  int(cfg.OutputLimit),
		ClientMemory: clientmem.New(cfg.ClientMemory),
		OpTimeout:    cfg.OpTimeout,
		IdleTimeout:  cfg.IdleTimeout,
		Cluster:      &resp.Cluster{ID: s.id, Map: s.member.Map, Doubt: s.member.Doubt, Links: s.links},
		Logger:       p.Logger,
		ExtraStats:   s.stats,
	})
	if err != nil {
		close(s.made)
		return err
	}
	close(s.made)
	p.serveRedis(s.server)
	p.onEnd("the partitions", s.leave) // again, so that it is called before the front end ends
	p.wg.Go(s.reweigh)
	return p.nowShow(s.usable, s.report, s.server.Collector(), s)
}

const (
	leaveTime  = 20 * time.Second // how long a server that ends may take to give its partitions to other servers
	lingerTime = time.Second      // how long it goes on telling clients where the partitions are
)

// leave gives the partitions to the other servers, if there are any, and then goes on telling clients where the
// partitions are for lingerTime. It is idempotent.
func (s *shared) leave() (err error) {
	s.left.Do(func() {
		ctx, cancel := s.p.ends.phase(leaveTime, true)
		defer cancel()
		err = s.member.Close(ctx)
		close(s.ended)
		switch {
		case errors.Is(err, partition.ErrRemoved): // the daemon has failed with that already, see servePartitions
			err = nil
		case s.server != nil && len(s.member.Map().Servers) > 0:
			linger, cancel := s.p.ends.phase(lingerTime, true)
			defer cancel()
			<-linger.Done()
		}
	})
	return err
}

func (s *shared) join(ctx context.Context, reg holder.Register) (*partition.Member, error) {
	defer s.p.Waiting("waiting for the witnesses")()
	if err := awaitRegister(ctx, s.p.Logger, reg); err != nil {
		return nil, err
	}
	if err := checkNames(ctx, s.kept, s.cfg.Heap, s.cfg.Partitions, reg); err != nil {
		return nil, err
	}
	m, err := partition.Join(ctx, partition.Config{
		Register: reg, ID: s.id, Addr: s.p.me(), Partitions: s.cfg.Partitions,
		Open: s.openPart, Prepare: s.preparePart, Close: s.closePart, Spent: s.spent, Vacant: named.Vacant, Changed: s.changed, Logger: s.p.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("heap %s: %w", s.cfg.Heap, explainJoin(err))
	}
	return m, nil
}

// awaitRegister reads the register until it answers. If it has not after partition.DefaultPatience, that is said once,
// with what is wrong with each witness.
func awaitRegister(ctx context.Context, log *slog.Logger, reg holder.Register) error {
	for said := false; ; said = true {
		within, cancel := context.WithTimeout(ctx, partition.DefaultPatience)
		_, _, err := reg.Read(within)
		late := err != nil && within.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case !late:
			if said && err == nil {
				log.Info("what keeps the map of partitions answers")
			}
			return err
		case !said:
			log.Warn("what keeps the map of partitions does not answer: waiting for it", "error", err)
		}
	}
}

// changed is called with each new map. It tells commands that wait, and forgets the links to servers that have left.
func (s *shared) changed(m *partition.Map) {
	for _, was := range s.others {
		if _, ok := m.Server(was.ID); !ok {
			s.links.Forget(was.Addr)
		}
	}
	s.others = m.Servers
	select {
	case <-s.made:
		if s.server != nil {
			s.server.MapChanged()
		}
	default:
	}
}

// checkNames fails if the heap of partitions whose register is reg does not exist yet, and another heap has the name
// of one of its partitions: that heap would be taken for the partition.
func checkNames(ctx context.Context, all Registers, heap string, partitions int, reg holder.Register) error {
	if ok, err := vacant(ctx, reg); err != nil || !ok {
		return err
	}
	names, err := all.Names(ctx)
	if err != nil {
		return err
	}
	for number := range partitions {
		name := PartitionHeap(heap, number)
		if !slices.Contains(names, name) {
			continue
		}
		part, err := all.Register(name)
		if err != nil {
			return err
		}
		ok, err := vacant(ctx, part)
		if err = errors.Join(err, part.Close()); err != nil {
			return err
		}
		if ok {
			continue
		}
		// If another server has made the map meanwhile, the heap is a partition.
		if ok, err := vacant(ctx, reg); err != nil || !ok {
			return err
		}
		return fmt.Errorf("there is a heap %s, which would be taken for a partition of heap %s: expected another name with --heap, or that %s is removed (polder heap rm)",
			name, heap, name)
	}
	return nil
}

// vacant reports whether a register has no heap.
func vacant(ctx context.Context, reg holder.Register) (bool, error) {
	b, _, err := reg.Read(ctx)
	if err != nil || len(b) == 0 {
		return err == nil, err
	}
	_, gone := named.Vacant(b)
	return gone, nil
}

// explainJoin adds to an error of partition.Join what to do about it.
func explainJoin(err error) error {
	var count *partition.CountError
	switch {
	case errors.As(err, &count):
		return fmt.Errorf("%w: expected --partitions %d, which cannot be changed", err, count.Have)
	case errors.Is(err, partition.ErrNoMap):
		return fmt.Errorf("%w: it was made without --partitions, and is opened without", err)
	}
	return err
}

// dial connects to the address of another server at which its clients connect.
func (s *shared) dial(ctx context.Context, addr string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if certs := s.p.Security.Certificates; err == nil && certs != nil && certs.Has(listen.Client) {
		c := certs.Dial()
		if c == nil {
			_ = nc.Close()
			return nil, errors.New("there is no authority by which to know other servers: see --tls-ca")
		}
		c = c.Clone()
		c.ServerName, _, _ = net.SplitHostPort(addr)
		return tls.Client(nc, c), nil
	}
	return nc, err
}

// owner is this server's name as the owner of a partition's heap.
func (s *shared) owner() string { return s.p.me() + " " + s.id }

// gone reports whether the server with this name, as owner returns it, is known to have left.
func (s *shared) gone(ctx context.Context, owner string) bool {
	_, id, ok := strings.Cut(owner, " ")
	return ok && s.member.Gone(ctx, id)
}

// openPart implements partition.Config.Open: it prepares a partition, and serves it once it is this server's.
func (s *shared) openPart(ctx context.Context, number int, mine <-chan struct{}) error {
	<-s.made
	if s.server == nil {
		return errors.New("there is no server")
	}
	cfg := s.cfg
	cfg.Heap, cfg.Standby, cfg.Partitions = PartitionHeap(cfg.Heap, number), true, 0
	s.mu.Lock()
	s.opening++
	s.mu.Unlock()
	part, err := s.openAs(ctx, number, cfg, mine)
	s.mu.Lock()
	s.opening--
	if err == nil {
		s.open[number] = part
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.divide(ctx); err != nil {
		s.p.Logger.Warn("a partition has less memory than it could have", "partition", number, "error", err)
	}
	s.p.wg.Go(func() {
		if err := <-part.of.failed; err != nil { // nil when the partition is closed
			s.p.Logger.Warn("a partition is another server's", "partition", number, "error", err)
			ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
			defer cancel()
			_ = s.closePart(ctx, number)
			s.member.Lost(number)
		}
	})
	return nil
}

// openAs makes room in the budget for a partition, and opens it.
func (s *shared) openAs(ctx context.Context, number int, cfg ServeConfig, mine <-chan struct{}) (*sharedPart, error) {
	if err := s.divide(ctx); err != nil {
		return nil, err
	}
	// A heap's layout depends on the budget with which it is opened. So it is opened with the least that it may get.
	cfg.Local, cfg.MaxLocal = s.least, cfg.Local
	part := &sharedPart{of: newProcess("serve", &operator.Control{Out: io.Discard, Logger: s.p.Logger.With("partition", number), Security: s.p.Security})}
	part.of.reached, part.of.owner, part.of.gone, part.of.manifests, part.of.mine, part.of.ends = s.p.me(), s.owner(), s.gone, s.kept, mine, s.p.ends
	if err := s.openHeap(ctx, number, part, cfg); err != nil {
		return nil, errors.Join(err, part.close())
	}
	return part, nil
}

func (s *shared) openHeap(ctx context.Context, number int, part *sharedPart, cfg ServeConfig) error {
	from, err := part.of.borrow(ctx, cfg.BorrowConfig)
	if err != nil {
		return err
	}
	part.m.closeWithin = cfg.closeWithin()
	if err := part.m.open(ctx, part.of, cfg.BorrowConfig, from, s.largest); err != nil {
		return err
	}
	part.opened = part.m
	return s.server.AddPartition(ctx, number, part.m.heap, resp.Partition{
		Journal: part.m.journal(cfg), Evidence: part.m.evidence(cfg), Ready: part.m.ready,
	})
}

// close closes a partition. It must have been removed from the front end.
func (part *sharedPart) close() error {
	err := part.m.close()
	select {
	case part.of.failed <- nil:
	default: // the partition has failed
	}
	part.of.close(&err)
	return err
}

// preparePart implements partition.Config.Prepare: it takes a checkpoint, so that closePart has little left to do.
func (s *shared) preparePart(ctx context.Context, number int) error {
	s.mu.Lock()
	part := s.open[number]
	s.mu.Unlock()
	if part == nil {
		return nil
	}
	return part.opened.heap.Checkpoint(ctx)
}

// closePart implements partition.Config.Close: it ends the serving of a partition, and gives it up.
func (s *shared) closePart(ctx context.Context, number int) error {
	s.mu.Lock()
	part := s.open[number]
	delete(s.open, number)
	s.mu.Unlock()
	if part == nil {
		return nil
	}
	// No command waits longer than this. A reply may, for room in the log: then it is not sent.
	ctx, cancel := context.WithTimeout(ctx, s.cfg.OpTimeout+shutdownTimeout)
	defer cancel()
	owner := s.member.Map().Owner[number]
	part.m.moves = owner != "" && owner != s.id
	err := errors.Join(s.server.RemovePartition(ctx, number), part.close())
	s.p.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		_ = s.divide(ctx) // gives its budget to the others; if this fails, the next call of divide does
	})
	return err
}

// divide gives each partition its part of the budget: the least that a partition may have, and as much of the rest as
// its weight says. Partitions that are being opened count, too.
func (s *shared) divide(ctx context.Context) error {
	s.dividing.Lock() // so that the last of several calls sees the partitions as they are then
	defer s.dividing.Unlock()
	parts, opening := s.sharing()
	return s.divideAmong(ctx, parts, opening)
}

// sharing returns the partitions that share the budget, and how many that are being opened do.
func (s *shared) sharing() (parts []*sharedPart, opening int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.open)), s.opening
}

func (s *shared) divideAmong(ctx context.Context, parts []*sharedPart, opening int) error {
	all := float64(opening) // each counts with 1, the weight of a new partition
	for _, part := range parts {
		all += part.weigh.value()
	}
	rest := max(0, s.cfg.Local-s.least*int64(len(parts)+opening))
	want := func(part *sharedPart) int64 {
		return s.least + int64(float64(rest)*(part.weigh.value()/all))
	}
	// Partitions that get less come first, so that all together never have more than the budget.
	slices.SortFunc(parts, func(x, y *sharedPart) int {
		return cmp.Compare(want(x)-x.opened.heap.Local(), want(y)-y.opened.heap.Local())
	})
	for _, part := range parts {
		if err := part.opened.heap.SetLocal(ctx, want(part)); err != nil && !errors.Is(err, far.ErrClosed) {
			return fmt.Errorf("cannot divide the budget of %s: %w", config.FormatSize(s.cfg.Local), err)
		}
	}
	return nil
}

// weight is how much of the budget a partition gets, relative to others. The zero value is the weight of a new
// partition.
type weight struct {
	log    float64 // the logarithm of the weight
	missed uint64  // reads of far entries in all, when the weights were last considered
}

func (w *weight) value() float64 { return math.Exp(w.log) }

const (
	reweighEvery = 2 * time.Second
	// reweighWithin is how long a round waits for budgets to shrink. A partition that is to be opened waits
	// meanwhile.
	reweighWithin = 300 * time.Millisecond
	// reweighFrom is from how many reads of far entries, in all partitions, the weights are changed. With fewer, the
	// reads of the next round are added to them; after reweighOver rounds, they are dropped, since so few do not
	// matter.
	reweighFrom = 1000
	reweighOver = 10
	// mostReweigh is the largest factor by which a weight may change in a round; a factor below leastReweigh changes
	// nothing. So budgets follow the load within ten seconds or so, and stay as they are when the load only wavers.
	mostReweigh, leastReweigh = 1.25, 1.1
	mostWeight                = 16 // the largest weight; the smallest is 1/mostWeight
)

// reweigh moves memory to the partitions that use it. They share one server's budget, but each has a log, an
// evacuator and indexes of its own, so that memory does not move to the data that is used unless somebody moves it.
func (s *shared) reweigh() {
	tick := time.NewTicker(reweighEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
			if err := s.reweighOnce(); err != nil {
				s.p.Logger.Debug("the budgets of partitions stay as they are", "error", err)
			}
		}
	}
}

func (s *shared) reweighOnce() error {
	s.dividing.Lock()
	defer s.dividing.Unlock()
	parts, opening := s.sharing()
	now, sum := make([]uint64, len(parts)), 0.0
	missed, local, were := make([]float64, len(parts)), make([]float64, len(parts)), make([]float64, len(parts))
	for i, part := range parts {
		for _, m := range part.opened.heap.Stats().Maps {
			now[i] += m.Misses
		}
		missed[i], local[i], were[i] = max(0, float64(now[i])-float64(part.weigh.missed)), float64(part.opened.heap.Local()), part.weigh.log
		sum += missed[i]
	}
	logs := were
	if s.looked++; sum >= reweighFrom || s.looked >= reweighOver {
		s.looked = 0
		for i, part := range parts {
			part.weigh.missed = now[i]
		}
		logs = reweighed(missed, local, were)
	}
	if opening > 0 || !s.undone && slices.Equal(logs, were) {
		return nil
	}
	for i, part := range parts {
		part.weigh.log = logs[i]
	}
	ctx, cancel := context.WithTimeout(context.Background(), reweighWithin)
	defer cancel()
	err := s.divideAmong(ctx, slices.Clone(parts), opening)
	// If a partition is still shrinking, it goes on, and the next round gives its memory to the others.
	if s.undone = ctx.Err() != nil; s.undone {
		return err
	}
	// If a partition's indexes keep it from shrinking, restore the weights, so that no other partition shrinks for
	// nothing.
	if err != nil {
		for i, part := range parts {
			part.weigh.log = were[i]
		}
		err = errors.Join(err, s.divideAmong(ctx, parts, opening))
	}
	return err
}

// reweighed returns the logarithms of the partitions' new weights. For each partition, missed is how often it has
// missed since weights were last considered, local its local memory in bytes, and logs the logarithm of its old
// weight. A partition that misses more for each byte than the others gets more memory: if misses fall with memory in
// the same way everywhere, another byte spares the most reads there.
func reweighed(missed, local, logs []float64) []float64 {
	sumMissed, sumLocal := 0.0, 0.0
	for i := range missed {
		sumMissed += missed[i]
		sumLocal += local[i]
	}
	if len(logs) < 2 || sumMissed < reweighFrom {
		return logs
	}
	out, most := slices.Clone(logs), math.Log(mostWeight)
	for i := range out {
		factor := math.Sqrt(missed[i] / local[i] / (sumMissed / sumLocal))
		if factor > 1/leastReweigh && factor < leastReweigh {
			factor = 1
		}
		factor = min(max(factor, 1/mostReweigh), mostReweigh)
		out[i] = min(max(out[i]+math.Log(factor), -most), most)
	}
	return out
}

// parts returns the partitions that this server has, by their numbers.
func (s *shared) parts() map[int]*sharedPart {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[int]*sharedPart{}
	for number, part := range s.open {
		all[number] = part
	}
	return all
}

// usable fails until this server has its share of the partitions. It also fails if one of its partitions is not open
// yet, or cannot be used.
func (s *shared) usable() error {
	m := s.member.Map()
	if err := s.awaits(m); err != nil {
		return fmt.Errorf("heap %s: %w", s.cfg.Heap, err)
	}
	open := s.parts()
	for number, owner := range m.Owner {
		if owner != s.id {
			continue
		}
		part := open[number]
		if part == nil {
			return fmt.Errorf("partition %d of heap %s is not open yet", number, s.cfg.Heap)
		}
		if err := part.opened.usable(); err != nil {
			return err
		}
	}
	return nil
}

// awaits returns, as an error, what is yet to happen, by the map, before this server has its share. Once it had its
// share, awaits does not wait for partitions that come later because of load or of other servers.
func (s *shared) awaits(m *partition.Map) error {
	me, ok := m.Server(s.id)
	has, come := 0, 0
	for number, owner := range m.Owner {
		switch s.id {
		case owner:
			has++
		case m.Next[number]:
			come++
		}
	}
	before := slices.IndexFunc(m.Servers, func(srv partition.Server) bool { return srv.Addr == me.Addr && srv.ID != me.ID })
	switch {
	case !ok:
		s.arrived.Store(false)
		return errors.New("the others do not know this server")
	case s.arrived.Load() && has > 0:
		return nil
	case before >= 0:
		return fmt.Errorf("this server has %d partitions, and those of the one that was at %s before are not given away yet", has, me.Addr)
	case come > 0:
		return fmt.Errorf("this server has %d partitions, and %d are yet to come", has, come)
	}
	s.arrived.Store(true)
	return nil
}

func (s *shared) report(st *console.State) {
	m := s.member.Map()
	for _, srv := range m.Servers {
		st.Advice = append(st.Advice, fmt.Sprintf("%s has %s, of heap %s", srv.Addr, PartitionsOf(m, srv.ID), s.cfg.Heap))
	}
}

// PartitionsOf says how many partitions a server has, and what part of a processor's time they take there.
func PartitionsOf(m *partition.Map, id string) string {
	n, t, known := m.Burden(id)
	load := "not known yet"
	if known {
		load = strconv.FormatFloat(t.Seconds()*100, 'f', 1, 64) + "%"
	}
	return fmt.Sprintf("%d of %d partitions, load %s", n, m.Partitions, load)
}

// spent implements partition.Config.Spent.
func (s *shared) spent(number int) time.Duration { return s.server.Spent(number) }

func (s *shared) stats() []resp.Stat {
	sum := extraStats(far.Stats{}, pool.Stats{})
	for _, part := range s.parts() {
		for i, st := range extraStats(part.opened.heap.Stats(), part.opened.lent.Stats()) {
			a, _ := strconv.ParseInt(sum[i].Value, 10, 64)
			b, _ := strconv.ParseInt(st.Value, 10, 64)
			sum[i].Value = strconv.FormatInt(a+b, 10)
		}
	}
	return sum
}

// Describe implements prometheus.Collector. It describes nothing, since the metrics change with the partitions.
func (s *shared) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *shared) Collect(ch chan<- prometheus.Metric) {
	for number, part := range s.parts() {
		label := prometheus.Labels{"partition": strconv.Itoa(number)}
		show := []prometheus.Collector{pool.NewCollector(part.opened.lent), prom.NewCollector(part.opened.heap), prom.NewOwnerCollector(part.opened.name, part.opened.kept.owner)}
		if part.opened.copies != nil {
			show = append(show, prom.NewCopiesCollector(part.opened.copies))
		}
		for _, c := range show {
			prometheus.WrapCollectorWith(label, c).Collect(ch)
		}
	}
}
