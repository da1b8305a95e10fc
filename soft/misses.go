package soft

import (
	"hash/maphash"
	"time"
)

// Misses measures what a client's misses cost it: the time from the moment at which
// the client asks for a key in vain to the moment at which it stores that key. It is
// for those who serve clients over a network, one for each connection. The zero value
// is ready; it is for one goroutine at a time.
//
// Times are those at which commands arrived, on any clock that does not go back.
// Commands that arrived together have the same time. Misses that arrived together share
// the time until they are stored, because a client that asks for many keys at once
// makes their values in one go.
//
// It remembers at most 16 misses, each for at most MaxRebuild, so that a client can ask
// for what it never stores. While there is no room, further misses are not measured: to
// let them replace older ones would lose the misses that take long.
type Misses struct {
	list  *[16]miss     // in no order; nil until something is missed
	last  time.Duration // when the latest misses arrived
	count int           // how many arrived then
}

// MaxRebuild is the longest time between a miss and a store of the same key that counts
// as rebuilding.
const MaxRebuild = 10 * time.Second

type miss struct {
	hash  uint64 // 0: no miss
	at    time.Duration
	count int // how many arrived together; if at is Misses.last, Misses.count says it
}

var missSeed = maphash.MakeSeed()

func missHash(key []byte) uint64 { return maphash.Bytes(missSeed, key) | 1<<63 }

// Missed records that the client asked for key, in a command that arrived at now, and
// was told that there is no value.
func (m *Misses) Missed(key []byte, now time.Duration) {
	if m.list == nil {
		m.list = new([16]miss)
	}
	if now != m.last {
		if m.count > 1 {
			for i := range m.list {
				if m.list[i].at == m.last {
					m.list[i].count = m.count
				}
			}
		}
		m.last, m.count = now, 0
	}
	m.count++
	hash := missHash(key)
	e := m.find(hash)
	for i := 0; e == nil && i < len(m.list); i++ {
		if x := &m.list[i]; x.hash == 0 || now-x.at > MaxRebuild {
			e = x
		}
	}
	if e != nil {
		*e = miss{hash, now, 1}
	}
}

func (m *Misses) find(hash uint64) *miss {
	for i := range m.list {
		if m.list[i].hash == hash {
			return &m.list[i]
		}
	}
	return nil
}

// Stored returns how long the client took to make the value of key, which it stores in
// a command that arrived at now. It returns 0 if that is not known.
func (m *Misses) Stored(key []byte, now time.Duration) time.Duration {
	if m.list == nil {
		return 0
	}
	e := m.find(missHash(key))
	if e == nil {
		return 0
	}
	took, count := now-e.at, e.count
	if e.at == m.last {
		count = m.count
	}
	e.hash = 0
	if took > MaxRebuild {
		return 0
	}
	return took / time.Duration(count)
}
