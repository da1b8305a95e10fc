package farbench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"polder/far"
	"polder/measure/benchout"
)

// RunWords measures how fast an inverted index is built with 8 MiB of local memory: for each word of Go's source
// tree, or of another corpus, the files that it is in. The rival is Go's map, all of it local.
func RunWords(ctx context.Context, o Options) error {
	files := 1 << 20
	if o.Short {
		files = 4000
	}
	if err := runWords(ctx, o, files); err != nil {
		return fmt.Errorf("cannot run the benchmark of an inverted index: %w", err)
	}
	return nil
}

func runWords(ctx context.Context, o Options, files int) error {
	dir, err := corpusIn(o.Corpus)
	if err != nil {
		return err
	}
	texts, err := readWords(ctx, dir, files)
	if err != nil {
		return err
	}
	plain := newLockedMap(64 << 20)
	was := time.Now()
	postings, err := buildIndex(texts, func(word string, file []byte) error {
		plain.add(word, file)
		return nil
	})
	if err != nil {
		return err
	}
	rival := float64(postings) / time.Since(was).Seconds()
	for _, fabric := range fabrics {
		if err := wordsOver(ctx, o, fabric, texts, postings, rival); err != nil {
			return fmt.Errorf("%s: %w", fabric, err)
		}
	}
	return nil
}

func wordsOver(ctx context.Context, o Options, fabric string, texts [][]string, postings int, rival float64) (err error) {
	l, err := startLender(ctx, o.Polder, fabric, 512<<20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	h, err := far.NewHeap(l.store(), far.Config{Local: 8 << 20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	m, err := far.NewMap(h, far.MapConfig[string, []byte]{Name: "words"})
	if err != nil {
		return err
	}
	was := time.Now()
	if _, err := buildIndex(texts, func(word string, file []byte) error {
		return m.Update(ctx, word, func(old []byte, _ bool) ([]byte, bool) { return append(old, file...), true })
	}); err != nil {
		return err
	}
	took, s := time.Since(was), h.Stats()
	row := benchout.Row{Bench: "far words", Case: fmt.Sprintf("%s, 8 MiB local, %d files, %d words", fabric, len(texts), s.Maps[0].Entries)}
	row.Metric, row.Value, row.Unit = "postings", float64(postings)/took.Seconds(), "op/s"
	if err := o.Out.Print(row.Against("Go's map, all local", rival, benchout.Higher)); err != nil {
		return err
	}
	row.Metric, row.Value, row.Unit = "moved", float64(s.BytesIn+s.BytesOut)/float64(postings), "B/op"
	return o.Out.Print(row)
}

// readWords reads up to most Go files under dir, and returns the words of each file, without repetitions.
func readWords(ctx context.Context, dir string, most int) (texts [][]string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if len(texts) == most {
			return fs.SkipAll
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		var words []string
		for _, w := range bytes.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && r != '_' }) {
			if !seen[string(w)] {
				seen[string(w)] = true
				words = append(words, string(w))
			}
		}
		texts = append(texts, words)
		return nil
	})
	if err == nil && len(texts) == 0 {
		err = fmt.Errorf("no Go files in %s", dir)
	}
	return texts, err
}

// buildIndex calls add for each word of each file, by several goroutines, and returns how many calls that were.
func buildIndex(texts [][]string, add func(word string, file []byte) error) (postings int, err error) {
	for _, words := range texts {
		postings += len(words)
	}
	_, err = crowd(mapWorkers, 0, func(id int, _ func() bool) (int, error) {
		for file := id; file < len(texts); file += mapWorkers {
			n := binary.LittleEndian.AppendUint32(nil, uint32(file))
			for _, w := range texts[file] {
				if err := add(w, n); err != nil {
					return 0, err
				}
			}
		}
		return 0, nil
	})
	return postings, err
}
