// Package manager says what a way of managing remote memory has to provide.
//
// A manager decides how a client gets chunks of a memory node's memory and gives them back: by asking the node's CPU
// (pool/rpcmw), or by one-sided operations only. A manager is the same for every connection; the state of one
// connection is in a [Session]. Package pool does the rest: it dials, keeps sessions alive across connections, and
// reads and writes chunks with one-sided operations on the access queue pair, using the addresses and keys of the
// manager's grants.
//
// A manager uses package verbs only, holds no lock across an operation on the fabric, and starts no goroutine.
package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"polder/memnode/wire"
	"polder/verbs"
)

var (
	// ErrNoMemory is the error that Alloc's error Is when the node has nothing left for this client. No other error
	// of Alloc is it.
	ErrNoMemory = errors.New("no memory left")
	// ErrBudget is an ErrNoMemory that waiting does not end: the client has as much as it may have.
	ErrBudget = fmt.Errorf("%w (budget used up: the node's --client-budget says how much one client may hold)", ErrNoMemory)
	// ErrRefused is the error of a call that the node understood and refused; the session goes on.
	ErrRefused = errors.New("node refused")
	// ErrClosed is the error of a session that has been closed.
	ErrClosed = errors.New("session is closed")
)

// A Manager is a way of managing remote memory. Its methods may be called by
// any number of goroutines.
type Manager interface {
	// Name is the name by which the node knows the manager.
	Name() string
	// Attach opens a session over l.Conn, and connects one or more access queue pairs that l.Access makes: the first
	// is path 0, and so on. It resumes l.Resume if the node still knows that session. On failure it leaves l's queue
	// pairs and connection to the caller.
	Attach(ctx context.Context, l Link) (Session, error)
}

// MaxPaths is the most access queue pairs of a group. A chunk is opened to one group,
// and can be reached over each of its queue pairs, with a key of its own (OneSidedMW,
// section 4.1).
const MaxPaths = wire.MaxGroup

// A Waiter is a Session that can tell when there is memory again.
type Waiter interface {
	// Returned is closed when, after the last ErrNoMemory, the node has said
	// that there is memory again.
	Returned() <-chan struct{}
}

// A Link is a new connection to a memory node. It belongs to the pool, and outlives the session.
type Link struct {
	Device verbs.Device
	PD     verbs.PD
	Conn   verbs.Conn
	// Access makes another access queue pair of the group, unconnected. A group has at most MaxPaths.
	Access func() (verbs.QP, error)
	Resume wire.Session // zero: a new session
	Keep   wire.Keep    // how the node is to keep the session, if it is
	// Cluster is the name of the cluster that the client belongs to, "" for none. Nodes of other clusters refuse it.
	Cluster string

	// Groups is how many groups of access queue pairs to connect, and Pairs how many pairs to allocate and to free
	// with, as far as the manager and the node can; 0 means 1. NextGroup begins the next group, to which the queue
	// pairs belong that Access makes from then on.
	Groups, Pairs int
	NextGroup     func() error

	// Through makes p the next path, in place of a queue pair made by Access. Every SGE of what is posted to p lies
	// in Buffer. p reports to Complete what has been carried out.
	Through  func(p Poster)
	Buffer   verbs.MR
	Complete func([]verbs.WC)

	// Vanished is called when the node has dropped chunks. Locks of the session are held then: it must not block.
	Vanished func()
}

// A Poster carries out accesses for which one operation on the fabric is not enough. It is used like an access queue
// pair.
type Poster interface {
	// PostSend carries out READs, WRITEs and atomics of one SGE each. It may return before they are done.
	// Link.Complete is called for each that is done, with no lock held.
	PostSend(wrs ...verbs.SendWR) error
	// Close ends the poster. After it has returned, the poster no longer touches Link.Buffer. It is idempotent.
	Close() error
}

// A Session is a client's standing with one node over one connection. Its methods may be called by any number of
// goroutines. When the connection is lost, every call fails at once; what the client owned can be had again through a
// Session on another connection. The same holds after any error that is not ErrNoMemory, ErrRefused or the context's.
type Session interface {
	// Info says what was agreed when the session was opened.
	Info() Info
	// Alloc fills grants with memory that reads as zero and is open to the access queue pair. Together they have at
	// most len(grants) chunks. It returns how many grants it has filled, at least one, or an error. When it fails
	// with ctx's error, memory that it may have got is given back by a later call, or with the session.
	Alloc(ctx context.Context, grants []Grant) (int, error)
	// Free gives grants back, named by their first chunks: all, or none.
	Free(ctx context.Context, chunks []uint32) error
	// Owned returns everything that the client owns, in grants like those of Alloc, open to the access queue pair.
	Owned(ctx context.Context) ([]Grant, error)
	// Space is how much more could be allocated, as far as the session
	// knows without asking.
	Space() wire.Space
	// Leaving reports whether the node will end when nothing is lent any more, so that what it has lent should be
	// moved elsewhere.
	Leaving() bool
	// Close releases what the session holds of the device. It does not
	// give chunks back. Calls in progress end with ErrClosed.
	Close()
}

// Info is what a node tells a client that connects.
type Info struct {
	Session   wire.Session
	Resumed   bool // Session is the session that was to be resumed
	ChunkSize int
	Chunks    int           // at the node, in all
	Grace     time.Duration // how long chunks outlive the connection
	Zone      string        // what the node fails together with, or ""
	Version   uint16        // version of wire that the connection speaks
	Yielder   Yielder       // nil unless the node lends what its host does not need
}

// A Yielder tells a node which chunks it may drop when its host needs the memory. Permissions end with the
// connection. Each chunk must have been granted alone.
type Yielder interface {
	// MayVanish permits the node to drop chunks that the client has.
	MayVanish(ctx context.Context, chunks []uint32) error
	// MustStay takes the permission back, and reports whether none of the chunks has been dropped.
	MustStay(ctx context.Context, chunks []uint32) (all bool, err error)
	// Vanished calls vanished with every chunk that has been dropped since its last call. Link.Vanished is called
	// when there is one. vanished must not call the session.
	Vanished(ctx context.Context, vanished func(chunk uint32)) error
}

// A Grant is the right to use a chunk, or several chunks with consecutive numbers, over one connection.
type Grant struct {
	Chunk  uint32               // the node's number of the first chunk
	Chunks int                  // how many chunks
	Addr   uint64               // address of their first byte
	Group  int                  // the group whose queue pairs may use it
	Keys   [MaxPaths]verbs.RKey // by path of the group
}
