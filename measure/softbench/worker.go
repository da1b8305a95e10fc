package softbench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"polder/soft"
)

// Worker runs a part of a benchmark in a process of its own, until the process is
// killed. The hidden subcommand worker calls it.
func Worker(ctx context.Context, out io.Writer, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "fill":
			return fillWorker(ctx, out, args[1:])
		case "service":
			return serviceWorker(ctx, out, args[1:])
		case "antagonist":
			return antagonistWorker(ctx, out, args[1:])
		case "files":
			return filesWorker(ctx, out, args[1:])
		case "scan":
			return scanWorker(ctx, out, args[1:])
		case "app":
			return appWorker(ctx, out, args[1:])
		}
	}
	return fmt.Errorf("cannot be worker %q", args)
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// fillWorker fills all memory that it is granted with blocks, over and over, at
// full speed. In mode "running" it does something other than reading after each pass.
func fillWorker(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want a socket, a size and a mode, not %q", args)
	}
	size, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	h, err := soft.Open(soft.Config{Budget: soft.MinBudget, Max: size, Coordinator: args[0], Name: "fill"})
	if err != nil {
		return err
	}
	defer h.Close()
	n := int(size / 4096)
	a, err := soft.NewArray[[4000]byte](h, n, nil)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "ready")
	var v [4000]byte
	for i := 0; ctx.Err() == nil; i++ {
		if !a.Load(i%n, &v) {
			_ = a.Store(i%n, v) // there may be no memory just now
		}
		if args[2] == "running" && i%n == 0 {
			h.Stats() // something other than reading
		}
	}
	return nil
}
