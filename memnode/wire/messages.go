// Package wire is what a memory node and its clients exchange in addition to one-sided operations: the private data
// with which queue pairs are connected, and the messages on the management queue pair.
//
// Everything is little-endian and of fixed layout. Decoding copies nothing and allocates nothing; it refuses what it
// does not know, including trailing bytes, because the peer may be hostile.
//
// # Connecting
//
// The requester's private data is a [Hello], 112 bytes, or 72 in version 4, which ends with
// the zeros:
//
//	 0  u32  magic "PMN1"
//	 4  u16  version
//	 6  u8   kind: 1 management, 2 access, 3 allocation, 4 freeing,
//	         5 components (package memnode/component)
//	 7  u8   access: which queue pair, from 0, one group after the other;
//	         allocation, freeing: of which pair; otherwise 0
//	 8  [16] name of the way of managing memory, padded with zeros
//	24  u64  session id, 0 for a new session
//	32  [32] session secret
//	64  u8   management: groups of access queue pairs wanted, 0 means 1; otherwise 0
//	65  u8   management: pairs to allocate and to free with wanted, 0 means 1; otherwise 0
//	66  [6]  management: of the name of the client's cluster ([ClusterOf]), zero if it is of none; otherwise zero
//	72  u64  management: epoch of a session that is to be kept; 0: one that is not; otherwise 0
//	80  [32] management: name of the heap that a kept session is for, padded with zeros
//
// and the answer to a management Hello is a [Welcome], 120 bytes, of the Hello's version:
//
//	 0  u32  magic
//	 4  u16  version
//	 6  u8   1 if the session was resumed
//	 7  u8   1 if the node lends what its host does not need
//	 8  u64  session id
//	16  [32] session secret
//	48  u64  address of chunk 0
//	56  u64  chunk size in bytes
//	64  u32  number of chunks
//	68  u32  chunks free
//	72  u32  chunks that this client may still take
//	76  u32  grace period in milliseconds
//	80  u16  credits: requests that may be unanswered
//	82  u16  batch: most chunks in one message
//	84  u8   access queue pairs in a group
//	85  u8   groups of them that the client connects
//	86  u8   pairs of queue pairs to allocate and to free with that it connects
//	87  u8   1 if the node is leaving: see the notice
//	88  [32] name of the node's zone, padded with zeros
//
// # Versions
//
// An end speaks its own version and the one before it, so that nodes and clients can be upgraded in any order, one
// version at a time. A client begins with its own version. A node that does not know it rejects the Hello as
// malformed, as nodes of all versions do. Then the client repeats the Hello in the version before, on the same queue
// pair, unless it needs something that this version lacks: version 4 cannot keep sessions, knows no clusters, and has
// only one group with rpcmw. All Hellos of a connection are of one version.
//
// The answer to an access Hello is empty: the connection that it came over identifies the client. There are
// exceptions: native and onesided answer with the u32 number of the node's queue pair, and odrp with the u64 address
// of the client's translation table. The answer to an allocation or freeing Hello is the u64 address of the table of
// windows and the u32 number of chunks that may be allocated with this pair; by finemem it is a [Metadata].
//
// A session with an epoch is kept: the node does not take its memory back because its client is away. To resume it, a
// client shows its number and secret, and an epoch that is not lower than the session's. The node refuses other
// clients ([Refusal]). If the node does not know the session, its memory is lost, and the Welcome is for a new
// session. When the Welcome arrives, nothing that was sent over the session's earlier connections can take effect any
// more.
//
// # Messages
//
// A [Request] has a header of 12 bytes, and for Free, May vanish and Must stay a list of u32 chunks:
//
//	0  u8   op: 1 alloc, 2 free, 3 owned, 4 space, 7 may vanish, 8 must stay, 9 vanished
//	1  u8   0
//	2  u16  n: chunks wanted; chunks in the list; most entries in the answer
//	4  u32  id, which the reply carries back
//	8  u32  owned: entries to skip; otherwise 0
//
// A space request is answered with the fields that every reply has, and with the status that an alloc would have now.
// A reply with op 5 is a notice: the node sends it unasked. Its id has a byte for each of the client's pairs of queue
// pairs to allocate and to free with, the first pair's in the lowest byte: how many allocations of this pair have
// failed. The low 8 bits of the count are enough, since a pair's allocations go one after the other. A reply with op
// 6 says whether the node is leaving: n is 1 if it is, so that the client should move what it has there, and 0 if it
// stays after all.
//
// May vanish lets a node that lends what its host does not need drop chunks whenever the host needs the memory: the
// chunks then read as zero, and are still the client's, which frees them. When chunks have been dropped, the client
// gets a reply with op 9, unasked, with id 0 and no entries. It then asks with vanished requests which chunks they
// are, until none is listed; before that it is not told again. Must stay takes the permission back. Its status is 8
// if a chunk of the list had been dropped before, or had no permission; until the answer comes the client does not
// know. Before a client frees a chunk that it has ever permitted to vanish, it also sends Must stay. Permissions end
// with the connection: when it has ended, the client must take the chunks that it had permitted to vanish over it for
// dropped.
//
// If the clients of a manager have groups, its owned reply lists a chunk once for every queue pair of the group that
// the chunk is opened to. The chunk in place n of all that are listed is opened to group n modulo the number of
// groups, and must be freed with pair n modulo the number of pairs. With rpcmw a chunk is opened to the group that
// [GroupOf] says, and is listed once.
//
// A [Reply] has a header of 20 bytes. Then alloc and owned have a list of n entries of u32 chunk, u32 rkey and u64
// address, and vanished has a list of n u32 chunks:
//
//	 0  u8   op | 0x80
//	 1  u8   status
//	 2  u16  n: entries that follow; chunks freed
//	 4  u32  id
//	 8  u32  chunks free at the node
//	12  u32  chunks that this client may still take
//	16  u32  0
package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"polder/verbs"
)

// Version is the protocol's version, and Before the older version that is also spoken.
const (
	Version = 5
	Before  = Version - 1
)

const magic = 0x314e4d50 // "PMN1"

// Sizes in bytes.
const (
	HelloSize     = 112
	WelcomeSize   = 120
	RequestHeader = 12
	ReplyHeader   = 20
	GrantSize     = 16
	MaxMessage    = 1024 // no request or reply is longer
	MaxName       = 16

	helloSize4 = 72 // in version 4
	MaxZone    = 32
	MaxHeap    = 32
	SecretSize = 32
)

// The most queue pairs of a connection: MaxGroups groups of MaxGroup queue pairs to access memory with, and MaxPairs
// pairs to allocate and to free with.
const (
	MaxGroup  = 8
	MaxGroups = 8
	MaxPairs  = 4
)

// How large a chunk is, in bytes, and how many a node has at most.
const (
	MinChunkSize = 512
	MaxChunkSize = 1 << 30
	MaxChunks    = 1 << 24 // an rkey has 24 bits of index
)

// GroupOf says to which of groups groups of access queue pairs a node whose CPU binds windows (rpcmw) opens chunk i.
// Both ends compute it by themselves, so no message has to carry it. Chunks at equal distances, whatever the
// distance, are spread almost evenly over the groups, as the multiples of the golden ratio are; a client's chunks lie
// so when several clients take turns to allocate.
func GroupOf(i uint32, groups int) int {
	return int(uint64(i*0x9e3779b1) * uint64(groups) >> 32)
}

// MaxBatch is the most chunks that fit into one message.
const MaxBatch = (MaxMessage - ReplyHeader) / GrantSize

// ErrMalformed is what every decoder's error Is.
var ErrMalformed = errors.New("malformed message")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// Kind says what a queue pair is for.
type Kind uint8

const (
	KindManagement Kind = 1
	KindAccess     Kind = 2
	KindAlloc      Kind = 3
	KindFree       Kind = 4
	KindComponent  Kind = 5
)

// A Session names a client across connections. Whoever knows the secret is the client. The zero Session asks for a
// new one.
type Session struct {
	ID     uint64
	Secret [SecretSize]byte
}

// Hello asks a node to connect a queue pair.
type Hello struct {
	Version uint16 // 0 means Version
	Kind    Kind
	Index   uint8  // KindAccess: which, one group after the other; KindAlloc, KindFree: of which pair
	Manager string // at most MaxName bytes, without zeros
	Session Session
	// KindManagement: how many groups of access queue pairs, and pairs to allocate and to free with, the client would
	// like; 0 means 1. The Welcome says how many it gets.
	Groups, Pairs uint8
	Keep          Keep    // KindManagement: how the session is to be kept, if it is
	Cluster       Cluster // KindManagement: the client's cluster
}

// Cluster stands for the name of a cluster. The zero Cluster is none.
type Cluster [6]byte

// ClusterOf is the Cluster for a name: the first bytes of the name's SHA-256, or zero for "".
func ClusterOf(name string) (c Cluster) {
	if name != "" {
		sum := sha256.Sum256([]byte(name))
		copy(c[:], sum[:])
	}
	return c
}

// A Keep says that a session is kept while its client is away. The zero Keep says that it is not.
type Keep struct {
	Epoch uint64 // of its client: a client with a higher epoch ends one with a lower
	Heap  string // what the memory is for, for people: 1 to MaxHeap printable ASCII characters without spaces
}

// Kept reports whether the session is to be kept.
func (k *Keep) Kept() bool { return k.Epoch != 0 }

// Check says what is wrong with k.
func (k *Keep) Check() error {
	switch {
	case !k.Kept() && k.Heap != "":
		return fmt.Errorf("heap %q with epoch 0, want 1 or more", k.Heap)
	case !k.Kept():
		return nil
	case k.Heap == "" || len(k.Heap) > MaxHeap:
		return fmt.Errorf("the heap's name %q has %d bytes, want 1 to %d", k.Heap, len(k.Heap), MaxHeap)
	case strings.ContainsFunc(k.Heap, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return fmt.Errorf("the heap's name is %q, want printable ASCII without spaces", k.Heap)
	}
	return nil
}

// A Refusal is why a node does not begin or resume a session, for cases that the client must tell apart. The reason
// of the rejection begins with it.
type Refusal string

const (
	// Superseded: a client with a higher epoch has had the session.
	Superseded Refusal = "superseded"
	// Denied: the session is known, but the client may not resume it like this.
	Denied Refusal = "denied"
	// Foreign: the node and the client are not of the same cluster.
	Foreign Refusal = "foreign"
)

// Reason is what a node rejects a connection with.
func (r Refusal) Reason(why string) string { return string(r) + ": " + why }

// Is reports whether a connection was rejected for r.
func (r Refusal) Is(err error) bool {
	var rejected *verbs.RejectError
	return errors.As(err, &rejected) && strings.HasPrefix(rejected.Reason, string(r)+": ")
}

// Append appends h's encoding to b.
//
// Preconditions: h.Keep and h.Cluster are zero if h.Version is Before.
func (h *Hello) Append(b []byte) []byte {
	b = appendPreamble(b, h.Version)
	b = append(b, byte(h.Kind), h.Index)
	var name [MaxName]byte
	copy(name[:], h.Manager)
	b = append(b, name[:]...)
	b = binary.LittleEndian.AppendUint64(b, h.Session.ID)
	b = append(b, h.Session.Secret[:]...)
	b = append(b, h.Groups, h.Pairs)
	b = append(b, h.Cluster[:]...)
	if h.Version == Before {
		if h.Keep.Kept() || h.Cluster != (Cluster{}) {
			panic("BUG: a node is asked for what its version has not")
		}
		return b
	}
	b = binary.LittleEndian.AppendUint64(b, h.Keep.Epoch)
	var heap [MaxHeap]byte
	copy(heap[:], h.Keep.Heap)
	return append(b, heap[:]...)
}

// Decode sets h from b.
func (h *Hello) Decode(b []byte) error {
	version, err := checkPreamble(b)
	if err != nil {
		return err
	}
	size := HelloSize
	if version == Before {
		size = helloSize4
	}
	if len(b) != size {
		return malformed("hello of %d bytes, want %d in version %d", len(b), size, version)
	}
	var full [HelloSize]byte // what is not there is zero
	copy(full[:], b)
	b = full[:]
	kind := Kind(b[6])
	if kind < KindManagement || kind > KindComponent {
		return malformed("hello of unknown kind %d", b[6])
	}
	cluster := Cluster(b[66:72])
	if b[7] != 0 && (kind == KindManagement || kind == KindComponent) || cluster != (Cluster{}) && (kind != KindManagement || version == Before) {
		return malformed("hello with a reserved byte set")
	}
	if wants := b[64] | b[65]; wants != 0 && kind != KindManagement || b[64] > MaxGroups || b[65] > MaxPairs {
		return malformed("hello of kind %d for %d groups and %d pairs", kind, b[64], b[65])
	}
	name := strings.TrimRight(string(b[8:8+MaxName]), "\x00")
	if name == "" || strings.IndexByte(name, 0) >= 0 {
		return malformed("hello with a bad manager name %q", name)
	}
	heap, rest, _ := strings.Cut(string(b[80:80+MaxHeap]), "\x00")
	keep := Keep{Epoch: binary.LittleEndian.Uint64(b[72:]), Heap: heap}
	if strings.Trim(rest, "\x00") != "" {
		return malformed("hello with bytes behind the heap's name")
	}
	if keep != (Keep{}) && kind != KindManagement {
		return malformed("hello of kind %d with an epoch or a heap", kind)
	}
	if err := keep.Check(); err != nil {
		return malformed("hello: %v", err)
	}
	h.Version, h.Kind, h.Index, h.Manager, h.Keep, h.Cluster = version, kind, b[7], name, keep, cluster
	h.Session.ID = binary.LittleEndian.Uint64(b[24:])
	copy(h.Session.Secret[:], b[32:])
	h.Groups, h.Pairs = b[64], b[65]
	return nil
}

func appendPreamble(b []byte, version uint16) []byte {
	if version == 0 {
		version = Version
	}
	b = binary.LittleEndian.AppendUint32(b, magic)
	return binary.LittleEndian.AppendUint16(b, version)
}

// checkPreamble returns the version of the message that begins with b.
func checkPreamble(b []byte) (version uint16, err error) {
	if len(b) < 6 {
		return 0, malformed("connection data of %d bytes", len(b))
	}
	if m := binary.LittleEndian.Uint32(b); m != magic {
		return 0, malformed("magic %#x, want %#x: not a Polder memory node's protocol", m, magic)
	}
	if version = binary.LittleEndian.Uint16(b[4:]); version != Version && version != Before {
		return 0, malformed("the peer speaks version %d of the protocol, and this end %d and %d: upgrade the older one", version, Before, Version)
	}
	return version, nil
}

// Unknown reports whether a node, of whatever version, has rejected a Hello because it could not read the Hello.
func Unknown(err error) bool {
	var rejected *verbs.RejectError
	return errors.As(err, &rejected) && strings.HasPrefix(rejected.Reason, ErrMalformed.Error()+": ")
}

// Welcome is a node's answer to a management Hello.
type Welcome struct {
	Version   uint16 // the Hello's; 0 means Version
	Resumed   bool   // the requested session goes on; otherwise Session is a new one
	Session   Session
	Base      uint64 // address of chunk 0; the others follow without gaps
	ChunkSize uint64
	Chunks    uint32
	Space     Space
	Grace     time.Duration // how long a session outlives its connection, in milliseconds
	Credits   uint16
	Batch     uint16
	Group     uint8  // access queue pairs in a group; 0 means 1
	Groups    uint8  // groups that the client must connect; 0 means 1
	Pairs     uint8  // pairs to allocate and to free with that it must connect; 0 means 1
	Leaving   bool   // the node is leaving: the client should move what it has there
	Zone      string // what the node fails together with, at most MaxZone bytes without zeros; or ""
	Idle      bool   // the node lends what its host does not need, and may need what it lends
}

// Space is how much more there is to allocate, in chunks.
type Space struct {
	Free   uint32 // at the node
	Budget uint32 // of this client's budget
}

// Append appends w's encoding to b.
func (w *Welcome) Append(b []byte) []byte {
	b = appendPreamble(b, w.Version)
	var resumed byte
	if w.Resumed {
		resumed = 1
	}
	var idle byte
	if w.Idle {
		idle = 1
	}
	b = append(b, resumed, idle)
	b = binary.LittleEndian.AppendUint64(b, w.Session.ID)
	b = append(b, w.Session.Secret[:]...)
	b = binary.LittleEndian.AppendUint64(b, w.Base)
	b = binary.LittleEndian.AppendUint64(b, w.ChunkSize)
	b = binary.LittleEndian.AppendUint32(b, w.Chunks)
	b = binary.LittleEndian.AppendUint32(b, w.Space.Free)
	b = binary.LittleEndian.AppendUint32(b, w.Space.Budget)
	b = binary.LittleEndian.AppendUint32(b, uint32(w.Grace.Milliseconds()))
	b = binary.LittleEndian.AppendUint16(b, w.Credits)
	b = binary.LittleEndian.AppendUint16(b, w.Batch)
	var leaving byte
	if w.Leaving {
		leaving = 1
	}
	b = append(b, w.Group, w.Groups, w.Pairs, leaving)
	b = append(b, w.Zone...)
	return append(b, make([]byte, MaxZone-len(w.Zone))...)
}

// Decode sets w from b.
func (w *Welcome) Decode(b []byte) error {
	if len(b) != WelcomeSize {
		return malformed("welcome of %d bytes, want %d", len(b), WelcomeSize)
	}
	version, err := checkPreamble(b)
	if err != nil {
		return err
	}
	if b[6] > 1 || b[7] > 1 {
		return malformed("welcome with reserved bits set")
	}
	if b[87] > 1 {
		return malformed("welcome with a reserved byte set")
	}
	zone, rest, _ := strings.Cut(string(b[88:]), "\x00")
	if strings.Trim(rest, "\x00") != "" {
		return malformed("welcome with bytes behind the zone")
	}
	v := Welcome{
		Version:   version,
		Resumed:   b[6] == 1,
		Base:      binary.LittleEndian.Uint64(b[48:]),
		ChunkSize: binary.LittleEndian.Uint64(b[56:]),
		Chunks:    binary.LittleEndian.Uint32(b[64:]),
		Space: Space{
			Free:   binary.LittleEndian.Uint32(b[68:]),
			Budget: binary.LittleEndian.Uint32(b[72:]),
		},
		Grace:   time.Duration(binary.LittleEndian.Uint32(b[76:])) * time.Millisecond,
		Credits: binary.LittleEndian.Uint16(b[80:]),
		Batch:   binary.LittleEndian.Uint16(b[82:]),
		Group:   b[84],
		Groups:  b[85],
		Pairs:   b[86],
		Leaving: b[87] == 1,
		Zone:    zone,
		Idle:    b[7] == 1,
	}
	v.Session.ID = binary.LittleEndian.Uint64(b[8:])
	copy(v.Session.Secret[:], b[16:])
	const maxChunk = 1 << 40
	switch {
	case v.Group > MaxGroup || v.Groups > MaxGroups || v.Pairs > max(MaxPairs, v.Groups):
		return malformed("welcome with %d groups of %d access queue pairs, and %d pairs to allocate with", v.Groups, v.Group, v.Pairs)
	case v.Session.ID == 0:
		return malformed("welcome without a session")
	case v.ChunkSize == 0 || v.ChunkSize > maxChunk || v.ChunkSize&(v.ChunkSize-1) != 0:
		return malformed("welcome with chunks of %d bytes", v.ChunkSize)
	case uint64(v.Chunks) > (1<<63)/v.ChunkSize || v.Base > 1<<63:
		return malformed("welcome with %d chunks at %#x", v.Chunks, v.Base)
	case v.Credits == 0 || v.Batch == 0 || v.Batch > MaxBatch:
		return malformed("welcome with %d credits, batches of %d", v.Credits, v.Batch)
	}
	*w = v
	return nil
}

// Op is what a request asks for.
type Op uint8

const (
	// OpAlloc takes up to N chunks.
	OpAlloc Op = 1
	// OpFree gives back all chunks of the list, or none.
	OpFree Op = 2
	// OpOwned lists the chunks that the client has, with keys that are valid on its current access queue pairs.
	// Chunks are bound to these first if need be.
	OpOwned Op = 3
	// OpSpace asks whether an allocation would succeed.
	OpSpace Op = 4
	// OpNotice is the op of a Reply that answers nothing: the state of the
	// node's memory has changed, or an allocation has failed.
	OpNotice Op = 5
	// OpLeaving is also the op of a Reply that answers nothing: the node is leaving if N is 1, and stays if it is 0.
	OpLeaving Op = 6
	// OpMayVanish lets the node drop the chunks of the list.
	OpMayVanish Op = 7
	// OpMustStay takes that permission back, for all chunks of the list.
	OpMustStay Op = 8
	// OpVanished lists chunks that have been dropped. It is also the op of a Reply that answers nothing and says that
	// there are dropped chunks to ask for.
	OpVanished Op = 9
)

func (o Op) String() string {
	switch o {
	case OpAlloc:
		return "alloc"
	case OpFree:
		return "free"
	case OpOwned:
		return "owned"
	case OpSpace:
		return "space"
	case OpNotice:
		return "notice"
	case OpLeaving:
		return "leaving"
	case OpMayVanish:
		return "may vanish"
	case OpMustStay:
		return "must stay"
	case OpVanished:
		return "vanished"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Status is how a request ended.
type Status uint8

const (
	StatusOK       Status = iota
	StatusNoMemory        // the node has no chunk left
	StatusBudget          // the client has used up its budget
	StatusNotOwner        // a chunk to free is not the client's
	StatusBad             // the request is malformed
	StatusNoAccess        // no access queue pair is connected
	StatusFailed          // the node's device refused
	StatusAgain           // there is more to do before the answer: ask again
	StatusVanished        // a chunk that must stay has been dropped before, or might have been

	numStatuses
)

var statusNames = [numStatuses]string{
	"ok", "no memory left", "budget used up", "not the owner",
	"malformed request", "no access queue pair", "the node's device refused",
	"ask again", "dropped before",
}

func (s Status) String() string {
	if s < numStatuses {
		return statusNames[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// lists reports whether a request with this op has a list of chunks.
func (o Op) lists() bool { return o == OpFree || o == OpMayVanish || o == OpMustStay }

// Request is a client's message. List aliases the buffer it was decoded from.
type Request struct {
	Op   Op
	ID   uint32
	N    int
	Skip uint32
	list []byte
}

// Chunk returns entry i of the list of a request that has one.
func (r *Request) Chunk(i int) uint32 { return binary.LittleEndian.Uint32(r.list[4*i:]) }

// AppendRequest appends a request without a list.
func AppendRequest(b []byte, op Op, id uint32, n int, skip uint32) []byte {
	b = append(b, byte(op), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(n))
	b = binary.LittleEndian.AppendUint32(b, id)
	return binary.LittleEndian.AppendUint32(b, skip)
}

// AppendFree appends a request to free chunks, at most MaxBatch.
func AppendFree(b []byte, id uint32, chunks []uint32) []byte {
	return AppendListed(b, OpFree, id, chunks)
}

// AppendListed appends a request about the given chunks, at most MaxBatch.
func AppendListed(b []byte, op Op, id uint32, chunks []uint32) []byte {
	b = AppendRequest(b, op, id, len(chunks), 0)
	for _, c := range chunks {
		b = binary.LittleEndian.AppendUint32(b, c)
	}
	return b
}

// Decode sets r from b. If b has a header at all, r.ID is set even when the
// rest is malformed, so that the refusal can be addressed.
func (r *Request) Decode(b []byte) error {
	*r = Request{}
	if len(b) < RequestHeader {
		return malformed("request of %d bytes", len(b))
	}
	r.Op = Op(b[0])
	r.N = int(binary.LittleEndian.Uint16(b[2:]))
	r.ID = binary.LittleEndian.Uint32(b[4:])
	r.Skip = binary.LittleEndian.Uint32(b[8:])
	list := b[RequestHeader:]
	if b[1] != 0 {
		return malformed("request with a reserved byte set")
	}
	if r.N == 0 || r.N > MaxBatch {
		return malformed("request for %d chunks, want 1 to %d", r.N, MaxBatch)
	}
	if r.Op != OpOwned && r.Skip != 0 {
		return malformed("%v that skips", r.Op)
	}
	switch {
	case r.Op.lists():
		if len(list) != 4*r.N {
			return malformed("%v of %d chunks in %d bytes", r.Op, r.N, len(list))
		}
	case r.Op == OpAlloc || r.Op == OpOwned || r.Op == OpSpace || r.Op == OpVanished:
		if len(list) != 0 {
			return malformed("%v with %d trailing bytes", r.Op, len(list))
		}
	default:
		return malformed("unknown op %d", b[0])
	}
	r.list = list
	return nil
}

// A Grant is a chunk and the key that opens it.
type Grant struct {
	Chunk uint32
	Key   verbs.RKey
	Addr  uint64 // of its first byte, as the key addresses it
}

// Reply is a node's message.
type Reply struct {
	Op     Op
	Status Status
	ID     uint32
	N      int
	Space  Space
	list   []byte
}

// Chunk returns entry i of the list of a reply to OpVanished.
func (r *Reply) Chunk(i int) uint32 { return binary.LittleEndian.Uint32(r.list[4*i:]) }

// AppendVanished appends r, a reply to OpVanished, with the chunks that were dropped, at most MaxBatch.
func AppendVanished(b []byte, r *Reply, chunks []uint32) []byte {
	v := *r
	v.N = len(chunks)
	b = AppendReply(b, &v, nil)
	for _, c := range chunks {
		b = binary.LittleEndian.AppendUint32(b, c)
	}
	return b
}

// Grant returns entry i of an alloc's or owned's reply.
func (r *Reply) Grant(i int) Grant {
	b := r.list[GrantSize*i:]
	return Grant{
		Chunk: binary.LittleEndian.Uint32(b),
		Key:   verbs.RKey(binary.LittleEndian.Uint32(b[4:])),
		Addr:  binary.LittleEndian.Uint64(b[8:]),
	}
}

// AppendReply appends r's header and grants. The reply's N is len(grants) if there are grants, and r.N otherwise.
func AppendReply(b []byte, r *Reply, grants []Grant) []byte {
	n := r.N
	if len(grants) > 0 {
		n = len(grants)
	}
	b = append(b, byte(r.Op)|0x80, byte(r.Status))
	b = binary.LittleEndian.AppendUint16(b, uint16(n))
	b = binary.LittleEndian.AppendUint32(b, r.ID)
	b = binary.LittleEndian.AppendUint32(b, r.Space.Free)
	b = binary.LittleEndian.AppendUint32(b, r.Space.Budget)
	b = binary.LittleEndian.AppendUint32(b, 0)
	for _, g := range grants {
		b = binary.LittleEndian.AppendUint32(b, g.Chunk)
		b = binary.LittleEndian.AppendUint32(b, uint32(g.Key))
		b = binary.LittleEndian.AppendUint64(b, g.Addr)
	}
	return b
}

// Decode sets r from b, which it aliases.
func (r *Reply) Decode(b []byte) error {
	*r = Reply{}
	if len(b) < ReplyHeader {
		return malformed("reply of %d bytes", len(b))
	}
	if b[0]&0x80 == 0 {
		return malformed("a request where a reply was due")
	}
	v := Reply{
		Op:     Op(b[0] &^ 0x80),
		Status: Status(b[1]),
		N:      int(binary.LittleEndian.Uint16(b[2:])),
		ID:     binary.LittleEndian.Uint32(b[4:]),
		Space: Space{
			Free:   binary.LittleEndian.Uint32(b[8:]),
			Budget: binary.LittleEndian.Uint32(b[12:]),
		},
		list: b[ReplyHeader:],
	}
	want := 0
	switch v.Op {
	case OpAlloc, OpOwned:
		want = v.N * GrantSize
	case OpVanished:
		want = 4 * v.N
	case OpSpace, OpNotice, OpMayVanish, OpMustStay:
		if v.N != 0 {
			return malformed("%v reply with %d entries", v.Op, v.N)
		}
	case OpLeaving:
		if v.N > 1 {
			return malformed("%v with %d entries", v.Op, v.N)
		}
	case OpFree:
	default:
		// A node that did not know the op answers with the op that it saw.
		if v.Status != StatusBad {
			return malformed("reply to an unknown op %d", v.Op)
		}
	}
	switch {
	case v.Status >= numStatuses:
		return malformed("reply with unknown status %d", b[1])
	case v.N > MaxBatch || v.Status != StatusOK && v.N != 0:
		return malformed("%v reply (%v) with %d entries", v.Op, v.Status, v.N)
	case len(v.list) != want:
		return malformed("%v reply with %d entries in %d bytes", v.Op, v.N, len(v.list))
	case binary.LittleEndian.Uint32(b[16:]) != 0:
		return malformed("reply with a reserved byte set")
	}
	*r = v
	return nil
}
