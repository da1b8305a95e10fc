package witness

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"polder/holder"
)

// samples are requests, replies and records of each kind.
func samples() (requests []*request, replies []*reply, changes []*change) {
	set := firstSet([]Member{{Identity{1}, "127.0.0.1:1"}, {Identity{2}, "unix:/a"}, {Identity{3}, ""}})
	next := &Set{Cluster: set.Cluster, Version: 2, Members: set.Members}
	accepted := state{Ballot: ballot{1, 7, 9}, Version: 3, Change: ballot{1, 5, 9}, Value: []byte("value")}
	for k := kindHello; k < kinds; k++ {
		q := &request{Kind: k, Call: 5, To: Identity{1}, Cluster: set.Cluster, Set: 1, Name: "heap/0", NewSet: next}
		switch k {
		case kindPrepare:
			q.Ballot, q.NewSet = ballot{1, 8, 9}, nil
		case kindAccept:
			q.Ballot, q.Accepted, q.NewSet = ballot{1, 8, 9}, accepted, nil
		case kindInstall:
			q.Accepted = accepted
		case kindPut:
			q.Ballot, q.Accepted, q.NewSet = ballot{1, 5, 9}, accepted, nil
		}
		requests = append(requests, q)
	}
	for s := range statuses {
		replies = append(replies, &reply{Status: s, Call: 5, From: Identity{1}, Promised: ballot{1, 8, 9}, Accepted: accepted, Set: set, Next: next,
			Names: []listed{{"a", ballot{1, 2, 3}}, {"b", ballot{1, 2, 4}}}, Text: "why"})
	}
	return requests, replies, []*change{
		{Kind: changeIdentity, ID: Identity{4}},
		{Kind: changeSet, Set: set},
		{Kind: changeSeal, Set: next},
		{Kind: changePromise, Name: "r", Promised: ballot{1, 2, 3}},
		{Kind: changeAccept, Name: "r", Promised: ballot{1, 8, 9}, Accepted: accepted},
	}
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	requests, replies, changes := samples()
	for _, q := range requests {
		if got, err := decodeRequest(q.append(nil)); err != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("request %+v comes back as %+v, %v", q, got, err)
		}
	}
	for _, r := range replies {
		if got, err := decodeReply(r.append(nil)); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("reply %+v comes back as %+v, %v", r, got, err)
		}
	}
	for _, c := range changes {
		if got, err := decodeChange(c.append(nil)); err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("record %+v comes back as %+v, %v", c, got, err)
		}
	}
}

func TestTheLargestMessagesFitIntoAFrame(t *testing.T) {
	big := state{Ballot: ballot{1, 1, 1}, Value: make([]byte, holder.MaxValue)}
	set := &Set{Version: 2}
	for i := range MaxMembers {
		set.Members = append(set.Members, Member{Identity{byte(i)}, strings.Repeat("a", maxAddr)})
	}
	q := &request{Kind: kindInstall, Name: strings.Repeat("n", maxName), Accepted: big, NewSet: set}
	if n := len(q.append(nil)); n > maxBody {
		t.Errorf("a request takes %d bytes, and a frame holds %d", n, maxBody)
	}
	for _, r := range []*reply{{Accepted: big, Set: set, Next: set, Text: strings.Repeat("t", 2*maxText)}, {Names: make([]listed, maxListed)}} {
		for i := range r.Names {
			r.Names[i].Name = strings.Repeat("n", maxName)
		}
		if n := len(r.append(nil)); n > maxBody {
			t.Errorf("a reply takes %d bytes, and a frame holds %d", n, maxBody)
		}
		if _, err := decodeReply(r.append(nil)); err != nil {
			t.Error(err)
		}
	}
}

func TestADamagedFrameIsRefused(t *testing.T) {
	requests, _, _ := samples()
	frame := appendFrame(nil, requests[0].append)
	for i := range frame {
		bad := bytes.Clone(frame)
		bad[i] ^= 1
		if body, err := readFrame(bad); err == nil {
			t.Errorf("with byte %d changed the frame is read as %x", i, body)
		}
	}
	huge := binary.LittleEndian.AppendUint32(nil, maxBody+1)
	if _, err := readFrame(append(huge, make([]byte, 8)...)); err == nil || !strings.Contains(err.Error(), "want from 1 to") {
		t.Errorf("a frame that is too long: %v", err)
	}
}

func readFrame(b []byte) ([]byte, error) {
	var header [frameHeader]byte
	in := bytes.NewReader(b)
	if _, err := in.Read(header[:]); err != nil {
		return nil, err
	}
	return readBody(in, header, nil)
}

// FuzzMessages: what is read of any bytes is what would be written so. Whatever a witness
// is asked, in whatever state, it answers.
func FuzzMessages(f *testing.F) {
	requests, replies, changes := samples()
	for _, q := range requests {
		f.Add(q.append(nil))
	}
	for _, r := range replies {
		f.Add(r.append(nil))
	}
	for _, c := range changes {
		f.Add(c.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := decodeRequest(b); err == nil {
			if got := q.append(nil); !bytes.Equal(got, b) {
				t.Errorf("the request %x is written as %x", b, got)
			}
			for _, before := range [][]*change{nil, changes[:2], changes[:1], changes} {
				a := newAcceptor(limits{10, 1 << 20})
				for _, c := range before {
					a.apply(c)
				}
				q.To = a.id
				r, after := a.decide(q)
				for _, c := range after {
					again, err := decodeChange(c.append(nil))
					if err != nil {
						t.Fatalf("what it would keep cannot be read: %v", err)
					}
					a.apply(again)
				}
				if _, err := decodeReply(r.append(nil)); err != nil {
					t.Errorf("what it answers cannot be read: %v", err)
				}
			}
		}
		if r, err := decodeReply(b); err == nil && !bytes.Equal(r.append(nil), b) {
			t.Errorf("the reply %x is written as %x", b, r.append(nil))
		}
		if c, err := decodeChange(b); err == nil && !bytes.Equal(c.append(nil), b) {
			t.Errorf("the record %x is written as %x", b, c.append(nil))
		}
	})
}
