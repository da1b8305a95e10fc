package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"polder/verbs"
)

func exampleHello() Hello {
	h := Hello{Kind: KindManagement, Manager: "rpcmw", Session: Session{ID: 7}, Keep: Keep{Epoch: 1 << 40, Heap: "orders"}, Cluster: ClusterOf("blue")}
	copy(h.Session.Secret[:], "an example of a session's secret")
	return h
}

func exampleWelcome() Welcome {
	return Welcome{
		Resumed: true, Session: exampleHello().Session,
		Base: 0x7f0000000000, ChunkSize: 1 << 20, Chunks: 2048,
		Space: Space{Free: 2000, Budget: 100}, Grace: 10 * time.Second,
		Credits: 8, Batch: MaxBatch, Leaving: true,
	}
}

func TestConnectionDataSurvivesTheTrip(t *testing.T) {
	h := exampleHello()
	b := h.Append(nil)
	h.Version = Version
	if len(b) != HelloSize || len(b) > verbs.MaxPrivateData {
		t.Fatalf("a hello has %d bytes, want %d", len(b), HelloSize)
	}
	var gotH Hello
	if err := gotH.Decode(b); err != nil || gotH != h {
		t.Fatalf("got %+v, %v, want %+v", gotH, err, h)
	}
	w := exampleWelcome()
	b = w.Append(nil)
	w.Version = Version
	if len(b) != WelcomeSize || len(b) > verbs.MaxPrivateData {
		t.Fatalf("a welcome has %d bytes, want %d", len(b), WelcomeSize)
	}
	var gotW Welcome
	if err := gotW.Decode(b); err != nil || gotW != w {
		t.Fatalf("got %+v, %v, want %+v", gotW, err, w)
	}
}

// What a client and a node of version 4 sent, before there was another version.
const (
	helloOf4 = "504d4e31040001007270636d77000000000000000000000007000000000000000102030405060708090a0b0c0d0e0f10" +
		"1112131415161718191a1b1c1d1e1f200201000000000000"
	accessOf4 = "504d4e31040002007270636d770000000000000000000000000000000000000000000000000000000000000000000000" +
		"000000000000000000000000000000000000000000000000"
	welcomeOf4 = "504d4e310400010007000000000000000102000000000000000000000000000000000000000000000000000000000000" +
		"000010000000000000100000000000000800000007000000080000" + "0060ea000008003e00000100007261636b2d310000000000000000000000000000000000000000000000000000"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTheVersionBeforeIsSpoken(t *testing.T) {
	secret := [SecretSize]byte{}
	for i := range secret {
		secret[i] = byte(i + 1)
	}
	for b, want := range map[string]Hello{
		helloOf4:  {Version: 4, Kind: KindManagement, Manager: RPCMW, Session: Session{ID: 7, Secret: secret}, Groups: 2, Pairs: 1},
		accessOf4: {Version: 4, Kind: KindAccess, Manager: RPCMW},
	} {
		var h Hello
		if err := h.Decode(unhex(t, b)); err != nil || h != want {
			t.Errorf("got %+v, %v, want %+v", h, err, want)
		}
		if got := hex.EncodeToString(want.Append(nil)); got != b {
			t.Errorf("%+v is encoded as %s, want %s", want, got, b)
		}
	}
	want := Welcome{
		Version: 4, Resumed: true, Session: Session{ID: 7, Secret: [SecretSize]byte{1, 2}}, Base: 1 << 20, ChunkSize: 4096, Chunks: 8,
		Space: Space{Free: 7, Budget: 8}, Grace: time.Minute, Credits: 8, Batch: MaxBatch, Groups: 1, Zone: "rack-1",
	}
	var w Welcome
	if err := w.Decode(unhex(t, welcomeOf4)); err != nil || w != want {
		t.Errorf("got %+v, %v, want %+v", w, err, want)
	}
	if got := hex.EncodeToString(want.Append(nil)); got != welcomeOf4 {
		t.Errorf("it is encoded as %s, want %s", got, welcomeOf4)
	}
	old := unhex(t, helloOf4)
	for _, v := range []byte{3, 6} {
		old[4] = v
		err := new(Hello).Decode(old)
		if want := fmt.Sprintf("the peer speaks version %d of the protocol, and this end 4 and 5", v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("version %d: got %v, want that %s", v, err, want)
		}
	}
}

func TestMessagesSurviveTheTrip(t *testing.T) {
	full := make([]uint32, MaxBatch)
	grants := make([]Grant, MaxBatch)
	for i := range full {
		full[i] = uint32(i * 3)
		grants[i] = Grant{Chunk: uint32(i), Key: verbs.MakeRKey(uint32(i), uint8(i)), Addr: uint64(i) << 40}
	}
	b := AppendFree(nil, 9, full)
	if len(b) > MaxMessage {
		t.Fatalf("the longest request has %d bytes, more than %d", len(b), MaxMessage)
	}
	var r Request
	if err := r.Decode(b); err != nil || r.Op != OpFree || r.ID != 9 || r.N != MaxBatch {
		t.Fatalf("got %+v, %v", r, err)
	}
	for i, want := range full {
		if got := r.Chunk(i); got != want {
			t.Fatalf("chunk %d of the list is %d, want %d", i, got, want)
		}
	}
	reply := Reply{Op: OpAlloc, ID: 10, Space: Space{Free: 1, Budget: 2}}
	b = AppendReply(nil, &reply, grants)
	if len(b) > MaxMessage {
		t.Fatalf("the longest reply has %d bytes, more than %d", len(b), MaxMessage)
	}
	var got Reply
	if err := got.Decode(b); err != nil || got.N != MaxBatch || got.ID != 10 || got.Space != reply.Space {
		t.Fatalf("got %+v, %v", got, err)
	}
	for i, want := range grants {
		if got.Grant(i) != want {
			t.Fatalf("grant %d is %v, want %v", i, got.Grant(i), want)
		}
	}
}

func TestMalformedConnectionDataIsRefused(t *testing.T) {
	change := func(b []byte, at int, to ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], to)
		return b
	}
	h, w := exampleHello(), exampleWelcome()
	member := h
	member.Keep = Keep{}
	h.Cluster = Cluster{}
	hello, welcome := h.Append(nil), w.Append(nil)
	h.Keep = Keep{}
	plain := h.Append(nil)
	for name, b := range map[string][]byte{
		"nothing":                    nil,
		"a short one":                hello[:HelloSize-1],
		"trailing bytes":             append(bytes.Clone(hello), 0),
		"another protocol":           change(hello, 0, 'X'),
		"another version":            change(hello, 4, Version+1),
		"the version of another":     change(hello, 4, Before),
		"no kind":                    change(hello, 6, 0),
		"an unknown kind":            change(hello, 6, byte(KindComponent)+1),
		"an index of what is no one": change(hello, 7, 1),
		"a name with a hole":         change(hello, 9, 0),
		"no name":                    change(hello, 8, make([]byte, MaxName)...),
		"too many groups":            change(hello, 64, MaxGroups+1),
		"too many pairs":             change(hello, 65, MaxPairs+1),
		"reserved bytes":             change(hello, HelloSize-1, 1),
		"groups for another kind":    change(change(plain, 6, byte(KindAccess)), 64, 2),
		"a cluster for another kind": change(member.Append(nil), 6, byte(KindAccess)),
		"an epoch for another kind":  change(hello, 6, byte(KindAccess)),
		"a heap without an epoch":    change(hello, 72, make([]byte, 8)...),
		"an epoch without a heap":    change(hello, 80, make([]byte, MaxHeap)...),
		"a heap with a hole":         change(hello, 82, 0),
		"a heap of two lines":        change(hello, 82, '\n'),
		"a heap of bytes":            change(hello, 82, 0xff),
	} {
		var got Hello
		if err := got.Decode(b); !errors.Is(err, ErrMalformed) || got != (Hello{}) {
			t.Errorf("hello, %s: got %+v, %v, want %v", name, got, err, ErrMalformed)
		}
	}
	for name, b := range map[string][]byte{
		"nothing":                nil,
		"a short one":            welcome[:WelcomeSize-1],
		"trailing bytes":         append(bytes.Clone(welcome), 0),
		"another protocol":       change(welcome, 0, 'X'),
		"another version":        change(welcome, 4, Version+1),
		"a reserved bit":         change(welcome, 6, 2),
		"idle by half":           change(welcome, 7, 2),
		"a reserved byte":        change(welcome, 87, 2),
		"no session":             change(welcome, 8, make([]byte, 8)...),
		"chunks of no power":     change(welcome, 56, 1),
		"more queues than 8":     change(welcome, 84, 9),
		"chunks of nothing":      change(welcome, 56, make([]byte, 8)...),
		"chunks of all there is": change(welcome, 56, 0, 0, 0, 0, 0, 0, 0, 0x80),
	} {
		var got Welcome
		if err := got.Decode(b); !errors.Is(err, ErrMalformed) || got != (Welcome{}) {
			t.Errorf("welcome, %s: got %+v, %v, want %v", name, got, err, ErrMalformed)
		}
	}
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	alloc := AppendRequest(nil, OpAlloc, 1, 1, 0)
	free := AppendFree(nil, 1, []uint32{1, 2})
	change := func(b []byte, at int, to byte) []byte {
		b = bytes.Clone(b)
		b[at] = to
		return b
	}
	for name, b := range map[string][]byte{
		"nothing":                nil,
		"half a header":          alloc[:5],
		"unknown op":             change(alloc, 0, 77),
		"reserved byte":          change(alloc, 1, 1),
		"no chunks":              change(alloc, 2, 0),
		"too many chunks":        change(alloc, 3, 255),
		"alloc that skips":       change(alloc, 8, 1),
		"trailing bytes":         append(bytes.Clone(alloc), 0),
		"free with a short list": free[:len(free)-1],
		"free with a long list":  append(bytes.Clone(free), 0, 0, 0, 0),
		"vanished with a list":   change(free, 0, byte(OpVanished)),
		"stay with half a chunk": AppendListed(nil, OpMustStay, 1, []uint32{1, 2})[:RequestHeader+6],
	} {
		var r Request
		if err := r.Decode(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v, want %v", name, err, ErrMalformed)
		}
	}
	ok := AppendReply(nil, &Reply{Op: OpAlloc}, []Grant{{1, 2, 3}})
	for name, b := range map[string][]byte{
		"nothing":             nil,
		"a request":           change(ok, 0, byte(OpAlloc)),
		"unknown op":          change(ok, 0, 0xff),
		"unknown status":      change(ok, 1, byte(numStatuses)),
		"failure with a list": change(ok, 1, byte(StatusNoMemory)),
		"short list":          ok[:len(ok)-1],
		"more than there is":  change(ok, 2, 2),
		"half a chunk":        AppendVanished(nil, &Reply{Op: OpVanished}, []uint32{1, 2})[:ReplyHeader+6],
		"reserved byte":       change(ok, 16, 1),
	} {
		var r Reply
		if err := r.Decode(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v, want %v", name, err, ErrMalformed)
		}
	}
}

func TestARefusalIsKnownByItsReason(t *testing.T) {
	rejected := func(reason string) error {
		return fmt.Errorf("cannot connect: %w", &verbs.RejectError{Reason: reason})
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{rejected(Superseded.Reason("why")), true},
		{rejected(Denied.Reason("superseded: ")), false},
		{rejected("superseded"), false},
		{rejected(""), false},
		{errors.New(Superseded.Reason("why")), false}, // what a node has not said
		{nil, false},
	} {
		if got := Superseded.Is(c.err); got != c.want {
			t.Errorf("%v is for having been superseded: got %v, want %v", c.err, got, c.want)
		}
	}
}

// Whatever decodes must encode to the same bytes: no two encodings mean the
// same, and nothing is dropped silently.
func FuzzDecode(f *testing.F) {
	h, w := exampleHello(), exampleWelcome()
	f.Add(h.Append(nil))
	f.Add(w.Append(nil))
	h.Keep.Heap = strings.Repeat("x", MaxHeap)
	f.Add(h.Append(nil))
	f.Add(unhex(f, helloOf4))
	f.Add(unhex(f, accessOf4))
	f.Add(unhex(f, welcomeOf4))
	// Made by the code, so that they are of its version whatever that is.
	for kind := KindManagement; kind <= KindComponent; kind++ {
		h := Hello{Kind: kind, Manager: "onesided", Session: h.Session}
		switch kind {
		case KindManagement:
			h.Groups, h.Pairs = MaxGroups, MaxPairs
		case KindAccess, KindAlloc, KindFree:
			h.Index = 1
		}
		f.Add(h.Append(nil))
	}
	w.Resumed, w.Group, w.Groups, w.Pairs = false, 2, MaxGroups, MaxPairs
	f.Add(w.Append(nil))
	f.Add(AppendRequest(nil, OpAlloc, 1, 16, 0))
	f.Add(AppendRequest(nil, OpOwned, 2, 16, 32))
	f.Add(AppendFree(nil, 3, []uint32{1, 2, 3}))
	f.Add(AppendReply(nil, &Reply{Op: OpAlloc, ID: 4}, []Grant{{1, 2, 3}, {3, 4, 5}}))
	f.Add(AppendReply(nil, &Reply{Op: OpFree, ID: 5, N: 3}, nil))
	f.Add(AppendReply(nil, &Reply{Op: OpAlloc, Status: StatusNoMemory}, nil))
	f.Add(AppendReply(nil, &Reply{Op: OpLeaving, N: 1}, nil))
	w.Idle = true
	f.Add(w.Append(nil))
	f.Add(AppendListed(nil, OpMayVanish, 6, []uint32{4, 5}))
	f.Add(AppendRequest(nil, OpVanished, 8, 60, 0))
	f.Add(AppendListed(nil, OpMustStay, 7, []uint32{4}))
	f.Add(AppendReply(nil, &Reply{Op: OpMustStay, ID: 7, Status: StatusVanished}, nil))
	f.Add(AppendVanished(nil, &Reply{Op: OpVanished, ID: 8, Space: Space{1, 2}}, []uint32{4, 5}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Hello
		if h.Decode(b) == nil {
			same(t, b, h.Append(nil))
		}
		var w Welcome
		if w.Decode(b) == nil {
			same(t, b, w.Append(nil))
		}
		var q Request
		if q.Decode(b) == nil {
			if q.Op.lists() {
				list := make([]uint32, q.N)
				for i := range list {
					list[i] = q.Chunk(i)
				}
				same(t, b, AppendListed(nil, q.Op, q.ID, list))
			} else {
				same(t, b, AppendRequest(nil, q.Op, q.ID, q.N, q.Skip))
			}
		}
		var r Reply
		if r.Decode(b) == nil {
			if r.Op == OpVanished {
				list := make([]uint32, r.N)
				for i := range list {
					list[i] = r.Chunk(i)
				}
				same(t, b, AppendVanished(nil, &r, list))
				return
			}
			var grants []Grant
			if r.Op == OpAlloc || r.Op == OpOwned {
				for i := range r.N {
					grants = append(grants, r.Grant(i))
				}
			}
			same(t, b, AppendReply(nil, &r, grants))
		}
	})
}

func same(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("decoded and encoded again:\n%x\nis\n%x", got, want)
	}
}

// TestGroupsAreEven: whatever every how many-th chunk a client has got, no group has
// many more of its chunks than another.
func TestGroupsAreEven(t *testing.T) {
	for groups := 1; groups <= MaxGroups; groups++ {
		for every := uint32(1); every <= 16; every++ {
			n := make([]int, groups)
			for i := range uint32(20 * groups) {
				n[GroupOf(1000+i*every, groups)]++
			}
			if least, most := slices.Min(n), slices.Max(n); most-least > 12 {
				t.Errorf("%d groups, every %d-th chunk: %d to %d are in a group, want about 20", groups, every, least, most)
			}
		}
	}
}
