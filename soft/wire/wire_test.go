package wire

import (
	"errors"
	"math"
	"testing"

	"polder/internal/arena"
	"polder/soft/mrc"
)

func FuzzDecode(f *testing.F) {
	f.Add(Encode(KindHello, Hello{Version, "a", 1}))
	f.Add(Encode(KindReport, Report{Curve: mrc.Curve{Unit: 1, Saved: []float64{1, 2}}}))
	f.Add(Encode(KindReleased, Released{[]uint32{1}}))
	f.Add(Encode(KindBudget, Budget{3, 4}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, body, err := Split(b)
		if err != nil {
			return
		}
		if r, err := DecodeReport(body); err == nil {
			for _, v := range r.Curve.Saved {
				if math.IsNaN(v) || v < 0 {
					t.Fatalf("a curve with %v was accepted", v)
				}
			}
		} else if !errors.Is(err, ErrMalformed) {
			t.Fatalf("error %v does not say that the message is malformed", err)
		}
		_, _ = DecodeHello(body)
		_, _ = DecodeReleased(body)
		_, _ = DecodeBudget(body)
		_, _ = DecodeRefused(body)
	})
}

func TestDecodeRefusesWhatCannotBe(t *testing.T) {
	for name, body := range map[string]string{
		"another version":     `{"version":99,"name":"x","weight":1}`,
		"no weight":           `{"version":1,"name":"x"}`,
		"an infinite weight":  `{"version":1,"name":"x","weight":1e300}`,
		"not JSON at all":     `}{`,
		"a number for a name": `{"version":1,"name":7,"weight":1}`,
	} {
		if _, err := DecodeHello([]byte(body)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v, want %v", name, err, ErrMalformed)
		}
	}
	for name, body := range map[string]string{
		"a falling curve": `{"curve":{"Unit":1,"Saved":[2,1]}}`,
		"no unit":         `{"curve":{"Unit":0,"Saved":[1]}}`,
		"negative memory": `{"live":-1}`,
		"negative cost":   `{"rebuild_seconds":-1}`,
	} {
		if _, err := DecodeReport([]byte(body)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v, want %v", name, err, ErrMalformed)
		}
	}
}

func newTable(t *testing.T, n int) (*Control, *arena.Mapping) {
	t.Helper()
	m, err := arena.Anonymous(ControlSize(n), false)
	if err != nil {
		t.Fatal(err)
	}
	c, err := InitControl(m, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, m
}

func TestOfRacingChangesOneWins(t *testing.T) {
	c, m := newTable(t, 4)
	d, err := OpenControl(m)
	if err != nil {
		t.Fatal(err)
	}
	if d.Segments() != 4 || d.Granted(2) {
		t.Fatalf("a fresh table has %d segments, segment 2 granted: %v", d.Segments(), d.Granted(2))
	}
	if c.Recycle(2) || c.Revoke(2) {
		t.Error("a segment that is not granted was changed")
	}
	if !d.Grant(2) || d.Grant(2) {
		t.Error("a segment was not granted exactly once")
	}
	g := c.Generation(2)
	if !c.Recycle(2) || c.Generation(2) != g+2 {
		t.Errorf("recycling went from %d to %d", g, c.Generation(2))
	}
	if !d.Revoke(2) || c.Recycle(2) || d.Revoke(2) {
		t.Error("a segment was not revoked exactly once")
	}
}

func TestOpenControlRefusesWhatIsNoTable(t *testing.T) {
	_, m := newTable(t, 4)
	words := asWords(m.Bytes())
	for _, n := range []uint64{0, 1 << 40, MaxSegments} {
		words[1].Store(n)
		if _, err := OpenControl(m); !errors.Is(err, errControl) {
			t.Errorf("%d segments: got %v, want %v", n, err, errControl)
		}
	}
	words[0].Store(1)
	words[1].Store(4)
	if _, err := OpenControl(m); !errors.Is(err, errControl) {
		t.Errorf("a wrong magic: got %v, want %v", err, errControl)
	}
}
