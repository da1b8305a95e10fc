package scan_test

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/far/record"
	"polder/far/remote/scan"
	"polder/far/store"
	"polder/internal/offload"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
)

func TestMain(m *testing.M) {
	component.Main(component.Set{scan.Name: scan.Component})
	goleak.VerifyTestMain(m)
}

const (
	objectSize = 64
	chunkSize  = 64 << 10
	seed       = 77
	owner      = 0xc001
	numbered   = 1000 // the first object
	objects    = 10
	damaged    = (64 + objects*(32+objectSize)) / record.Unit // where one more is, in units, of which a bit has changed
)

// question is to add up the first word of every 16 bytes of objects.
func question() scan.Request {
	return scan.Request{
		Scan:    offload.Scan{Stride: 16, Kind: offload.Uint64},
		Objects: store.Objects{Owner: owner, Born: 5, Size: objectSize},
	}
}

// lendAndFill borrows chunks, and writes records from byte 64 of the first one on, whose sum is what it returns.
func lendAndFill(t *testing.T, k *pooltest.Client) (c *pool.Chunk, first uint32, sum uint64) {
	t.Helper()
	c = k.MustAlloc(t)
	size := record.Size(objectSize)
	b := make([]byte, (objects+1)*size)
	for i := range objects + 1 {
		data := make([]byte, objectSize)
		for j := 0; j < objectSize; j += 16 {
			binary.LittleEndian.PutUint64(data[j:], uint64(i*100+j))
			if i < objects {
				sum += uint64(i*100 + j)
			}
		}
		r := record.Put(b[i*size:(i+1)*size], record.Header{Kind: record.Object, Owner: owner, Number: numbered + uint64(i)}, data)
		r.SetVersion(6)
		r.Seal(seed, 64+i*size)
	}
	b[len(b)-1] ^= 1
	if _, err := c.WriteAt(b, 64); err != nil {
		t.Fatal(err)
	}
	_, first, _, ok := c.Home()
	if !ok {
		t.Fatal("a chunk is not in one piece")
	}
	return c, first, sum
}

// words is the first words of the 16 bytes that each element has.
func words(b []byte) (vs []uint64) {
	for ; len(b) >= 16; b = b[16:] {
		vs = append(vs, binary.LittleEndian.Uint64(b))
	}
	return vs
}

// firstOf is the first element of the first object of r.
func firstOf(r scan.Run) []scan.Run {
	r.N = 0
	return []scan.Run{r}
}

// TestANodeLooksOnlyThroughWhatIsAsked: a client gets an answer about its own chunks, and of
// records that are just what it says. Everything else is refused, and harms nobody.
func TestANodeLooksOnlyThroughWhatIsAsked(t *testing.T) {
	rpc := pooltest.TCP
	rpc.Name, rpc.Manager = "TCP, by messages", rpcmw.Manager{}
	for _, s := range []pooltest.Setup{pooltest.Inproc, rpc} {
		t.Run("over "+s.Name, func(t *testing.T) {
			cfg := memnode.Config{Lend: 16<<20 + 32*chunkSize, ChunkSize: chunkSize, Components: component.Config{Memory: 16 << 20, ClientMemory: 8 << 20, Time: time.Minute}}
			if s.Manager != nil {
				cfg.Manager = s.Manager.Name()
			}
			cluster := pooltest.NewCluster(t, s, cfg)
			victim, client := cluster.Open(pool.Config{}), cluster.Open(pool.Config{})
			_, secret, _ := lendAndFill(t, victim)
			own, first, sum := lendAndFill(t, client)
			object, err := client.Pool.ConstructAt(t.Context(), own, scan.Name, nil)
			if err != nil {
				t.Fatal(err)
			}
			right := scan.Run{Chunk: first, Seed: seed, Off: 64 / record.Unit, N: objects, Number: numbered}
			compute := func(r scan.Request) ([]byte, error) {
				return object.Compute(context.Background(), pool.Computation{Op: scan.Aggregate, In: r.Append(nil), Repeat: true}, nil)
			}
			asks := func(change func(r *scan.Request)) ([]byte, error) {
				r := question()
				r.Runs = []scan.Run{right}
				change(&r)
				return compute(r)
			}
			var a offload.Aggregate
			if out, err := asks(func(*scan.Request) {}); err != nil || !a.Decode(out) || a.Sum != sum || a.Count != objects*objectSize/16 {
				t.Fatalf("the client's own objects: got %+v, %v, want the sum %d of %d", a, err, sum, objects*objectSize/16)
			}
			for what, change := range map[string]func(r *scan.Request){
				"another client's chunk":            func(r *scan.Request) { r.Runs[0].Chunk = secret },
				"a chunk that nobody has":           func(r *scan.Request) { r.Runs[0].Chunk = 31 },
				"a chunk that is not there":         func(r *scan.Request) { r.Runs[0].Chunk = 1 << 31 },
				"an offset in another's chunk":      func(r *scan.Request) { r.Runs[0].Off += (secret - first) * (chunkSize / record.Unit) },
				"an offset behind all chunks":       func(r *scan.Request) { r.Runs[0].Off = 1<<32 - 1 },
				"another seed":                      func(r *scan.Request) { r.Runs[0].Seed++ },
				"another place":                     func(r *scan.Request) { r.Runs[0].Off++ },
				"another number":                    func(r *scan.Request) { r.Runs[0].Number++ },
				"more records than there are":       func(r *scan.Request) { r.Runs[0].N++ },
				"another owner":                     func(r *scan.Request) { r.Objects.Owner++ },
				"an older life of the owner":        func(r *scan.Request) { r.Objects.Born = 6 },
				"objects of another size":           func(r *scan.Request) { r.Objects.Size -= 16 },
				"no records":                        func(r *scan.Request) { r.Runs[0].N = 0 },
				"more records than may be":          func(r *scan.Request) { r.Runs = slices.Repeat(r.Runs, 2000) },
				"a great many records":              func(r *scan.Request) { r.Runs[0].N = 1<<32 - 1 },
				"too many runs":                     func(r *scan.Request) { r.Runs = slices.Repeat(r.Runs, scan.MaxRuns+1) },
				"objects that are too large":        func(r *scan.Request) { r.Objects.Size = scan.MaxRecord },
				"elements that do not fill objects": func(r *scan.Request) { r.Scan.Stride = 24 },
				"elements without bytes":            func(r *scan.Request) { r.Scan.Stride = 0 },
				"a number beyond its element":       func(r *scan.Request) { r.Scan.Off = 9 },
				"a number of an unknown kind":       func(r *scan.Request) { r.Scan.Kind = 99 },
				"a condition beyond its element": func(r *scan.Request) {
					r.Scan.Conditions = []offload.Condition{{Off: 1 << 30, Kind: offload.Int8}}
				},
				"an unknown comparison": func(r *scan.Request) {
					r.Scan.Conditions = []offload.Condition{{Kind: offload.Int8, Compare: 99}}
				},
				"too many conditions": func(r *scan.Request) {
					r.Scan.Conditions = slices.Repeat([]offload.Condition{{Kind: offload.Int8}}, 9)
				},
			} {
				if out, err := asks(change); err == nil {
					t.Errorf("%s: got an answer, %x", what, out)
				}
			}
			for _, op := range []uint16{0, scan.Lookup, scan.Gather + 1} {
				r := question()
				r.Runs = []scan.Run{right}
				if out, err := object.Compute(t.Context(), pool.Computation{Op: op, In: r.Append(nil)}, nil); err == nil {
					t.Errorf("operation %d: got an answer, %x", op, out)
				}
			}
			gathers := func(change func(r *scan.Request)) ([]byte, error) {
				r := question()
				r.Scan.Kind = 0
				r.Runs = []scan.Run{right, right, right}
				r.Runs[0].N, r.Runs[1].N, r.Runs[2].N = 3, 0, 1
				r.Runs[2].Off, r.Runs[2].Number = right.Off+uint32(record.Size(objectSize)/record.Unit), right.Number+1
				change(&r)
				return object.Compute(context.Background(), pool.Computation{Op: scan.Gather, In: r.Append(nil), Repeat: true}, nil)
			}
			if out, err := gathers(func(*scan.Request) {}); err != nil || len(out) != 48 || !slices.Equal(words(out), []uint64{48, 0, 116}) {
				t.Fatalf("three elements of the client's own: got %v, %v", words(out), err)
			}
			for what, change := range map[string]func(r *scan.Request){
				"another client's chunk":       func(r *scan.Request) { r.Runs[2].Chunk = secret },
				"a chunk that nobody has":      func(r *scan.Request) { r.Runs[1].Chunk = 31 },
				"an offset in another's chunk": func(r *scan.Request) { r.Runs[0].Off += (secret - first) * (chunkSize / record.Unit) },
				"another seed":                 func(r *scan.Request) { r.Runs[1].Seed++ },
				"another place":                func(r *scan.Request) { r.Runs[1].Off++ },
				"another number":               func(r *scan.Request) { r.Runs[1].Number++ },
				"another owner":                func(r *scan.Request) { r.Objects.Owner++ },
				"an older life of the owner":   func(r *scan.Request) { r.Objects.Born = 6 },
				"a record that is damaged":     func(r *scan.Request) { r.Runs[0].Off, r.Runs[0].Number = damaged, right.Number+objects },
				"an element behind the object": func(r *scan.Request) { r.Runs[0].N = objectSize / 16 },
				"an element far behind it":     func(r *scan.Request) { r.Runs[2].N = 1<<32 - 1 },
				"a number that is added up":    func(r *scan.Request) { r.Scan.Kind = offload.Uint64 },
				"a condition":                  func(r *scan.Request) { r.Scan.Conditions = []offload.Condition{{Kind: offload.Int8}} },
				"entries of a map":             func(r *scan.Request) { r.Objects.Entries, r.Objects.Size = true, 16 },
				"too many runs":                func(r *scan.Request) { r.Runs = slices.Repeat(firstOf(right), scan.MaxRuns+1) },
				"more than an answer holds":    func(r *scan.Request) { r.Scan.Stride, r.Runs = 64, slices.Repeat(firstOf(right), scan.MaxAnswer/64+1) },
				"objects that are too large":   func(r *scan.Request) { r.Objects.Size = scan.MaxRecord },
				"more records than may be looked at": func(r *scan.Request) {
					r.Objects.Size, r.Runs = 4<<10, nil
					for i := range uint32(scan.MaxBytes/(4<<10) + 1) {
						r.Runs = append(r.Runs, scan.Run{Chunk: first, Seed: seed, Off: i})
					}
				},
			} {
				if out, err := gathers(change); err == nil {
					t.Errorf("gathering of %s: got an answer, %x", what, out)
				}
			}
			// A chunk that has been given back is not the client's any more.
			if err := own.Free(t.Context()); err != nil {
				t.Fatal(err)
			}
			if out, err := asks(func(*scan.Request) {}); err == nil || !strings.Contains(err.Error(), "not this client's") {
				t.Errorf("a chunk that was given back: got %x, %v, want a refusal", out, err)
			}
			if st := cluster.Nodes[0].Stats().Components; st.Panics != 0 || st.Deaths != 0 {
				t.Errorf("got %+v, want neither panics nor deaths", st)
			}
		})
	}
}
