package witness

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// How many witnesses a set may have.
const (
	MinMembers = 3
	MaxMembers = 9
)

// An Identity is what a witness draws at random when it has no state. A witness that has lost its state draws another
// one.
type Identity [16]byte

// newIdentity draws one.
func newIdentity() (id Identity) {
	rand.Read(id[:]) // never fails
	return id
}

// String returns the first half of the identity, which is enough for people.
func (id Identity) String() string { return hex.EncodeToString(id[:8]) }

// A Member is a witness of a set.
type Member struct {
	ID   Identity
	Addr string // where it listened when it joined
}

// A Set is the witnesses that vote. A Set does not change: another Set replaces it, with the next version.
type Set struct {
	Cluster Identity // the same for all sets that have replaced each other
	Version uint64   // 1 for the first
	Members []Member
}

// firstSet is the set that fresh witnesses begin with. For the same witnesses it is always the same set, so beginning
// twice does no harm.
func firstSet(members []Member) *Set {
	ids := make([]Identity, len(members))
	for i, m := range members {
		ids[i] = m.ID
	}
	slices.SortFunc(ids, func(a, b Identity) int { return slices.Compare(a[:], b[:]) })
	h := sha256.New()
	for _, id := range ids {
		h.Write(id[:])
	}
	s := &Set{Version: 1, Members: members}
	copy(s.Cluster[:], h.Sum(nil))
	return s
}

// majority is how many of the set's members decide.
func (s *Set) majority() int { return len(s.Members)/2 + 1 }

// has reports whether the witness belongs to the set.
func (s *Set) has(id Identity) bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.ID == id })
}

// equal reports whether two sets are the same. Addresses do not count: they only travel with a set.
func (s *Set) equal(o *Set) bool {
	return s.Cluster == o.Cluster && s.Version == o.Version &&
		slices.EqualFunc(s.Members, o.Members, func(a, b Member) bool { return a.ID == b.ID })
}

// identical reports whether two sets are the same and have the same addresses, with members in any order.
func (s *Set) identical(o *Set) bool {
	return s.Cluster == o.Cluster && s.Version == o.Version && len(s.Members) == len(o.Members) &&
		!slices.ContainsFunc(s.Members, func(m Member) bool { return !slices.Contains(o.Members, m) })
}

// String names the version and the addresses.
func (s *Set) String() string {
	var addrs []string
	for _, m := range s.Members {
		addrs = append(addrs, m.Addr)
	}
	return fmt.Sprintf("set %d (%s)", s.Version, strings.Join(addrs, ", "))
}

// check returns what is wrong with a set that nobody should be told of, or nil.
func (s *Set) check() error {
	if len(s.Members) < MinMembers || len(s.Members) > MaxMembers {
		return fmt.Errorf("a set has %d witnesses, want from %d to %d", len(s.Members), MinMembers, MaxMembers)
	}
	if s.Version == 0 {
		return errors.New("a set has the version 0")
	}
	for i, m := range s.Members {
		if len(m.Addr) > maxAddr {
			return fmt.Errorf("the address of the witness %v has %d bytes, want at most %d", m.ID, len(m.Addr), maxAddr)
		}
		if slices.ContainsFunc(s.Members[:i], func(o Member) bool { return o.ID == m.ID }) {
			return fmt.Errorf("a set has the witness %v twice", m.ID)
		}
	}
	return nil
}

// A ballot is an attempt to decide. All ballots of a set are above all ballots of the sets before.
type ballot struct {
	Set      uint64 // version of the set that votes
	Count    uint64
	Proposer uint64
}

func (b ballot) compare(o ballot) int {
	return cmp.Or(cmp.Compare(b.Set, o.Set), cmp.Compare(b.Count, o.Count), cmp.Compare(b.Proposer, o.Proposer))
}

func (b ballot) less(o ballot) bool { return b.compare(o) < 0 }

// A state is what a witness has accepted for a register. The zero value is the state of a register that was never
// set.
type state struct {
	Ballot  ballot // the ballot in which it was accepted
	Version uint64
	Change  ballot // in which this version was first proposed: no other version has the same
	Value   []byte
}
