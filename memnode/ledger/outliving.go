package ledger

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"polder/internal/arena"
	"polder/memnode/wire"
)

// A Store keeps descriptors, and the memory behind them, while no process of the node runs:
// *systemd.Store.
type Store interface {
	// Keep hands f over to the store, under a name.
	Keep(name string, f *os.File) error
	// Forget ends what Keep began.
	Forget(name string) error
	// Kept returns what an earlier process handed over under name, once, or nil.
	Kept(name string) *os.File
}

// Outliving is memory for a node (memnode.Config) that outlives the node's process in a Store: the next node takes it
// from the Store, and goes on with its sessions and chunks.
type Outliving struct {
	store Store
	name  string

	mu     sync.Mutex
	ledger *Ledger      // what an earlier process has left; nil if it left nothing, or the node has taken it
	kept   *arena.Memfd // the file of the node's ledger, while that is open
}

// NewOutliving returns memory that is kept in store under name, with what an earlier node has left there. Damaged
// memory is as good as lost: NewOutliving logs that, and makes the store forget it. It fails if the memory is intact
// but this program cannot use it, for example because its layout is of another version. The caller closes the
// Outliving after the node.
func NewOutliving(store Store, name string, log *slog.Logger) (*Outliving, error) {
	o := &Outliving{store: store, name: name}
	f := store.Kept(name)
	if f == nil {
		return o, nil
	}
	l, err := reopen(f)
	switch {
	case errors.Is(err, errDamaged):
		log.Error("what an earlier node has left is lost", "error", err)
		if err := store.Forget(name); err != nil {
			return nil, fmt.Errorf("cannot forget what an earlier node has left: %w", err)
		}
		return o, nil
	case err != nil:
		return nil, fmt.Errorf("cannot use what an earlier node has left: %w", err)
	}
	o.ledger = l
	return o, nil
}

// Left says how many bytes of chunks an earlier node has left, and how many bytes of its file are populated.
func (o *Outliving) Left() (lend, populated int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ledger == nil {
		return 0, 0
	}
	f := o.ledger.form
	return int64(f.Chunks) * int64(f.ChunkSize), o.ledger.file.Populated()
}

// Take returns the ledger that an earlier node has left, or a new one of the form f if there is none. What an earlier
// node has left must have the manager and chunk size of f; its number of chunks and room for sessions may differ. The
// ledger is the caller's.
func (o *Outliving) Take(f Form) (*Ledger, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if entry, _ := wire.ManagerNamed(f.Manager); !entry.Keeps {
		return nil, fmt.Errorf("memory that is lent by %s cannot outlive the node", f.Manager)
	}
	l := o.ledger
	if l == nil {
		var err error
		if l, err = create(f); err != nil {
			return nil, err
		}
		if err = o.store.Keep(o.name, l.file.File()); err != nil {
			l.Close()
			return nil, err
		}
	} else if err := l.form.serves(f); err != nil {
		return nil, err
	}
	o.ledger = nil
	o.kept = l.file
	l.leave = func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.kept = nil
	}
	return l, nil
}

// serves returns why memory of the form f is of no use to a node that wants the form want, or nil.
func (f Form) serves(want Form) error {
	const begin = ": start it so, or with empty memory, once the keeper has ended, or the service was stopped (and not restarted)"
	switch {
	case f.Manager != want.Manager:
		return fmt.Errorf("an earlier node has left memory that it lent by %s, and this one is to lend by %s%s", f.Manager, want.Manager, begin)
	case f.ChunkSize != want.ChunkSize:
		return fmt.Errorf("an earlier node has left memory in chunks of %d bytes, and this one is to have chunks of %d%s", f.ChunkSize, want.ChunkSize, begin)
	}
	return nil
}

// KeepAgain hands the node's memory to the Store again. It is called when another process has taken the keeper's
// place.
func (o *Outliving) KeepAgain() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept == nil {
		return errors.New("the node is closed")
	}
	return o.store.Keep(o.name, o.kept.File())
}

// Close closes a ledger that no node has taken. The Store keeps it.
func (o *Outliving) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.ledger
	o.ledger = nil
	if l == nil {
		return nil
	}
	return l.Close()
}
