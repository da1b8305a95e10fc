// Package etcd keeps registers in etcd, each in one key: /polder/CLUSTER/heap/NAME.
//
// The key's content is a header of 16 bytes (magic, format, version; see encode), followed by the value. A change is
// a transaction that compares the key's modification revision. A read is linearizable: no member answers it by
// itself.
//
// A change whose answer does not come may be on its way to etcd for any time. It compares the revision that the key
// had. So if the next Read still finds that revision, it writes the same content again: the key then has another
// revision, and the change can never happen. The version, which is in the content's header, stays as it was.
//
// No etcd leases are used: a register is never lost or changed because time has passed.
//
// Nothing is promised after etcd was restored from a backup, or emptied. If Read notices this, by revisions that are
// lower than before, it says so.
package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"polder/holder"
	"polder/internal/etcd"
)

// A Register is a holder.Register in one key of etcd.
type Register struct {
	client *etcd.Client
	key    string
	ctx    context.Context // ends with Close
	stop   context.CancelCauseFunc

	mu       sync.Mutex
	closed   bool
	version  uint64         // the version last seen; guarded by mu, as are the fields below
	mod      int64          // the key's revision when that was seen, or -1 if nothing was
	unsure   int64          // the newest revision that a change of unknown outcome compares with, or -1
	revision int64          // the newest revision of etcd that was seen
	wg       sync.WaitGroup // operations; added to under mu while closed is not set
}

var _ holder.Register = (*Register)(nil)

// name is what a cluster and a heap may be called.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// under is the prefix of the keys of a cluster's registers.
func under(cluster string) string { return "/polder/" + cluster + "/heap/" }

// Names returns the names of a cluster's registers, in order.
func Names(ctx context.Context, client *etcd.Client, cluster string) (names []string, err error) {
	keys, err := client.Keys(ctx, under(cluster))
	for _, key := range keys {
		if n := strings.TrimPrefix(key, under(cluster)); name.MatchString(n) {
			names = append(names, n)
		}
	}
	return names, err
}

// New returns the register of a heap of a cluster. The caller keeps client, which must stay open until Close.
func New(client *etcd.Client, cluster, heap string) (*Register, error) {
	for _, n := range []string{cluster, heap} {
		if !name.MatchString(n) {
			return nil, fmt.Errorf("cannot keep a register for %q in etcd: expected up to 64 letters, digits, dots, dashes and underscores, of which the first is a letter or a digit", n)
		}
	}
	r := &Register{client: client, key: under(cluster) + heap, mod: -1, unsure: -1}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	return r, nil
}

// Close implements holder.Register.
func (r *Register) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop(holder.ErrClosed)
	r.wg.Wait()
	return nil
}

// begin begins an operation, which lasts until the caller calls end. The returned context also ends when r is closed.
func (r *Register) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, holder.ErrClosed
	}
	r.wg.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(context.Cause(r.ctx)) })
	return ctx, func() { stop(); cancel(nil); r.wg.Done() }, nil
}

// An entry is the content of the key, with its revision.
type entry struct {
	mod     int64 // 0 if there is no key
	version uint64
	value   []byte // nil if version is 0
}

// magic begins the content of a key. Its last byte is the format.
var magic = [8]byte{'p', 'o', 'l', 'd', 'e', 'r', 'R', 1}

const headerSize = 16

// encode returns the content of a key: magic; the version, 8 bytes, little-endian; the value. Version 0 has no value.
func encode(version uint64, value []byte) []byte {
	b := make([]byte, headerSize, headerSize+len(value))
	copy(b, magic[:])
	binary.LittleEndian.PutUint64(b[8:], version)
	return append(b, value...)
}

// decode reads content that encode has made.
func decode(b []byte) (version uint64, value []byte, err error) {
	switch {
	case len(b) < headerSize || [8]byte(b[:8]) != magic:
		return 0, nil, errors.New("it is no register of this format")
	case len(b) > headerSize+holder.MaxValue:
		return 0, nil, fmt.Errorf("it has %d bytes, and a register %d at most", len(b), headerSize+holder.MaxValue)
	}
	version = binary.LittleEndian.Uint64(b[8:])
	switch {
	case version > 1<<63:
		return 0, nil, fmt.Errorf("its version is %d, which takes longer than there is time", version)
	case version == 0 && len(b) > headerSize:
		return 0, nil, errors.New("it has a value that nobody has set")
	case version == 0:
		return 0, nil, nil
	}
	return version, slices.Clone(b[headerSize:]), nil
}

// errOld says that etcd has forgotten something.
var errOld = errors.New("etcd is older than it was: it was restored from a backup, or emptied")

// get returns the content of the key. It tries until ctx ends, unless etcd itself refuses.
func (r *Register) get(ctx context.Context) (e entry, err error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		r.mu.Lock()
		least := r.revision
		r.mu.Unlock()
		kv, revision, err := r.client.Get(ctx, r.key)
		switch {
		case err == nil && revision < least:
			return e, errOld
		case err == nil && kv.Mod == 0:
			r.saw(0, 0, revision)
			return entry{}, nil
		case err == nil:
			e.mod = kv.Mod
			if e.version, e.value, err = decode(kv.Value); err != nil {
				return e, fmt.Errorf("cannot read %s in etcd: %w", r.key, err)
			}
			r.saw(e.version, e.mod, revision)
			return e, nil
		case etcd.Refused(err):
			return e, err
		}
		if err := wait(ctx, pause, err); err != nil {
			return e, err
		}
	}
}

// saw notes the version and the revision mod of the key, and etcd's revision.
func (r *Register) saw(version uint64, mod, revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revision = max(r.revision, revision)
	if mod >= r.mod {
		r.version, r.mod = version, mod
	}
}

const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// wait waits for pause before a retry of what has failed with err. It fails when ctx has ended.
func wait(ctx context.Context, pause time.Duration, err error) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
}

// Read implements holder.Register.
func (r *Register) Read(ctx context.Context) ([]byte, uint64, error) {
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer end()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		e, err := r.get(ctx)
		if err != nil {
			return nil, 0, err
		}
		r.mu.Lock()
		unsure := r.unsure == e.mod
		r.mu.Unlock()
		if !unsure {
			return e.value, e.version, nil
		}
		// A change that compares this revision may still be on its way. It cannot happen once the key has another
		// revision.
		done, revision, err := r.client.Swap(ctx, r.key, e.mod, encode(e.version, e.value), 0)
		switch {
		case etcd.Refused(err):
			return nil, 0, err
		case err != nil:
			if err := wait(ctx, pause, err); err != nil {
				return nil, 0, err
			}
		case done:
			r.saw(e.version, revision, revision)
			return e.value, e.version, nil
		}
	}
}

// Swap implements holder.Register.
func (r *Register) Swap(ctx context.Context, version uint64, value []byte) (uint64, error) {
	if len(value) > holder.MaxValue {
		return 0, fmt.Errorf("%w: it has %d", holder.ErrTooLarge, len(value))
	}
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	b := encode(version+1, value)
	r.mu.Lock()
	mod := r.mod
	if r.version != version {
		mod = -1
	}
	r.mu.Unlock()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if mod < 0 {
			e, err := r.get(ctx)
			if err != nil {
				return 0, err
			}
			if e.version != version {
				return 0, holder.ErrChanged
			}
			mod = e.mod
		}
		done, revision, err := r.client.Swap(ctx, r.key, mod, b, 0)
		switch {
		case errors.Is(err, etcd.ErrUnknown):
			r.mu.Lock()
			r.unsure = max(r.unsure, mod)
			r.mu.Unlock()
			return 0, fmt.Errorf("%w: %w", holder.ErrUnknown, err)
		case etcd.Refused(err):
			return 0, err
		case err != nil: // no endpoint has seen the request
			if err := wait(ctx, pause, err); err != nil {
				return 0, err
			}
		case done:
			r.saw(version+1, revision, revision)
			return version + 1, nil
		default: // the key was changed, or written again with the same version
			mod = -1
		}
	}
}
