package feed

import (
	"sync"

	"polder/resp/clientmem"
)

// Feed is what one client has yet to be sent that it has not asked for. Any goroutine appends to it; the driver of the client
// takes from it. Nobody waits for a client to read, so one that does not is disconnected when its feed
// exceeds what it may.
type Feed struct {
	cfg Config

	mu   sync.Mutex
	buf  []byte             // guarded by mu
	held bool               // the driver will look when the replies before it are on their way; guarded by mu
	gone bool               // nothing more is to be appended; guarded by mu
	mem  *clientmem.Account // of buf; guarded by mu
}

// Config is what a Feed knows of its client. All of it is required, and any goroutine may call the functions.
type Config struct {
	Memory  *clientmem.Budget
	Allowed func() int  // how many bytes may wait
	Unread  func()      // disconnects the client, which does not read
	Evicted func()      // disconnects the client, which holds most when there is no more memory
	Tell    func(*Feed) // tells the driver that there is some
	Version func() int  // of the protocol
}

// New makes a feed, which is held. Who no longer needs it closes it.
func New(cfg Config) *Feed {
	f := &Feed{cfg: cfg, held: true, mem: cfg.Memory.Join()}
	f.mem.HangUp = cfg.Evicted
	return f
}

// Close forgets what has not been taken. Nothing is appended any more.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
	clientmem.Free(f.buf)
	f.buf = nil
	f.mem.Leave()
}

// add adds what fn appends, at most size bytes.
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
	first := len(f.buf) == 0 && !f.held // otherwise the driver has been told
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

// Take gives what has been appended to the driver, which frees it.
func (f *Feed) Take() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.buf
	f.buf = nil
	f.mem.Hold(0)
	return b
}

// Hold has the driver not be told of anything until LetGo: the replies so far come first.
func (f *Feed) Hold() {
	f.mu.Lock()
	f.held = true
	f.mu.Unlock()
}

// LetGo has the driver be told if there is something. What came before is on its way.
func (f *Feed) LetGo() {
	f.mu.Lock()
	some := f.held && len(f.buf) > 0
	f.held = false
	f.mu.Unlock()
	if some {
		f.cfg.Tell(f)
	}
}
