package coordinator

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/soft/mrc"
	"polder/soft/policy"
	"polder/soft/wire"
)

// session is one client. Its fields are under Coordinator.mu unless noted.
type session struct {
	id      uint64
	conn    *fdpass.Conn // sent to by run, received from by serve
	peer    fdpass.Peer
	hello   wire.Hello
	cgroups []string // the paths of the control groups that the client is in
	weight  float64
	memory  *arena.Memfd
	ctl     *wire.Control

	granted []bool // what the client may use, whatever its table says
	count   int    // how many are granted
	target  int    // what it should have

	shrinkBy time.Time // when it must have given back what is above target
	report   wire.Report
	before   wire.Report // the client's report at the last full division
	told     time.Time   // when the last report came
	came     time.Time   // when it registered
	first    bool        // no report has come yet

	resident   int64 // bytes of its memfd that existed at the last look
	violations int   // audits in a row that found more than was granted
	gone       bool

	limited     bool // by its control group
	limit, free int64
}

const helloTimeout = 5 * time.Second

var errMemory = errors.New("the memory handed over is not a client's")

// register takes a connection's Hello.
func (c *Coordinator) register(conn *fdpass.Conn, peer fdpass.Peer) (*session, error) {
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	msg, files, err := conn.RecvFDs()
	if err != nil {
		return nil, fmt.Errorf("no hello: %w", err)
	}
	keep := false
	defer func() {
		if !keep {
			fdpass.CloseAll(files)
		}
	}()
	kind, body, err := wire.Split(msg)
	if err != nil {
		return nil, err
	}
	if kind != wire.KindHello || len(files) != 2 {
		return nil, fmt.Errorf("%w: kind %q with %d descriptors in place of a hello with 2", wire.ErrMalformed, byte(kind), len(files))
	}
	hello, err := wire.DecodeHello(body)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, peer: peer, hello: hello, cgroups: cgroupsOf(conn, peer.PID), first: true}
	if err := s.adopt(files[0], files[1]); err != nil {
		return nil, err
	}
	keep = true
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// adopt takes a client's memory over. The table is mapped, so nobody must be able to truncate it; the segments are
// never mapped.
func (s *session) adopt(memory, table *os.File) error {
	if err := checkMemfd(table, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW, 0); err != nil {
		return err
	}
	if err := checkMemfd(memory, unix.F_SEAL_GROW, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK); err != nil {
		return err
	}
	t, err := arena.OpenMemfd(table)
	if err != nil {
		return err
	}
	if t.Size() > wire.ControlSize(wire.MaxSegments) {
		return fmt.Errorf("%w: a table of %d bytes", errMemory, t.Size())
	}
	m, err := t.Map(0, t.Size(), true)
	if err != nil {
		return err
	}
	ctl, err := wire.OpenControl(m)
	if err != nil {
		return errors.Join(err, m.Close())
	}
	mem, err := arena.OpenMemfd(memory)
	if err != nil {
		return errors.Join(err, m.Close())
	}
	if mem.Size() != ctl.Segments()*segmentSize {
		return errors.Join(fmt.Errorf("%w: %d bytes for %d segments", errMemory, mem.Size(), ctl.Segments()), m.Close())
	}
	s.ctl, s.memory = ctl, mem
	s.granted = make([]bool, ctl.Segments())
	for i := range s.granted {
		if ctl.Granted(uint32(i)) {
			s.granted[i] = true
			s.count++
		}
	}
	s.target = s.count
	s.measure()
	return t.Close() // the mapping stays
}

// checkMemfd makes sure that a descriptor is memory of the kernel's own, that
// it has the seals it needs and none that would be in our way.
func checkMemfd(f *os.File, need, forbid int) error {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("%w: it is no memfd: %w", errMemory, err)
	}
	if seals&need != need || seals&forbid != 0 {
		return fmt.Errorf("%w: seals %#x, want %#x and not %#x", errMemory, seals, need, forbid)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("%w: %w", errMemory, err)
	}
	if st.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%w: it lies in a file system of type %#x", errMemory, st.Type)
	}
	return nil
}

// measure looks how much of the client's memory exists.
func (s *session) measure() {
	var st unix.Stat_t
	if unix.Fstat(int(s.memory.File().Fd()), &st) == nil {
		s.resident = st.Blocks * 512
	}
}

// existing returns which segments have memory that exists, whatever the client says that it has: taking other
// segments frees nothing.
func (s *session) existing() []bool {
	list := make([]bool, len(s.granted))
	fd := int(s.memory.File().Fd())
	for at := int64(0); at < int64(len(list))*segmentSize; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if err != nil {
			break // no more of it
		}
		seg := data / segmentSize
		if int(seg) >= len(list) {
			break
		}
		list[seg] = true
		at = (seg + 1) * segmentSize
	}
	return list
}

// freed calls do, and returns by how many bytes that has shrunk the client's memory.
func (s *session) freed(do func()) int64 {
	before := s.resident
	do()
	s.measure()
	return max(before-s.resident, 0)
}

// grant gives the client n more segments, as far as its table has them.
func (s *session) grant(n int) {
	for i := 0; i < len(s.granted) && n > 0; i++ {
		if s.granted[i] {
			continue
		}
		s.ctl.Grant(uint32(i)) // if the client has done that itself, so be it
		s.granted[i] = true
		s.count++
		n--
	}
}

// released takes segments that the client has given up.
func (s *session) released(list []uint32) {
	for _, i := range list {
		if int(i) < len(s.granted) && s.granted[i] {
			s.take(i)
		}
	}
}

// take revokes a granted segment and punches its pages away. Clients give up empty segments first, and the
// coordinator takes empty ones first: so take subtracts the segment from what the client's last report says is free,
// not from what the client uses.
func (s *session) take(i uint32) {
	s.ctl.Revoke(i)
	s.granted[i] = false
	s.count--
	s.report.Free = max(s.report.Free-segmentSize, 0)
	// Fails only if the client has shrunk its memfd, and then there is nothing to punch.
	_ = s.memory.Punch(int(i)*segmentSize, segmentSize)
}

// send tells the client something, if it listens.
func (s *session) send(k wire.Kind, v any) {
	_ = s.conn.TrySend(wire.Encode(k, v))
}

// end takes everything from a client. If the client is hostile, it also ends its life: whoever touches a truncated
// memfd faults.
func (s *session) end(hostile bool) {
	for i := range s.granted {
		if s.granted[i] {
			s.ctl.Revoke(uint32(i))
			s.granted[i] = false
		}
	}
	s.count, s.target = 0, 0
	if hostile {
		_ = s.memory.File().Truncate(0)
	} else {
		_ = s.memory.Punch(0, s.memory.Size())
	}
	s.measure()
}

func (s *session) close() error {
	if s.memory == nil {
		return nil
	}
	return errors.Join(s.memory.Close(), s.ctl.Close())
}

// cost is what a miss costs the client in the mean, in seconds, as it measures; 0 if it
// does not know.
func (s *session) cost() float64 {
	if s.report.Assumed {
		return 0
	}
	return s.report.Curve.MeanCost()
}

// medianCost is the median, over the clients that know it, of what a miss costs, in seconds; mrc.AssumedCost if none
// knows.
func medianCost(list []*session) float64 {
	var known []float64
	for _, s := range list {
		if v := s.cost(); v > 0 {
			known = append(known, v)
		}
	}
	n := len(known)
	if n == 0 {
		return mrc.AssumedCost
	}
	slices.Sort(known)
	return (known[(n-1)/2] + known[n/2]) / 2
}

// silence is how long a client may send no report, where one is due every second, before the policy is told that
// memory saves it nothing: the client is stopped, or hangs.
const silence = 5 * time.Second

// app is what the policy is told of the client. If the client does not know what its misses cost, each is taken to
// cost typical seconds, as those of the other clients do.
func (s *session) app(now time.Time, seconds, typical float64) policy.App {
	r, b := s.report, s.before
	rate := func(now, then uint64) float64 {
		if now < then || seconds <= 0 {
			return 0
		}
		return float64(now-then) / seconds
	}
	a := policy.App{
		ID: s.id, Name: s.hello.Name, Weight: s.weight,
		Memory: int64(s.count) * segmentSize,
		Used:   min(max(int64(s.count)*segmentSize-r.Free, 0), int64(s.count)*segmentSize),
		Max:    int64(len(s.granted)) * segmentSize,
		Hits:   rate(r.Hits, b.Hits), Misses: rate(r.Misses, b.Misses),
		Curve: r.Curve, Busy: float64(min(r.Workers, maxRebuild)),
	}
	if seconds > 0 {
		a.Rebuild = min(max(r.RebuildSeconds-b.RebuildSeconds, 0)/seconds, maxRebuild)
	}
	if r.Assumed {
		a.Curve = r.Curve.Times(typical / mrc.AssumedCost)
		a.Rebuild = a.Misses * typical
	}
	if !s.told.IsZero() && now.Sub(s.told) > silence {
		a.Curve, a.Rebuild, r.Utility = mrc.Curve{}, 0, nil
	}
	if r.Utility != nil {
		a.Utility, a.HasUtility = *r.Utility, true
	}
	if s.limited { // by its own control group, where it has other memory too
		a.Max = min(a.Max, max(s.resident+s.free-s.limit/16, 0))
	}
	return a
}

// maxRebuild bounds the seconds of rebuilding that a client can claim to do in
// a second: as many as it may have threads.
const maxRebuild = 1024

// roundUp is how many segments it takes to have so many bytes.
func roundUp(bytes int64) int { return segments(max(bytes, 0) + segmentSize - 1) }

func segments(bytes int64) int { return int(min(bytes/segmentSize, math.MaxInt32)) }
