package share_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"polder/share"
	"polder/share/server"
)

func Example() {
	// Usually "polder share" runs on the host already.
	dir, err := os.MkdirTemp("", "share")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	opt := testOptions(dir)
	s, err := server.Start(opt)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	ctx := context.Background()
	c, err := share.Open(ctx, share.Config{Socket: opt.Socket, RegionSize: 4 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	p, err := c.Alloc(ctx)
	if err != nil {
		log.Fatal(err)
	}
	n := copy(p.Bytes(), "computed once")
	if _, err := c.Put(ctx, "block/42", p, n); err != nil {
		log.Fatal(err)
	}

	v, err := c.Get(ctx, "block/42") // in this process or any other
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	fmt.Printf("%s\n", v.Bytes())
	// Output: computed once
}
