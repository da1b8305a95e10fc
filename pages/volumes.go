package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"polder/far"
	"polder/far/record"
)

// MaxName is how long the name of a volume may be, in bytes.
const MaxName = 255

// Volumes are the volumes of a heap. If the heap is kept, they are there again, under their names, when it is opened
// the next time. Any number of goroutines may use them.
type Volumes struct {
	heap     *far.Heap
	compress bool
	syncs    syncs

	mu    sync.Mutex         // held while a checkpoint takes the state; locked before the locks of volumes
	open  map[string]*Volume // guarded by mu
	saved map[string]saved   // volumes that the heap has kept and nobody has opened yet; guarded by mu
}

// saved is what a checkpoint has of a volume besides its pages.
type saved struct {
	size   int64
	mark   uint64
	chunks []byte // for each chunk of present that is there: its number, a u32, and its words
}

// Config says how volumes are kept.
type Config struct {
	// Compress has a page compressed if that saves at least an eighth of it. Pages can be read whether or not they
	// were written with it.
	Compress bool
}

// Open returns the volumes of h. Nothing else may use h.KeepState.
func Open(h *far.Heap, cfg Config) (*Volumes, error) {
	vs := &Volumes{heap: h, compress: cfg.Compress, open: map[string]*Volume{}, saved: map[string]saved{}}
	if err := vs.load(h.State()); err != nil {
		return nil, fmt.Errorf("cannot open the volumes of a heap: %w", err)
	}
	if h.Kept() {
		vs.syncs.heap, vs.syncs.turn = h, make(chan struct{}, 1)
	}
	h.KeepState(vs.state)
	return vs, nil
}

// New makes the only volume of a heap, or opens the one that the heap has kept; see Volumes.Volume.
func New(h *far.Heap, name string, size int64) (*Volume, error) {
	vs, err := Open(h, Config{})
	if err != nil {
		return nil, err
	}
	return vs.Volume(name, size)
}

// ErrOpen: the volume is in use already.
var ErrOpen = errors.New("it is open already")

// Volume opens the volume with this name that the heap has kept, which must not have been larger than size; if there
// is none, it makes a volume that reads as zeros. size is in bytes, a multiple of Size. Memory is taken from the heap
// as the volume is written to. Its pages are in the heap's map of the same name, which nobody else may use.
func (vs *Volumes) Volume(name string, size int64) (*Volume, error) {
	if size <= 0 || size%Size != 0 || size > MaxVolume {
		return nil, fmt.Errorf("cannot make a volume of %d bytes: expected a multiple of %d up to %d", size, Size, int64(MaxVolume))
	}
	if len(name) > MaxName {
		return nil, fmt.Errorf("cannot make a volume: its name has %d bytes, want at most %d", len(name), MaxName)
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if vs.open[name] != nil {
		return nil, fmt.Errorf("cannot open volume %q: %w", name, ErrOpen)
	}
	v := &Volume{of: vs, name: name, size: size, kept: newPresent(size / Size)}
	savedAs := name
	was, again := vs.saved[name]
	if one, ok := vs.saved[""]; ok && !again { // a heap of a version that had only one volume
		was, again, savedAs = one, true, ""
	}
	if v.again = again; again {
		if err := v.load(was); err != nil {
			return nil, fmt.Errorf("cannot open volume %q of %d bytes: %w", name, size, err)
		}
		delete(vs.saved, savedAs)
	}
	v.pages = vs.heap.NewByteMap(name)
	vs.open[name] = v
	return v, nil
}

// Saved returns the names and sizes of the volumes that the heap has kept and nobody has opened yet.
func (vs *Volumes) Saved() map[string]int64 {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	sizes := make(map[string]int64, len(vs.saved))
	for name, s := range vs.saved {
		sizes[name] = s.size
	}
	return sizes
}

// Free gives all of the volume's memory back. The volume must not be in use, nor be used any more. Freeing twice is a
// no-op.
func (v *Volume) Free() {
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	if v.of.open[v.name] == v {
		delete(v.of.open, v.name)
	}
	v.pages.Free()
}

// Name is the volume's name.
func (v *Volume) Name() string { return v.name }

// Again reports whether the heap had kept the volume.
func (v *Volume) Again() bool { return v.again }

// Mark is a number that checkpoints keep with the volume: what SetMark has set, or 0.
func (v *Volume) Mark() uint64 { return v.mark.Load() }

// SetMark sets Mark.
func (v *Volume) SetMark(mark uint64) { v.mark.Store(mark) }

// The versions of state. The first one has one volume without a name: u8 version, u64 size, its chunks.
const (
	stateOfOne = 1
	stateOfAll = 2
)

// state is what a checkpoint of the heap keeps: u8 version, u16 number of volumes; for each volume u16 length of its
// name, the name, u64 size, u64 mark, u32 length of its chunks, the chunks (see saved).
func (vs *Volumes) state() far.State {
	vs.mu.Lock()
	names := make([]string, 0, len(vs.open)+len(vs.saved))
	for name, v := range vs.open {
		names = append(names, name)
		v.lockAll()
	}
	for name := range vs.saved {
		names = append(names, name)
	}
	slices.Sort(names)
	be := binary.LittleEndian
	b := be.AppendUint16([]byte{stateOfAll}, uint16(len(names)))
	for _, name := range names {
		v, s := vs.open[name], vs.saved[name]
		if v != nil {
			s.size, s.mark = v.size, v.mark.Load()
		}
		b = append(be.AppendUint16(b, uint16(len(name))), name...)
		b = be.AppendUint64(be.AppendUint64(b, uint64(s.size)), s.mark)
		b = be.AppendUint32(b, 0)
		at := len(b)
		if v != nil {
			b = v.kept.append(b)
		} else {
			b = append(b, s.chunks...)
		}
		be.PutUint32(b[at-4:], uint32(len(b)-at))
	}
	return far.State{Bytes: b, Thaw: func() {
		for _, v := range vs.open {
			v.unlockAll()
		}
		vs.mu.Unlock()
	}}
}

// load reads the volumes from what state has returned.
func (vs *Volumes) load(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	d := &record.Decoder{B: b[1:]}
	switch b[0] {
	case stateOfOne:
		one := saved{size: int64(d.U64()), chunks: d.Bytes(len(d.B))}
		if one.size <= 0 || one.size%Size != 0 || one.size > MaxVolume || len(one.chunks)%chunkState != 0 {
			return errNoVolumes // what polder serve keeps begins with the same number
		}
		vs.saved[""] = one
	case stateOfAll:
		for range d.U16() {
			name := string(d.Bytes(int(d.U16())))
			vs.saved[name] = saved{int64(d.U64()), d.U64(), d.Bytes(int(d.U32()))}
		}
	default:
		return fmt.Errorf("%w of this version of polder: it begins with %d", errNoVolumes, b[0])
	}
	if d.Err != nil || len(d.B) > 0 {
		return errors.Join(errors.New("what the heap has kept of volumes cannot be read"), d.Err)
	}
	return nil
}

// errNoVolumes: another program has kept something in the heap, which must stay as it is.
var errNoVolumes = errors.New("what the heap has kept are no volumes")

// chunkState is how long a chunk is in the state.
const chunkState = 4 + chunkPages/8

// load sets v's mark and its chunks from a volume that the heap has kept.
func (v *Volume) load(s saved) error {
	switch {
	case s.size < 0 || len(s.chunks)%chunkState != 0:
		return errors.New("what the heap has kept of it cannot be read")
	case s.size > v.size:
		return fmt.Errorf("the one that is kept has %d, and a volume does not shrink", s.size)
	}
	v.mark.Store(s.mark)
	for b := s.chunks; len(b) > 0; b = b[chunkState:] {
		i := int(binary.LittleEndian.Uint32(b))
		if i >= len(v.kept.chunks) {
			return errors.New("what the heap has kept has a page beyond the end")
		}
		c := new(chunk)
		for k := range c {
			w := binary.LittleEndian.Uint64(b[4+8*k:])
			c[k].Store(w)
			v.kept.count.Add(int64(bits.OnesCount64(w)))
		}
		v.kept.chunks[i].Store(c)
	}
	return nil
}

// append appends the chunks that are there.
func (p *present) append(b []byte) []byte {
	for i := range p.chunks {
		c := p.chunks[i].Load()
		if c == nil {
			continue
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(i))
		for k := range c {
			b = binary.LittleEndian.AppendUint64(b, c[k].Load())
		}
	}
	return b
}

// lockAll keeps everybody from writing to the volume.
func (v *Volume) lockAll() {
	for i := range v.locks {
		v.locks[i].Lock()
	}
}

func (v *Volume) unlockAll() {
	for i := range v.locks {
		v.locks[i].Unlock()
	}
}
