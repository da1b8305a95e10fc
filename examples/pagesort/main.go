// Command pagesort sorts records in memory that polder pager serves, and of which only a
// part is local:
//
//	polder node --lend 2GiB
//	polder pager --far 127.0.0.1:7070
//	go run ./examples/pagesort
//
// It sorts runs of a quarter of the local memory, which is as much as may be pinned at a
// time, and merges the runs. For 4 GiB of records with 512 MiB local, the node has to lend
// 12 GiB, and the pager needs --frames 512MiB:
//
//	go run ./examples/pagesort -size 4096 -local 512
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"sort"
	"time"

	"polder/pages/region"
)

// Bytes of a record, which begins with its key.
const (
	recordSize = 64
	keySize    = 16
)

func main() {
	pager := flag.String("pager", "unix:/run/polder/pager.sock", "where polder pager listens")
	size := flag.Int64("size", 256, "MiB of records")
	local := flag.Int64("local", 32, "MiB that may be in local memory at a time")
	flag.Parse()
	if err := run(context.Background(), *pager, *size<<20, *local<<20, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, pager string, size, local int64, out io.Writer) error {
	if size <= 0 || local < 1<<20 {
		return errors.New("cannot sort without records, or with less than 1 MiB of local memory")
	}
	begin := time.Now()
	// The region has the records, and behind them the room for the sorted ones.
	r, err := region.Map(ctx, pager, 2*size, region.Config{Local: local})
	if err != nil {
		return err
	}
	defer r.Close()
	progress := func(what string, done int64) {
		fmt.Fprintf(out, "%6.1f s  %s: %d of %d MiB\n", time.Since(begin).Seconds(), what, done>>20, size>>20)
	}

	random := rand.NewChaCha8([32]byte{})
	var before, after uint64
	length := local / 4
	for off := int64(0); off < size; off += length {
		n := min(length, size-off)
		err := r.Do(ctx, off, n, region.Writing, func(b []byte) {
			_, _ = random.Read(b) // never fails
			before += sum(b)
		})
		if err != nil {
			return err
		}
	}
	progress("filled", size)

	var runs []*bufio.Reader
	for off := int64(0); off < size; off += length {
		n := min(length, size-off)
		if err := r.Do(ctx, off, n, region.Writing, func(b []byte) { sort.Sort(records(b)) }); err != nil {
			return err
		}
		runs = append(runs, bufio.NewReaderSize(io.NewSectionReader(r, off, n), 64<<10))
		progress("sorted in runs", off+n)
	}

	sorted := bufio.NewWriterSize(io.NewOffsetWriter(r, size), 1<<20)
	err = merge(runs, func(done int64, record []byte) error {
		if done%(size/4) == 0 && done > 0 {
			progress("merged", done)
		}
		_, err := sorted.Write(record)
		return err
	})
	if err = errors.Join(err, sorted.Flush()); err != nil {
		return err
	}

	last := make([]byte, keySize)
	for off := size; off < 2*size; off += length {
		inOrder := true
		err := r.Do(ctx, off, min(length, 2*size-off), region.Reading, func(b []byte) {
			inOrder = bytes.Compare(last, b[:keySize]) <= 0 && sort.IsSorted(records(b))
			copy(last, b[len(b)-recordSize:])
			after += sum(b)
		})
		if err != nil {
			return err
		}
		if !inOrder {
			return fmt.Errorf("the records from offset %d on are not in order", off-size)
		}
	}
	if before != after {
		return errors.New("what is sorted is not what was there before")
	}
	progress("in order, with all that was there before", size)
	return nil
}

// records are records that lie in memory one after the other.
type records []byte

func (r records) at(i int) []byte    { return r[i*recordSize:][:recordSize] }
func (r records) Len() int           { return len(r) / recordSize }
func (r records) Less(i, j int) bool { return bytes.Compare(r.at(i)[:keySize], r.at(j)[:keySize]) < 0 }

func (r records) Swap(i, j int) {
	var v [recordSize]byte
	copy(v[:], r.at(i))
	copy(r.at(i), r.at(j))
	copy(r.at(j), v[:])
}

// sum is the same for the same records in another order.
func sum(b records) (sum uint64) {
	for i := range b.Len() {
		sum += uint64(crc32.ChecksumIEEE(b.at(i)))
	}
	return sum
}

// merge calls put with the records of all runs in order. done is how many bytes of records came before.
func merge(runs []*bufio.Reader, put func(done int64, record []byte) error) error {
	heads := make([]records, len(runs)) // the next record of each run, nil after the last
	var failed error
	next := func(i int) {
		if heads[i] == nil {
			heads[i] = make(records, recordSize)
		}
		if _, err := io.ReadFull(runs[i], heads[i]); err != nil {
			heads[i] = nil
			if !errors.Is(err, io.EOF) {
				failed = err
			}
		}
	}
	for i := range runs {
		next(i)
	}
	for done := int64(0); failed == nil; done += recordSize {
		first := -1
		for i, h := range heads {
			if h != nil && (first < 0 || bytes.Compare(h[:keySize], heads[first][:keySize]) < 0) {
				first = i
			}
		}
		if first < 0 {
			return nil
		}
		if err := put(done, heads[first]); err != nil {
			return err
		}
		next(first)
	}
	return failed
}
