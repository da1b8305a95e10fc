package component

import (
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/child"
	"polder/memnode/component/wire"
)

// hosted is a worker as its node sees it.
type hosted struct {
	t       *Tenant
	number  uint32
	process *child.Process
	socket  int           // closed by listen
	ended   chan struct{} // closed when listen has ended
	killed  atomic.Bool   // it was killed because a request ran for too long
	objects int           // guarded by t.mu
}

// start starts a worker, and gives it the requests that wait for one.
func (t *Tenant) start() {
	h, err := t.launch()
	var out outbox
	defer out.flush()
	t.mu.Lock()
	t.starts = false
	if err == nil {
		t.worker = h
		t.server.wg.Go(h.listen)
		t.server.wg.Go(h.watch)
		if t.closed {
			h.kill()
		}
	} else if t.closed {
		t.free()
		t.mu.Unlock()
		return
	}
	var waiters []int
	for i := range t.slots {
		if t.slots[i].state == waiting {
			waiters = append(waiters, i)
		}
	}
	for _, i := range waiters {
		if err == nil {
			t.give(i)
			continue
		}
		t.answer(i, &refusal{wire.Busy, err.Error()}, &out)
		t.mu.Lock()
	}
	t.mu.Unlock()
}

// launch starts the process of a worker.
func (t *Tenant) launch() (h *hosted, err error) {
	s := t.server
	t.mu.Lock()
	err = t.enter()
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.mu.Lock()
			t.leave()
			t.mu.Unlock()
			s.log("cannot start a component worker", "error", err)
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make a socket: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "component socket")
	defer theirs.Close()
	t.lane.ready().Store(0)
	h = &hosted{t: t, socket: pair[0], ended: make(chan struct{})}
	config := s.workerConfig()
	h.number = config.Number
	cfg, err := json.Marshal(config)
	if err == nil {
		h.process, err = child.Start(child.Command{
			Path: program, Env: []string{workerEnv + "=" + string(cfg)},
			Files: []*os.File{theirs, t.file.File()},
		})
	}
	if err != nil {
		unix.Close(pair[0])
		return nil, err
	}
	s.counts.workers.Add(1)
	return h, nil
}

// send tells the worker of a request. It does not block: the socket's buffer has
// room for every slot.
//
// Preconditions: t.mu is held, so that the socket is open.
func (h *hosted) send(slot, reply, n int) {
	var rec [recordSize]byte
	b := appendRecord(rec[:0], slot, reply, n)
	for {
		// MSG_DONTWAIT: a worker that has scribbled all over its socket
		// must not hold up the node.
		_, err := unix.SendmsgN(h.socket, b, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			h.kill() // listen then deals with the worker's end
		}
		return
	}
}

// kill ends the worker, without waiting.
func (h *hosted) kill() { _ = h.process.Signal(unix.SIGKILL) } // fails only if the worker has ended

// listen takes the worker's answers until the worker ends. Then it answers the requests that the worker still had.
func (h *hosted) listen() {
	defer close(h.ended)
	t := h.t
	buf := make([]byte, credits*recordSize)
	var out outbox
	defer out.flush()
	have := 0
	for {
		n, err := unix.Read(h.socket, buf[have:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		have += n
		used := 0
		sane := true
		for ; sane && have-used >= recordSize; used += recordSize {
			sane = h.answered(buf[used:], &out)
		}
		out.flush()
		if !sane {
			break
		}
		have = copy(buf, buf[used:have])
	}
	h.process.Kill()
	t.mu.Lock()
	t.worker = nil
	unix.Close(h.socket)
	h.bury()
	var orphans []int // collected before another worker can be given a request
	for i := range t.slots {
		if t.slots[i].state == working {
			t.lane.running(i).Store(0)
			orphans = append(orphans, i)
		}
	}
	for _, i := range orphans {
		t.answer(i, refuse(wire.Lost, "the process that held the object has ended: %s", h.why()), &out)
		t.mu.Lock()
	}
	t.free()
	t.mu.Unlock()
}

// bury settles the account of a worker that has ended.
//
// Preconditions: t.mu is held.
func (h *hosted) bury() {
	s := h.t.server
	h.t.leave()
	h.t.lane.used().Add(-h.t.lane.usedThere().Swap(0))
	s.counts.workers.Add(-1)
	s.counts.objects.Add(-int64(h.objects))
	if h.t.closed {
		return
	}
	s.counts.deaths.Add(1)
	s.log("component worker died", "worker", h.number, "objects", h.objects, "why", h.why(), "stderr", h.process.Stderr())
}

func (h *hosted) why() string {
	if h.killed.Load() {
		return fmt.Sprintf("a request ran for more than %v", h.t.server.cfg.Time)
	}
	if code := h.process.ExitCode(); code >= 0 {
		return fmt.Sprintf("it exited with code %d", code)
	}
	return "it was killed"
}

// answered takes the worker's answer in the record at the beginning of b, and
// reports whether it makes sense.
func (h *hosted) answered(b []byte, out *outbox) bool {
	slot, _, n, ok := record(b)
	if !ok || n < wire.ReplyHeader {
		return false
	}
	t := h.t
	t.mu.Lock()
	s := &t.slots[slot]
	if s.state != working {
		t.mu.Unlock()
		return false
	}
	h.objects += t.account(slot)
	t.reply(slot, n, out)
	return true
}

// watch looks at a worker looks times in Config.Time. A request has run for too long if it was running at more than
// looks looks in a row, or has not been answered for as long as all slots together, one after the other, may take. A
// worker that is starting has startTime.
const (
	looks     = 4
	startTime = 30 * time.Second
)

// watch ends the worker when one of its requests runs for too long.
func (h *hosted) watch() {
	t := h.t
	tick := time.NewTicker(t.server.cfg.Time / looks)
	defer tick.Stop()
	var seen [credits]struct {
		serial          uint64
		running, inHand int
	}
	started := time.Now()
	for {
		select {
		case <-h.ended:
			return
		case <-tick.C:
		}
		overdue := false
		t.mu.Lock()
		if t.worker == h && t.lane.ready().Load() == 0 && time.Since(started) < startTime {
			t.mu.Unlock()
			continue
		}
		for i := range t.slots {
			s, w := &t.slots[i], &seen[i]
			if s.state != working || t.worker != h || s.serial != w.serial {
				*w = struct {
					serial          uint64
					running, inHand int
				}{serial: s.serial}
				continue
			}
			w.inHand++
			if t.lane.running(i).Load() != 0 {
				w.running++
			}
			overdue = overdue || w.running > looks || w.inHand > looks*(credits+1)
		}
		t.mu.Unlock()
		if overdue {
			if !h.killed.Swap(true) {
				t.server.counts.killed.Add(1)
			}
			h.kill()
		}
	}
}
