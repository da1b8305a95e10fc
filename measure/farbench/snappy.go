package farbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"

	"polder/far"
	"polder/measure/benchout"
)

// corpusIn is dir, or Go's own source if there is none.
func corpusIn(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find Go's source: %w (name another directory)", err)
	}
	return filepath.Join(strings.TrimSpace(string(root)), "src"), nil
}

// readCorpus returns the contents of the files under dir, one after the other,
// up to limit bytes.
func readCorpus(dir string, limit int64) ([]byte, error) {
	dir, err := corpusIn(dir)
	if err != nil {
		return nil, err
	}
	var b []byte
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if int64(len(b)) >= limit {
			return fs.SkipAll
		}
		file, err := os.ReadFile(path)
		b = append(b, file...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read what is to be compressed: %w", err)
	}
	if int64(len(b)) < 2*far.MinLocal {
		return nil, fmt.Errorf("cannot compress the files in %s: they have %d bytes in all, want at least %d, more than local memory", dir, len(b), 2*far.MinLocal)
	}
	return b[:min(int64(len(b)), limit)], nil
}

// file is bytes in a far array, read and written in sequence.
type file struct {
	bytes *far.Array[byte]
	ctx   context.Context
	s     *far.Scope
	size  int // bytes that were written
	at    int // to be read next
}

func newFile(ctx context.Context, h *far.Heap, name string, size int) (*file, error) {
	a, err := far.NewArray[byte](ctx, h, size, far.StructureConfig{Name: name, Group: len(page{})})
	if err != nil {
		return nil, err
	}
	f := &file{bytes: a, ctx: ctx, s: h.NewScope()}
	f.s.SetContext(ctx)
	return f, nil
}

func (f *file) Write(p []byte) (int, error) {
	if len(p) > f.bytes.Len()-f.size {
		return 0, io.ErrShortWrite
	}
	if err := f.bytes.Write(f.ctx, p, f.size); err != nil {
		return 0, err
	}
	f.size += len(p)
	return len(p), nil
}

// truncate empties the file.
func (f *file) truncate() {
	f.bytes.Clear()
	f.size = 0
}

func (f *file) Read(p []byte) (int, error) {
	p = p[:min(len(p), f.size-f.at)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	for i, chunk := range f.bytes.StreamChunks(f.s, f.at, f.at+len(p)) {
		copy(p[i-f.at:], chunk)
	}
	f.at += len(p)
	return len(p), f.s.Err()
}

// plainFile is bytes in a slice, read and written in sequence.
type plainFile struct {
	b  []byte
	at int
}

func (f *plainFile) Write(p []byte) (int, error) {
	f.b = append(f.b, p...)
	return len(p), nil
}

func (f *plainFile) Read(p []byte) (int, error) {
	if f.at == len(f.b) {
		return 0, io.EOF
	}
	n := copy(p, f.b[f.at:])
	f.at += n
	return n, nil
}

// codec packs and unpacks in blocks of 64 KiB, in the calling goroutine.
type codec struct {
	w   *s2.Writer
	r   *s2.Reader
	buf []byte
}

const snappyBlock = 64 << 10

func newCodec() *codec {
	return &codec{
		w:   s2.NewWriter(nil, s2.WriterSnappyCompat(), s2.WriterConcurrency(1), s2.WriterBlockSize(snappyBlock)),
		r:   s2.NewReader(nil, s2.ReaderMaxBlockSize(snappyBlock)),
		buf: make([]byte, snappyBlock),
	}
}

// only hides all other methods of its Reader or Writer.
type only struct {
	io.Reader
	io.Writer
}

func (c *codec) pack(dst io.Writer, src io.Reader) error {
	c.w.Reset(only{Writer: dst})
	if _, err := io.CopyBuffer(only{Writer: c.w}, only{Reader: src}, c.buf); err != nil {
		return err
	}
	return c.w.Close()
}

func (c *codec) unpack(dst io.Writer, src io.Reader) error {
	c.r.Reset(only{Reader: src})
	_, err := io.CopyBuffer(only{Writer: dst}, only{Reader: c.r}, c.buf)
	return err
}

// runSnappy compresses data from one far array to another, and decompresses them to a third, with 20 % and with 50 %
// of them local. Passes over far arrays alternate with passes over slices.
func runSnappy(ctx context.Context, o Options, sc scanScale, fabric string, data []byte) (err error) {
	l, err := startLender(ctx, o.Polder, fabric, 8*int64(len(data))+(128<<20))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	c := newCodec()
	packed := &plainFile{b: make([]byte, 0, len(data)+len(data)/8)}
	plain := &plainFile{b: make([]byte, 0, len(data))}
	for _, percent := range []int{20, 50} {
		budget := max(int64(len(data))*int64(percent)/100, far.MinLocal)
		f, err := openFiles(ctx, l.store(), budget, data)
		if err != nil {
			return err
		}
		var rates [4][]float64
		for range sc.passes {
			for i, pass := range []func() error{
				func() error { packed.b = packed.b[:0]; return c.pack(packed, &plainFile{b: data}) },
				func() error { f.packed.truncate(); f.in.at = 0; return c.pack(f.packed, f.in) },
				func() error { plain.b, packed.at = plain.b[:0], 0; return c.unpack(plain, packed) },
				func() error { f.out.truncate(); f.packed.at = 0; return c.unpack(f.out, f.packed) },
			} {
				if ctx.Err() != nil {
					return errors.Join(context.Cause(ctx), f.close())
				}
				begin := time.Now()
				if err := pass(); err != nil {
					return errors.Join(err, f.close())
				}
				rates[i] = append(rates[i], float64(len(data))/1e6/time.Since(begin).Seconds())
			}
		}
		f.out.at = 0
		err = f.out.check(data)
		if err = errors.Join(err, f.close()); err != nil {
			return err
		}
		row := benchout.Row{Bench: "far scan", Case: fmt.Sprintf("snappy, %s, %d%% local", fabric, percent), Unit: "MB/s"}
		pack, unpack := row, row
		pack.Metric, pack.Value = "compress", median(rates[1])
		unpack.Metric, unpack.Value = "decompress", median(rates[3])
		if err := printAll(o.Out, []benchout.Row{
			pack.Against("local", median(rates[0]), benchout.Higher),
			unpack.Against("local", median(rates[2]), benchout.Higher),
		}); err != nil {
			return err
		}
	}
	return nil
}

// files are the data to be compressed, the compressed data, and what decompressing them gives.
type files struct {
	heap            *far.Heap
	in, packed, out *file
}

func openFiles(ctx context.Context, store far.Store, budget int64, data []byte) (*files, error) {
	heap, err := far.NewHeap(store, far.Config{Local: budget})
	if err != nil {
		return nil, err
	}
	f := &files{heap: heap}
	for _, part := range []struct {
		f    **file
		name string
		size int
	}{
		{&f.in, "in", len(data)},
		{&f.packed, "packed", len(data) + len(data)/8},
		{&f.out, "out", len(data)},
	} {
		if *part.f, err = newFile(ctx, heap, part.name, part.size); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	if _, err := io.CopyBuffer(only{Writer: f.in}, only{Reader: bytes.NewReader(data)}, make([]byte, snappyBlock)); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *files) close() error {
	for _, file := range []*file{f.in, f.packed, f.out} {
		if file != nil {
			file.s.Close()
		}
	}
	return f.heap.Close()
}

// check returns an error unless f, read from where it is, holds want.
func (f *file) check(want []byte) error {
	if f.size != len(want) {
		return fmt.Errorf("%d bytes came of compressing and decompressing %d", f.size, len(want))
	}
	buf := make([]byte, snappyBlock)
	for at := 0; at < len(want); {
		n, err := f.Read(buf)
		if err != nil {
			return err
		}
		if !bytes.Equal(buf[:n], want[at:at+n]) {
			return fmt.Errorf("bytes %d to %d changed by being compressed and decompressed", at, at+n)
		}
		at += n
	}
	return nil
}
