package stream

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"
)

// frames returns a stream with one frame per body, of types in rotation.
func frames(bodies ...[]byte) []byte {
	var b []byte
	for i, body := range bodies {
		b = appendFrame(b, frameType(1+i%int(frameTypeEnd-1)), body, uint32(i))
	}
	return b
}

func appendFrame(b []byte, t frameType, body []byte, number uint32) []byte {
	start := len(b)
	b = append(beginFrame(b), body...)
	endFrame(b, start, t, number)
	return b
}

// readAll reads frames until an error and returns copies of the bodies.
func readAll(f *frameReader, src io.Reader) (bodies [][]byte, err error) {
	for {
		_, body, ok, err := f.next()
		if err != nil {
			return bodies, err
		}
		if ok {
			bodies = append(bodies, bytes.Clone(body))
			continue
		}
		if err := f.fill(src); err != nil {
			return bodies, err
		}
	}
}

func TestFramesComeBackHoweverTheStreamIsCut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var bodies [][]byte
	for range 200 {
		b := make([]byte, r.IntN(1001))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		bodies = append(bodies, b)
	}
	stream := frames(bodies...)
	for name, src := range map[string]io.Reader{
		"whole":         bytes.NewReader(stream),
		"byte by byte":  iotest.OneByteReader(bytes.NewReader(stream)),
		"halves":        iotest.HalfReader(bytes.NewReader(stream)),
		"data with EOF": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		got, err := readAll(newFrameReader(1000, 0), src)
		if err != io.EOF {
			t.Errorf("%s: got error %v, want EOF", name, err)
		}
		if len(got) != len(bodies) {
			t.Fatalf("%s: got %d frames, want %d", name, len(got), len(bodies))
		}
		for i := range got {
			if !bytes.Equal(got[i], bodies[i]) {
				t.Fatalf("%s: frame %d differs", name, i)
			}
		}
	}
}

func TestFrameReaderRefusesADamagedStream(t *testing.T) {
	good := frames([]byte("zero"), []byte("one"), []byte("two"))
	first := len(frames([]byte("zero")))
	second := len(frames([]byte("zero"), []byte("one")))
	flipped := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 0x10
		return b
	}
	for _, c := range []struct {
		name   string
		stream []byte
		whole  int // frames before the damage
		want   error
	}{
		{"bit flip in a body", flipped(first + frameHeader), 1, errFrameChecksum},
		{"bit flip in a checksum", flipped(first), 1, errFrameChecksum},
		{"bit flip in a type", flipped(first + 7), 1, errFrameType},
		{"bit flip in a length", flipped(first + 5), 1, errFrameTooLarge},
		{"replayed frame", append(bytes.Clone(good[:first]), good...), 1, errFrameChecksum},
		{"dropped frame", append(bytes.Clone(good[:first]), good[second:]...), 1, errFrameChecksum},
		{"type 0", appendFrame(nil, 0, []byte("x"), 0), 0, errFrameType},
		{"unknown type", appendFrame(nil, frameTypeEnd, []byte("x"), 0), 0, errFrameType},
		{"oversize", appendFrame(nil, framePacket, make([]byte, 101), 0), 0, errFrameTooLarge},
		{"cut inside a header", good[:first+3], 1, errTruncated},
		{"cut inside a body", good[:second-1], 1, errTruncated},
	} {
		got, err := readAll(newFrameReader(100, 0), bytes.NewReader(c.stream))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", c.name, err, c.want)
		}
		if len(got) != c.whole {
			t.Errorf("%s: got %d frames before the error, want %d", c.name, len(got), c.whole)
		}
	}
}

func TestFrameReaderDoesNotAllocate(t *testing.T) {
	stream := frames(make([]byte, 64), make([]byte, 64), make([]byte, 64))
	src := bytes.NewReader(stream)
	f := newFrameReader(64, 128) // smaller than the stream, so that it has to move bytes
	allocs := testing.AllocsPerRun(100, func() {
		src.Reset(stream)
		f.number = 0
		for n := 0; n < 3; {
			_, _, ok, err := f.next()
			if err == nil && !ok {
				err = f.fill(src)
			}
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				n++
			}
		}
	})
	if allocs != 0 {
		t.Errorf("got %v allocations per run, want 0", allocs)
	}
}

func FuzzFrameReader(f *testing.F) {
	f.Add(frames([]byte("zero"), nil, bytes.Repeat([]byte{7}, 300)), uint8(3))
	f.Add(frames([]byte("zero"), []byte("one"))[:15], uint8(1))
	f.Add(appendFrame(nil, framePacket, make([]byte, 600), 0), uint8(255))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		const maxBody = 512
		src := &chunks{b: stream, step: int(step) + 1}
		got, err := readAll(newFrameReader(maxBody, 0), src)
		if err == nil {
			t.Fatal("the reader stopped without an error")
		}
		// What was accepted is exactly a prefix of the stream.
		var again []byte
		for i, body := range got {
			if len(body) > maxBody {
				t.Fatalf("frame %d has %d bytes, at most %d were allowed", i, len(body), maxBody)
			}
			again = appendFrame(again, frameType(stream[len(again)+7]), body, uint32(i))
		}
		if !bytes.HasPrefix(stream, again) {
			t.Fatalf("%d frames were read that the stream does not hold", len(got))
		}
		// However the stream is cut, the outcome is the same.
		whole, wholeErr := readAll(newFrameReader(maxBody, 4096), bytes.NewReader(stream))
		if len(whole) != len(got) || wholeErr.Error() != err.Error() {
			t.Fatalf("read in steps of %d: %d frames, %v; read at once: %d frames, %v",
				src.step, len(got), err, len(whole), wholeErr)
		}
	})
}

// chunks reads b in steps of at most step bytes.
type chunks struct {
	b    []byte
	step int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.step)], c.b)
	c.b = c.b[n:]
	return n, nil
}
