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
	// Keep hands f over under a name.
	Keep(name string, f *os.File) error
	// Forget ends what Keep began.
	Forget(name string) error
	// Kept returns what an earlier process handed over under name, once, or nil.
	Kept(name string) *os.File
}

// Outliving is memory for a node (memnode.Config) that outlives its process, in a Store:
// the next node that is made of what the Store has goes on with its sessions and chunks.
type Outliving struct {
	store Store
	name  string

	mu     sync.Mutex
	ledger *Ledger      // what an earlier process has left; nil: nothing, or the node has it
	kept   *arena.Memfd // of the node's ledger, while it is open
}

// NewOutliving returns memory that is kept in store under name, with what an earlier node
// has left there. What is damaged is as good as lost: that is logged, and forgotten. It
// fails if this program cannot know what it is. The caller closes it after the node.
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

// Left says what an earlier node has left: so many bytes in chunks, and how many of them are
// populated.
func (o *Outliving) Left() (lend, populated int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ledger == nil {
		return 0, 0
	}
	f := o.ledger.form
	return int64(f.Chunks) * int64(f.ChunkSize), o.ledger.file.Populated()
}

// Take returns what an earlier node has left, for a node that lends memory of the form f
// but for the number of chunks and the room for sessions, or new memory of the form f. The
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

// serves says why memory of the form f is of no use to a node that wants another.
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

// KeepAgain hands the memory of the node to the Store again, where another process has taken
// the keeper's place.
func (o *Outliving) KeepAgain() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept == nil {
		return errors.New("the node is closed")
	}
	return o.store.Keep(o.name, o.kept.File())
}

// Close lets go of what no node has taken. The Store keeps it.
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
