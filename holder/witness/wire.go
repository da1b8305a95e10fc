package witness

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"polder/holder"
)

// A connection begins with greeting, in both directions: its last byte is the version of the protocol. Then come
// frames: the length of the body and the CRC32C of the body, 4 bytes each, and then the body, which is a request to
// the witness or a reply from it. Everything is little-endian. Strings, values and lists are preceded by their
// length.
const (
	greeting = "PLDRWIT\x01"

	frameHeader = 8
	maxBody     = holder.MaxValue + 8<<10
	maxListed   = 512 // names in a reply
	maxText     = 512
	maxAddr     = 255
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type kind uint8

// What a request asks.
const (
	kindHello    kind = iota + 1 // who are you?
	kindRead                     // what did you accept for Name?
	kindPrepare                  // take part in no ballot below Ballot; what did you accept?
	kindAccept                   // accept Accepted, and promise Ballot as well
	kindSeal                     // accept nothing more: NewSet comes next
	kindList                     // what registers after Name have you accepted something for?
	kindFetch                    // what did you accept for Name? Once sealed
	kindInstall                  // take Accepted, from a set before NewSet, to which you will belong
	kindActivate                 // you belong to NewSet: a majority of it has everything that was accepted before
	kindGet                      // what does your cell Name have?
	kindPut                      // if your cell Name has Ballot, take Accepted
	kinds
)

// request is a request to the witness To, as a member of version Set of the cluster.
type request struct {
	Kind     kind
	Call     uint64 // the reply carries it back
	To       Identity
	Cluster  Identity
	Set      uint64
	Name     string
	Ballot   ballot
	Accepted state
	NewSet   *Set // or nil
}

type status uint8

// How a request was answered.
const (
	statusOK       status = iota
	statusRefused         // a higher ballot was promised: Promised
	statusStranger        // this is not the witness that is meant
	statusNoSet           // it has no vote: nobody has told it of a set
	statusOtherSet        // it belongs to another set: Set
	statusSealed          // the set is being replaced by Next
	statusFull            // there is no room for the register: Text
	statusBroken          // the log cannot be written: Text
	statuses
)

type reply struct {
	Status   status
	Call     uint64
	From     Identity
	Promised ballot
	Accepted state
	Set      *Set // or nil
	Next     *Set // or nil
	Names    []listed
	Text     string
}

// listed is a register for which something was accepted.
type listed struct {
	Name   string
	Ballot ballot
}

func appendString16(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
}

func appendBallot(b []byte, x ballot) []byte {
	b = binary.LittleEndian.AppendUint64(b, x.Set)
	b = binary.LittleEndian.AppendUint64(b, x.Count)
	return binary.LittleEndian.AppendUint64(b, x.Proposer)
}

func appendState(b []byte, s *state) []byte {
	b = appendBallot(b, s.Ballot)
	b = binary.LittleEndian.AppendUint64(b, s.Version)
	b = appendBallot(b, s.Change)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.Value)))
	return append(b, s.Value...)
}

// appendSet appends a set, or the number of members 0 for none.
func appendSet(b []byte, s *Set) []byte {
	if s == nil {
		return append(b, 0)
	}
	b = append(b, byte(len(s.Members)))
	b = append(b, s.Cluster[:]...)
	b = binary.LittleEndian.AppendUint64(b, s.Version)
	for _, m := range s.Members {
		b = append(b, m.ID[:]...)
		b = append(append(b, byte(len(m.Addr))), m.Addr...)
	}
	return b
}

// append appends the body of a frame.
func (q *request) append(b []byte) []byte {
	b = append(b, byte(q.Kind))
	b = binary.LittleEndian.AppendUint64(b, q.Call)
	b = append(append(b, q.To[:]...), q.Cluster[:]...)
	b = binary.LittleEndian.AppendUint64(b, q.Set)
	b = appendString16(b, q.Name)
	b = appendBallot(b, q.Ballot)
	b = appendState(b, &q.Accepted)
	return appendSet(b, q.NewSet)
}

// append appends the body of a frame.
func (r *reply) append(b []byte) []byte {
	b = append(b, byte(r.Status))
	b = binary.LittleEndian.AppendUint64(b, r.Call)
	b = append(b, r.From[:]...)
	b = appendBallot(b, r.Promised)
	b = appendState(b, &r.Accepted)
	b = appendSet(appendSet(b, r.Set), r.Next)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.Names)))
	for _, l := range r.Names {
		b = appendBallot(appendString16(b, l.Name), l.Ballot)
	}
	return appendString16(b, r.Text[:min(len(r.Text), maxText)])
}

// append appends the log record of a change.
func (c *change) append(b []byte) []byte {
	b = append(b, byte(c.Kind))
	switch c.Kind {
	case changeIdentity:
		return append(b, c.ID[:]...)
	case changeSet, changeSeal:
		return appendSet(b, c.Set)
	}
	b = appendBallot(appendString16(b, c.Name), c.Promised)
	if c.Kind == changeAccept {
		b = appendState(b, &c.Accepted)
	}
	return b
}

var errShort = errors.New("it ends too early")

// source is the rest of a body that is being decoded. The first error stays in err; what is taken after it is zero.
type source struct {
	b   []byte
	err error
}

func (s *source) bytes(n int) []byte {
	if s.err == nil && len(s.b) < n {
		s.err = errShort
	}
	if s.err != nil {
		return nil
	}
	b := s.b[:n:n]
	s.b = s.b[n:]
	return b
}

func (s *source) u8() uint8 {
	if b := s.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (s *source) u16() uint16 {
	if b := s.bytes(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (s *source) u32() uint32 {
	if b := s.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (s *source) u64() uint64 {
	if b := s.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// length returns a length that was read, unless it is above most.
func (s *source) length(n, most int, of string) int {
	if s.err == nil && n > most {
		s.err = fmt.Errorf("%s has the length %d, want at most %d", of, n, most)
	}
	if s.err != nil {
		return 0
	}
	return n
}

func (s *source) identity() (id Identity) {
	copy(id[:], s.bytes(len(id)))
	return id
}

func (s *source) string16(most int, of string) string {
	return string(s.bytes(s.length(int(s.u16()), most, of)))
}

func (s *source) ballot() ballot {
	return ballot{s.u64(), s.u64(), s.u64()}
}

func (s *source) state() (x state) {
	x.Ballot, x.Version, x.Change = s.ballot(), s.u64(), s.ballot()
	if n := s.length(int(s.u32()), holder.MaxValue, "a value"); n > 0 {
		x.Value = append([]byte(nil), s.bytes(n)...)
	}
	return x
}

func (s *source) set() *Set {
	n := s.length(int(s.u8()), MaxMembers, "a set")
	if n == 0 {
		return nil
	}
	set := &Set{Cluster: s.identity(), Version: s.u64(), Members: make([]Member, n)}
	for i := range set.Members {
		set.Members[i] = Member{s.identity(), string(s.bytes(int(s.u8())))}
	}
	return set
}

// end returns the error of decoding, if any, or an error if bytes are left.
func (s *source) end(what string) error {
	if s.err == nil && len(s.b) > 0 {
		s.err = fmt.Errorf("%d bytes follow its end", len(s.b))
	}
	if s.err != nil {
		return fmt.Errorf("cannot read a %s: %w", what, s.err)
	}
	return nil
}

func decodeRequest(body []byte) (*request, error) {
	s := source{b: body}
	q := &request{Kind: kind(s.u8()), Call: s.u64(), To: s.identity(), Cluster: s.identity(), Set: s.u64()}
	if s.err == nil && (q.Kind == 0 || q.Kind >= kinds) {
		s.err = fmt.Errorf("there is no request of kind %d", q.Kind)
	}
	q.Name = s.string16(maxName, "a name")
	q.Ballot, q.Accepted, q.NewSet = s.ballot(), s.state(), s.set()
	if err := s.end("request"); err != nil {
		return nil, err
	}
	if err := q.valid(); err != nil {
		return nil, fmt.Errorf("cannot take a request: %w", err)
	}
	return q, nil
}

func decodeReply(body []byte) (*reply, error) {
	s := source{b: body}
	r := &reply{Status: status(s.u8()), Call: s.u64(), From: s.identity(), Promised: s.ballot()}
	if s.err == nil && r.Status >= statuses {
		s.err = fmt.Errorf("there is no answer %d", r.Status)
	}
	r.Accepted, r.Set, r.Next = s.state(), s.set(), s.set()
	for range s.length(int(s.u16()), maxListed, "a list") {
		l := listed{s.string16(maxName, "a name"), s.ballot()}
		if s.err != nil {
			break
		}
		r.Names = append(r.Names, l)
	}
	r.Text = s.string16(maxText, "a text")
	if err := s.end("reply"); err != nil {
		return nil, err
	}
	for _, set := range []*Set{r.Set, r.Next} {
		if set == nil {
			continue
		}
		if err := set.check(); err != nil {
			return nil, fmt.Errorf("cannot use a reply: %w", err)
		}
	}
	return r, nil
}

func decodeChange(rec []byte) (*change, error) {
	s := source{b: rec}
	c := &change{Kind: changeKind(s.u8())}
	switch c.Kind {
	case changeIdentity:
		c.ID = s.identity()
	case changeSet, changeSeal:
		if c.Set = s.set(); c.Set == nil && s.err == nil {
			s.err = errors.New("it lacks a set")
		}
	case changePromise, changeAccept:
		c.Name, c.Promised = s.string16(maxName, "a name"), s.ballot()
		if c.Kind == changeAccept {
			c.Accepted = s.state()
		}
	default:
		if s.err == nil {
			s.err = fmt.Errorf("there is no record of kind %d", c.Kind)
		}
	}
	return c, s.end("record")
}

// appendFrame appends a frame with the body that fill appends.
func appendFrame(b []byte, fill func([]byte) []byte) []byte {
	at := len(b)
	b = fill(append(b, make([]byte, frameHeader)...))
	body := b[at+frameHeader:]
	binary.LittleEndian.PutUint32(b[at:], uint32(len(body)))
	binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(body, castagnoli))
	return b
}

// frameLength reads a frame's header.
func frameLength(header [frameHeader]byte) (int, error) {
	n := binary.LittleEndian.Uint32(header[:])
	if n == 0 || n > maxBody {
		return 0, fmt.Errorf("cannot read a frame of %d bytes, want from 1 to %d", n, maxBody)
	}
	return int(n), nil
}

// readBody reads what follows a header, into b if it has room.
func readBody(r io.Reader, header [frameHeader]byte, b []byte) ([]byte, error) {
	n, err := frameLength(header)
	if err != nil {
		return nil, err
	}
	if cap(b) < n {
		b = make([]byte, n)
	}
	b = b[:n]
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	if got, want := crc32.Checksum(b, castagnoli), binary.LittleEndian.Uint32(header[4:]); got != want {
		return nil, fmt.Errorf("cannot read a frame: its checksum is %08x, want %08x", got, want)
	}
	return b, nil
}
