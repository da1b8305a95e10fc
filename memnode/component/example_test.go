package component_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log"

	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// words counts how often a word has been written.
type words struct{ count map[string]uint64 }

func newWords(env *component.Env, _ *component.Call, _ []byte) (component.Object, error) {
	return &words{count: make(map[string]uint64)}, env.Reserve(1 << 20)
}

// Write counts the words of a text. It takes no key.
func (w *words) Write(_ *component.Call, _, text []byte) error {
	for word := range bytes.FieldsSeq(text) {
		if len(w.count) == 10_000 {
			return component.ErrNoMemory
		}
		w.count[string(word)]++
	}
	return nil
}

// Read gives the number of a word.
func (w *words) Read(_ *component.Call, word, out []byte) ([]byte, error) {
	n := w.count[string(word)]
	if n == 0 {
		return nil, component.ErrNotFound
	}
	return binary.LittleEndian.AppendUint64(out, n), nil
}

func (w *words) Delete(_ *component.Call, word []byte) error {
	delete(w.count, string(word))
	return nil
}

func (w *words) Compute(_ *component.Call, op uint16, _, _ []byte) ([]byte, error) {
	return nil, fmt.Errorf("words do not compute %d", op)
}

// A program that lends memory has a component of its own. In its main it calls
// component.Main first, here:
//
//	component.Main(component.Set{"words": {New: newWords}})
func Example() {
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	node, err := memnode.New(dev, memnode.Config{
		Lend: 32 << 20, Components: component.Config{Memory: 16 << 20},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	listener, err := tcp.Listen(dev, "127.0.0.1:0", tcp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	go node.Serve(listener)

	ctx := context.Background()
	client, err := pool.Dial(ctx, listener.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	o, err := client.Construct(ctx, "words", nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := o.Write(ctx, nil, []byte("the cat and the dog")); err != nil {
		log.Fatal(err)
	}
	n, err := o.Read(ctx, []byte("the"), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(binary.LittleEndian.Uint64(n), "times")
	// Output: 2 times
}
