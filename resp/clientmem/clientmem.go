// Package clientmem bounds the memory that the clients of a process make it hold: input that is no whole command yet,
// replies that nobody reads, queued transactions, watched keys.
//
// One Budget serves all front ends of a process. Each connection has an Account, and says there how much it holds.
// While the sum exceeds the budget, the connection that holds most is closed, and then the next. The memory of a
// closed connection stays in use until the connection's owner comes by. If closed and open connections together
// exceed the budget by a quarter, then any connection that asks for more than an equal share of another quarter is
// closed, too. Before all this happens, Allow makes clients wait: the fuller the budget is, the fewer bytes of
// replies may be pending for a client whose next command is to run.
//
// # Concurrency
//
// A Budget is for any number of goroutines. An Account's Hold and Leave are for the goroutine that owns the
// connection at that time. Budget.mu is a leaf: hang-up functions are called without it.
package clientmem

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A client with more pending replies than it may have is disconnected unless it
// reads at least Progress bytes in every Window. Less is no progress: a client
// that reads a byte now and then would hold its replies forever.
const (
	Progress = 64 << 10
	Window   = 5 * time.Second
)

// Allowance is how many pending replies a client may have, in bytes, however
// full the budget is.
const Allowance = 64 << 10

// small is the number of bytes below which an account counts as holding nothing: every connection has a few hundred
// bytes.
const small = 4 << 10

// Budget bounds the sum of what all accounts hold.
type Budget struct {
	max     int64
	used    atomic.Int64 // of accounts that are not evicted; changed under mu
	leaving atomic.Int64 // of accounts that are evicted and have not left; changed under mu
	evicted atomic.Int64 // how many accounts were ever evicted

	mu       sync.Mutex
	accounts map[*Account]struct{} // not evicted; guarded by mu
}

// New makes a budget of max bytes.
func New(max int64) *Budget {
	return &Budget{max: max, accounts: make(map[*Account]struct{})}
}

// Max is the bound in bytes.
func (b *Budget) Max() int64 { return b.max }

// Held is what all accounts hold, in bytes.
func (b *Budget) Held() int64 { return b.used.Load() + b.leaving.Load() }

// Evicted is how many clients were disconnected because of what they held.
func (b *Budget) Evicted() int64 { return b.evicted.Load() }

// Allow is how many bytes of replies may be pending for a client before its next command has to wait: a quarter of
// what is left of the budget, but at least Allowance, and in any case at most most.
func (b *Budget) Allow(most int) int {
	return min(most, max(Allowance, int(b.max-b.used.Load())/4))
}

// Account is what one client holds.
type Account struct {
	// HangUp is called once at most, by any goroutine, when the client is evicted. It must not block, and must make
	// the connection's owner close the connection. It is set before Hold is called for the first time.
	HangUp func()

	budget *Budget
	held   atomic.Int64
	gone   atomic.Bool // evicted; set under Budget.mu
}

// Join opens an account. The caller closes it with Leave.
func (b *Budget) Join() *Account {
	a := &Account{budget: b}
	b.mu.Lock()
	b.accounts[a] = struct{}{}
	b.mu.Unlock()
	return a
}

// Hold says that the client holds n bytes now. It reports false if the client
// has been evicted, by this call or before.
func (a *Account) Hold(n int) bool {
	if n < small {
		n = 0
	}
	if int64(n) == a.held.Load() { // the fast path: nearly every command
		return !a.gone.Load()
	}
	b := a.budget
	b.mu.Lock()
	more := int64(n) > a.held.Load()
	a.move(int64(n))
	var evicted []*Account
	evict := func(v *Account) {
		b.used.Add(-v.held.Load())
		b.leaving.Add(v.held.Load())
		b.evicted.Add(1)
		v.gone.Store(true)
		delete(b.accounts, v)
		evicted = append(evicted, v)
	}
	for b.used.Load() > b.max {
		evict(b.greediest())
	}
	if share := b.max / 4 / int64(max(len(b.accounts), 1)); more && int64(n) > share && b.Held() > b.max+b.max/4 && !a.gone.Load() {
		evict(a) // its owner is here and can let go of the memory; other evicted clients have not yet done so
	}
	b.mu.Unlock()
	for _, v := range evicted {
		v.HangUp()
	}
	return !a.gone.Load()
}

// move changes what a holds.
//
// Preconditions: a.budget.mu is held.
func (a *Account) move(n int64) {
	sum := &a.budget.used
	if a.gone.Load() {
		sum = &a.budget.leaving
	}
	sum.Add(n - a.held.Load())
	a.held.Store(n)
}

// greediest is the account that holds most.
//
// Preconditions: b.mu is held, and some account holds something.
func (b *Budget) greediest() (most *Account) {
	for a := range b.accounts {
		if most == nil || a.held.Load() > most.held.Load() {
			most = a
		}
	}
	return most
}

// Held is what the client holds, in bytes.
func (a *Account) Held() int64 { return a.held.Load() }

// Evicted reports whether the client is to be disconnected.
func (a *Account) Evicted() bool { return a.gone.Load() }

// Leave closes the account. It is idempotent.
func (a *Account) Leave() {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.move(0)
	delete(b.accounts, a)
}

// HangUp closes the connection under nc without a goodbye, which could block. Whoever reads from it or writes to it
// gets an error.
func HangUp(nc net.Conn) {
	for {
		wrapped, ok := nc.(interface{ NetConn() net.Conn }) // TLS
		if !ok {
			nc.Close()
			return
		}
		nc = wrapped.NetConn()
	}
}
