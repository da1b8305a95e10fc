package named

import (
	"context"
	"fmt"

	"polder/holder"
)

// Empty removes the heap's contents from the manifest: whoever opens the heap next finds it empty. What stays is the
// epoch, so that the next owner's is higher, and the sessions at nodes, as long as Config.Sessions has any. Wait for
// Ready before it.
func (o *Owner) Empty(ctx context.Context) error {
	if err := o.begin(ctx); err != nil {
		return fmt.Errorf("cannot empty the heap: %w", err)
	}
	defer o.end()
	err := o.change(ctx, holder.MaxValue, func(m *Manifest) error {
		*m = Manifest{Epoch: m.Epoch, Nonce: m.Nonce, Beat: m.Beat, Owner: m.Owner, Process: m.Process, Lease: m.Lease, Sessions: m.Sessions}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot empty the heap: %w", err)
	}
	return nil
}

// Free returns a manifest without its owner, which an operator says is dead.
func Free(value []byte) ([]byte, error) {
	m, err := DecodeManifest(value)
	if err != nil {
		return nil, err
	}
	m.Owner, m.Process, m.Epoch = "", "", m.Epoch+1
	return m.Encode(), nil
}

// IsFree reports whether a value is a manifest without an owner.
func IsFree(value []byte) bool {
	m, err := DecodeManifest(value)
	return err == nil && m.Owner == ""
}

// Gone reports whether there is no heap: it was removed, and only its epoch is left.
func (m *Manifest) Gone() bool { return m.Owner == "" && m.Root == nil && len(m.Sessions) == 0 }

// Vacant reports whether a value is the manifest of a heap that is gone, and returns its last epoch.
func Vacant(value []byte) (epoch uint64, ok bool) {
	m, err := DecodeManifest(value)
	if err != nil || !m.Gone() {
		return 0, false
	}
	return m.Epoch, true
}

// Stats describes the state of an ownership.
type Stats struct {
	Epoch    uint64
	Evidence float64 // age in seconds of the newest evidence that there is no other owner; huge once there is one
	Shown    bool    // the evidence is fresh enough to answer, or Config.Fenced is set
}

// Stats returns what the owner knows now.
func (o *Owner) Stats() Stats {
	age := o.cfg.now().Nanoseconds() - o.evidence.Load()
	return Stats{Epoch: o.epoch, Evidence: float64(age) / 1e9, Shown: o.cfg.Fenced || age < o.cfg.Lease.Nanoseconds() && o.ctx.Err() == nil}
}
