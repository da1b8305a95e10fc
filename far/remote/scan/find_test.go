package scan_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
	"polder/far/remote/scan"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/pool/pooltest"
)

const (
	units = chunkSize / record.Unit
	hash  = 0x12_3456_789a
)

// writeEntry writes the entry of hash to c at 1024, and a leaf that knows it as one of segment 3 at 4096.
func writeEntry(t *testing.T, c *pool.Chunk, flags index.Word) {
	t.Helper()
	write := func(off int, h record.Header, body []byte) int {
		r := record.Put(make([]byte, record.Size(len(body))), h, body)
		r.SetVersion(6)
		r.Seal(seed, off)
		if _, err := c.WriteAt(r, int64(off)); err != nil {
			t.Fatal(err)
		}
		return len(r)
	}
	n := write(1024, record.Header{Kind: record.Entry, Owner: owner, Number: hash, KeyLen: 3}, []byte("keyvalue"))
	slots := []index.Slot{
		{Word: index.NewWord(3*units+512/record.Unit, n, flags), Tag: hash & (1<<32 - 1)}, // of another with the tag
		{Word: index.NewWord(3*units+1024/record.Unit, n, flags), Tag: hash & (1<<32 - 1)},
	}
	body := make([]byte, index.Size(slots))
	index.NewKey(index.NewSecret()).Seal(body, slots, 1, 4096)
	write(4096, record.Header{Kind: record.Page, Owner: owner}, body)
}

// TestANodeFindsOnlyWhatIsAsked: a client gets an entry of its own chunks, or the leaf that was to know it, or nothing; and
// nothing of others.
func TestANodeFindsOnlyWhatIsAsked(t *testing.T) {
	cfg := memnode.Config{Lend: 16<<20 + 32*chunkSize, ChunkSize: chunkSize, Components: component.Config{Memory: 16 << 20, ClientMemory: 8 << 20, Time: time.Minute}}
	cluster := pooltest.NewCluster(t, pooltest.Inproc, cfg)
	victim, client := cluster.Open(pool.Config{}), cluster.Open(pool.Config{})
	theirs, own, gone := victim.MustAlloc(t), client.MustAlloc(t), client.MustAlloc(t)
	writeEntry(t, theirs, 0)
	writeEntry(t, own, 0)
	writeEntry(t, gone, index.Lost)
	number := func(c *pool.Chunk) uint32 {
		_, n, _, _ := c.Home()
		return n
	}
	for _, c := range []struct {
		name   string
		change func(r *scan.FindRequest)
		what   int
		fails  bool
	}{
		{"its own entry", func(r *scan.FindRequest) {}, scan.Entry, false},
		{"an entry of a segment that nobody told of", func(r *scan.FindRequest) { r.Places = nil }, scan.Leaf, false},
		{"an entry that is said to be in another client's chunk", func(r *scan.FindRequest) { r.Places[0].Chunk = number(theirs) }, scan.Leaf, false},
		{"an entry in a chunk that is not there", func(r *scan.FindRequest) { r.Places[0].Chunk = 1 << 31 }, scan.Leaf, false},
		{"an entry in a segment with another seed", func(r *scan.FindRequest) { r.Places[0].Seed++ }, scan.Leaf, false},
		{"an entry that is lost", func(r *scan.FindRequest) { r.Finds[0].Chunk = number(gone) }, scan.Leaf, false},
		{"a key that is not there", func(r *scan.FindRequest) { r.Finds[0].Hash++ }, scan.Leaf, false},
		{"a key with the tag of another", func(r *scan.FindRequest) { r.Finds[0].Hash ^= 1 << 39 }, scan.Leaf, false},
		{"a leaf of another owner", func(r *scan.FindRequest) { r.Owner++ }, scan.Nothing, false},
		{"a leaf with another seed", func(r *scan.FindRequest) { r.Finds[0].Seed++ }, scan.Nothing, false},
		{"a leaf that is an entry", func(r *scan.FindRequest) { r.Finds[0].Off = 1024 / record.Unit }, scan.Nothing, false},
		{"a leaf that is cut off", func(r *scan.FindRequest) { r.Finds[0].N = 40 }, scan.Nothing, false},
		{"another client's leaf", func(r *scan.FindRequest) { r.Finds[0].Chunk = number(theirs) }, 0, true},
		{"a leaf that is too large", func(r *scan.FindRequest) { r.Finds[0].N = scan.MaxLeaf + 1 }, 0, true},
		{"a leaf of nothing", func(r *scan.FindRequest) { r.Finds[0].N = 0 }, 0, true},
		{"segments of nothing", func(r *scan.FindRequest) { r.Units = 0 }, 0, true},
		{"a segment with too high a number", func(r *scan.FindRequest) { r.Places[0].Number = scan.MaxSegment + 1 }, 0, true},
		{"too many keys", func(r *scan.FindRequest) { r.Finds = make([]scan.Find, scan.MaxFinds+1) }, 0, true},
		{"too many places", func(r *scan.FindRequest) { r.Places = make([]scan.Place, scan.MaxPlaces+1) }, 0, true},
	} {
		object, err := client.Pool.ConstructAt(t.Context(), own, scan.Name, nil) // which knows no segment
		if err != nil {
			t.Fatal(err)
		}
		r := scan.FindRequest{
			Owner: owner, Units: units, Places: []scan.Place{{Number: 3, Chunk: number(own), Seed: seed}},
			Finds: []scan.Find{{Chunk: number(own), Seed: seed, Off: 4096 / record.Unit, N: 1024, Hash: hash}},
		}
		c.change(&r)
		out, err := object.Compute(context.Background(), pool.Computation{Op: scan.Lookup, In: r.Append(nil), Repeat: true}, nil)
		if (err != nil) != c.fails {
			t.Errorf("%s: got %x, %v, want that it fails: %v", c.name, out, err, c.fails)
		}
		if err == nil {
			what, addr, rec, rest, ok := scan.Found(out)
			if !ok || what != c.what || len(rest) != 0 {
				t.Errorf("%s: got %d, %v, and %d bytes behind it, want %d", c.name, what, ok, len(rest), c.what)
			}
			if what == scan.Entry && (addr != 3*units+1024/record.Unit || !bytes.HasSuffix(rec, []byte("keyvalue"))) {
				t.Errorf("%s: got %q at %#x", c.name, rec, addr)
			}
		}
		if err := object.Destruct(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if st := cluster.Nodes[0].Stats().Components; st.Panics != 0 || st.Deaths != 0 {
		t.Errorf("got %+v, want neither panics nor deaths", st)
	}
}

// FuzzFind decodes what anybody may send, and carries it out on memory of which the bytes are the request's, too.
func FuzzFind(f *testing.F) {
	r := scan.FindRequest{Owner: owner, Units: units, Places: []scan.Place{{3, 1, seed}}, Finds: []scan.Find{{1, seed, 4, 64, hash}}}
	f.Add(r.Append(nil), []byte{1})
	slots := []index.Slot{{Word: 9<<heap.AddrBits | 3*units, Tag: hash & (1<<32 - 1)}}
	body := make([]byte, index.Size(slots))
	index.NewKey(index.NewSecret()).Seal(body, slots, 1, 64)
	page := record.Put(make([]byte, record.Size(len(body))), record.Header{Kind: record.Page, Owner: owner}, body)
	page.Seal(seed, 64)
	f.Add(r.Append(nil), []byte(page))
	f.Fuzz(func(t *testing.T, b, mem []byte) {
		var r scan.FindRequest
		if r.Decode(b) != nil {
			return
		}
		if again := r.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x is encoded as %x", b, again)
		}
		out, err := scan.Look(&r, func(_ uint32, _ uint64, b []byte) error {
			if len(mem) == 0 {
				return errors.New("there is nothing")
			}
			for n := 0; n < len(b); {
				n += copy(b[n:], mem)
			}
			return nil
		})
		for range r.Finds {
			if err == nil {
				ok := false
				if _, _, _, out, ok = scan.Found(out); !ok {
					t.Fatal("an answer makes no sense")
				}
			}
		}
		if len(out) > 0 {
			t.Fatalf("%d bytes are nobody's", len(out))
		}
	})
}
