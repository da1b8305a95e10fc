// Command farwords indexes the words of Go's source tree, or another tree, and says
// in which files a word is. The index is larger than the program's memory.
//
//	go run ./examples/farwords membarrier
//	go run ./examples/farwords -node 127.0.0.1:7070 -dir . evacuator
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode"

	"polder/far"
	"polder/far/remote"
	"polder/pool"
)

func main() {
	node := flag.String("node", "", "address of a memory node; without one, far memory is this process's own")
	dir := flag.String("dir", "", "what to index; without one, Go's own source tree")
	flag.Parse()
	if err := run(context.Background(), *node, *dir, flag.Args(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, node, dir string, words []string, out io.Writer) error {
	if dir == "" {
		root, _ := exec.Command("go", "env", "GOROOT").Output() // if this fails, WalkDir finds no directory
		dir = filepath.Join(strings.TrimSpace(string(root)), "src")
	}
	var store far.Store = far.NewMemStore(1<<20, 256)
	if node != "" {
		lent, err := pool.Dial(ctx, node)
		if err != nil {
			return err
		}
		defer lent.Close()
		store = remote.NewStore(lent)
	}
	heap, err := far.NewHeap(store, far.Config{Local: 24 << 20})
	if err != nil {
		return err
	}
	defer heap.Close()
	index, err := far.NewMap(heap, far.MapConfig[string, []byte]{Name: "words"}) // numbers of files, as 4 bytes
	if err != nil {
		return err
	}
	var files []string
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n := binary.LittleEndian.AppendUint32(nil, uint32(len(files)))
		files = append(files, path)
		seen := map[string]bool{}
		for _, w := range bytes.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && r != '_' }) {
			seen[string(w)] = true
		}
		for w := range seen {
			if err := index.Update(ctx, w, func(old []byte, _ bool) ([]byte, bool) { return append(old, n...), true }); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(files) == 0 {
		return cmp.Or(err, fmt.Errorf("no Go files in %s", dir))
	}
	for _, w := range words {
		in, _, err := index.Get(ctx, w)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is in %d files", w, len(in)/4)
		for ; len(in) >= 4; in = in[4:] {
			fmt.Fprintf(out, "\n\t%s", files[binary.LittleEndian.Uint32(in)])
		}
		fmt.Fprintln(out)
	}
	_, err = fmt.Fprintf(out, "%d words in %d files.\n%s", index.Len(), len(files), heap.Explain())
	return err
}
