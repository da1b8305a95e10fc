package feed

import (
	"sync"

	"polder/resp/clientmem"
)

// Feed has what one client is yet to be sent without having asked for it. Any goroutine appends to it; the client's
// driver takes from it. Nobody waits for a client to read: a client whose feed exceeds what it may hold is
// disconnected.
type Feed struct {
	cfg Config

	mu   sync.Mutex
	buf  []byte             // guarded by mu
	held bool               // the driver is not told before LetGo; guarded by mu
	gone bool               // nothing more is appended; guarded by mu
	mem  *clientmem.Account // of buf; guarded by mu
}

// Config is what a Feed knows of its client. All of it is required, and any goroutine may call the functions.
type Config struct {
	Memory  *clientmem.Budget
	Allowed func() int  // how many bytes may wait
	Unread  func()      // disconnects the client, which does not read
	Evicted func()      // disconnects the client, which holds too much when memory is short
	Tell    func(*Feed) // tells the driver that there is something to take
	Version func() int  // of the protocol
}

// New makes a feed, which is held: see Hold. Whoever no longer needs the feed closes it.
func New(cfg Config) *Feed {
	f := &Feed{cfg: cfg, held: true, mem: cfg.Memory.Join()}
	f.mem.HangUp = cfg.Evicted
	return f
}

// Close forgets what the driver has not taken. Nothing is appended any more.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
	clientmem.Free(f.buf)
	f.buf = nil
	f.mem.Leave()
}

// add lets fn append to the feed, at most size bytes.
func (f *Feed) add(size int, fn func(b []byte) []byte) {
	f.mu.Lock()
	if f.gone {
		f.mu.Unlock()
		return
	}
	if len(f.buf)+size > f.cfg.Allowed() {
		f.gone = true
		f.mu.Unlock()
		f.cfg.Unread()
		return
	}
	first := len(f.buf) == 0 && !f.held // otherwise the driver has been told, or LetGo will tell it
	if need := len(f.buf) + size; need > cap(f.buf) {
		f.buf = clientmem.Grow(f.buf, max(need, 2*cap(f.buf)))
	}
	f.buf = fn(f.buf)
	f.gone = !f.mem.Hold(cap(f.buf))
	f.mu.Unlock()
	if first {
		f.cfg.Tell(f)
	}
}

// Take gives the driver what has been appended. The driver frees it.
func (f *Feed) Take() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.buf
	f.buf = nil
	f.mem.Hold(0)
	return b
}

// Hold has the driver told of nothing until LetGo, because the replies so far are to be sent first.
func (f *Feed) Hold() {
	f.mu.Lock()
	f.held = true
	f.mu.Unlock()
}

// LetGo ends Hold, and tells the driver if there is something to take. The replies that come first are on their way.
func (f *Feed) LetGo() {
	f.mu.Lock()
	some := f.held && len(f.buf) > 0
	f.held = false
	f.mu.Unlock()
	if some {
		f.cfg.Tell(f)
	}
}
