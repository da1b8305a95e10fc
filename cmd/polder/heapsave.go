package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/heapfile"
	"polder/far"
	"polder/far/saved"
	"polder/internal/config"
	"polder/internal/directory"
	"polder/internal/progress"
)

const (
	// mostSaves is how often a snapshot is taken, if its server has to take memory back from it.
	mostSaves = 8
	// partsAhead is how many parts are asked for at a time.
	partsAhead = 4
	// haveBytes is how long an argument is that says what there is already.
	haveBytes = 128 << 10
	// snapshotTime is how long a server may take to answer: it takes a checkpoint.
	snapshotTime = 5 * time.Minute
)

// heapSaver saves a heap to a file.
type heapSaver struct {
	t      heapTool
	file   string
	server string
	force  bool
	local  int64
}

func newHeapSave() *cobra.Command {
	s := heapSaver{local: 64 << 20}
	cmd := s.t.command("save NAME", "Copy a heap to a file, while its server goes on", cobra.ExactArgs(1), func(*cobra.Command, []string) error {
		return &usageError{&config.Error{Source: "--disk", Value: s.t.dir, Err: errors.New("expected none: a heap on a disk is copied with its directory, when nobody has it open")}}
	}, func(cmd *cobra.Command, names []string) error { return s.run(cmd, names[0]) })
	cmd.Long = "Copies a heap in the memory of nodes to a file, as it is at one moment, while its server goes on\n" +
		"serving and changing it. A heap that nobody has open is opened for that. A copy that breaks off\n" +
		"stays in FILE.part, and the same command goes on with it. polder heap load makes a heap of a\n" +
		"copy. The password of the server is taken from the environment, REDISCLI_AUTH."
	s.t.kept.reach(cmd.Flags())
	fs := cmd.Flags()
	fs.StringVarP(&s.file, "output", "o", "", "the `file` to write; without, the copy goes to standard output")
	fs.BoolVar(&s.force, "force", false, "replace the file if it is there")
	fs.StringVar(&s.server, "server", "", "the heap's server, redis://HOST:PORT, rediss://HOST:PORT for TLS, or unix:///PATH; without, it is where the manifest says")
	fs.Var(config.NewSize(&s.local, far.MinLocal, 0), "local", "local memory to use if nobody has the heap open; one with large values may need as much as it had")
	return cmd
}

// out is where a copy goes.
type out interface {
	Writer() *saved.Writer
	Commit() error
	Close() error
}

// stdout is a copy that goes to standard output.
type stdout struct{ w *saved.Writer }

func (s stdout) Writer() *saved.Writer { return s.w }
func (s stdout) Commit() error         { return s.w.End() }
func (s stdout) Close() error          { return nil }

func (s *heapSaver) run(cmd *cobra.Command, name string) (err error) {
	var to out
	said := cmd.OutOrStdout()
	if s.file == "" {
		if progress.Terminal(cmd.OutOrStdout()) != nil {
			return &usageError{&config.Error{Source: "--output", Err: errors.New("it is not given, and standard output is a terminal; expected a file, or a pipe")}}
		}
		to, said = stdout{saved.NewWriter(cmd.OutOrStdout())}, cmd.ErrOrStderr()
	} else if to, err = heapfile.Create(s.file, s.force); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	end := progress.Waiting(progress.Terminal(cmd.ErrOrStderr()), "saving heap "+name)
	defer end()
	w := to.Writer()
	had := w.Offset()
	if err := s.save(cmd, name, w); err != nil {
		if s.file != "" && w.Offset() > 0 {
			err = fmt.Errorf("%w; %s has %s of it, and the same command goes on with that", err, heapfile.Partial(s.file), config.FormatSize(w.Offset()))
		}
		return fmt.Errorf("cannot save heap %s: %w", name, err)
	}
	if err := to.Commit(); err != nil {
		return fmt.Errorf("cannot save heap %s: %w", name, err)
	}
	end()
	fmt.Fprintf(said, "saved heap %s: %s", name, config.FormatSize(w.Offset()))
	if had > 0 {
		fmt.Fprintf(said, ", of which %s were there", config.FormatSize(had))
	}
	fmt.Fprintln(said)
	return nil
}

// save copies the heap: from its server, or else from the nodes.
func (s *heapSaver) save(cmd *cobra.Command, name string, w *saved.Writer) error {
	var row *keptRow
	err := s.t.kept.run(cmd, name, func(ctx context.Context, c daemon.Registers) (err error) {
		row, err = keptHeap(ctx, c, name)
		return err
	})
	switch {
	case err != nil:
		return err
	case row.Trouble != "":
		return errors.New(row.Trouble)
	}
	number := uint64(0)
	if row.root != nil {
		number = row.root.Heap
	}
	url := s.server
	if url == "" && directory.CheckAddress(row.Owner) == nil {
		url = "redis://" + row.Owner
	}
	if url != "" {
		server, err := redisServer(url, os.Getenv("REDISCLI_AUTH"))
		if err != nil {
			return &usageError{err}
		}
		server.ReadTimeout = snapshotTime
		logging.Disable() // what goes wrong is in the error
		c := redis.NewClient(server)
		stop := context.AfterFunc(cmd.Context(), func() { _ = c.Close() })
		defer func() {
			if stop() {
				_ = c.Close() // every reply has come, or none counts
			}
		}()
		answers := c.Ping(cmd.Context()).Err()
		if answers == nil || s.server != "" {
			return saveFrom(cmd.Context(), c, number, w)
		}
		if cmd.Context().Err() != nil {
			return context.Cause(cmd.Context())
		}
		var refused redis.Error
		if errors.As(answers, &refused) {
			return fmt.Errorf("%s: %w", row.Owner, answers)
		}
		err = s.open(cmd, name, w)
		if err != nil {
			err = fmt.Errorf("%w (and %s, which the manifest calls its server, does not answer: %w; --server says where it is reached)", err, row.Owner, answers)
		}
		return err
	}
	return s.open(cmd, name, w)
}

// open saves a heap that nobody has open.
func (s *heapSaver) open(cmd *cobra.Command, name string, w *saved.Writer) error {
	cfg, control, err := s.t.kept.open(cmd, name)
	if err != nil {
		return err
	}
	cfg.Local = s.local
	return daemon.SaveHeap(cmd.Context(), control, cfg, w.Have, func(snap *saved.Snapshot) error {
		for {
			b, err := snap.Next(cmd.Context())
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				err = w.Add(b)
			}
			if err != nil {
				return err
			}
		}
	})
}

// saveFrom copies what a server has that goes on serving. If it needs the memory that a snapshot of it has kept, another one is taken, which
// goes on with what there is.
func saveFrom(ctx context.Context, c *redis.Client, number uint64, w *saved.Writer) error {
	for try := 1; ; try++ {
		err := saveOnce(ctx, c, number, w)
		var refused redis.Error
		if !errors.As(err, &refused) || try == mostSaves {
			return err
		}
		code, _, _ := strings.Cut(refused.Error(), " ")
		if code != "OVERTAKEN" && code != "TRYAGAIN" {
			return err
		}
		select {
		case <-time.After(time.Duration(try) * 100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func saveOnce(ctx context.Context, c *redis.Client, number uint64, w *saved.Writer) error {
	args := []any{"polder", "snapshot"}
	var b []byte
	for position, n := range w.Have() {
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, position), n)
		if len(b) >= haveBytes {
			args, b = append(args, b), nil
		}
	}
	if len(b) > 0 {
		args = append(args, b)
	}
	conn := c.Conn()
	defer func() { _ = conn.Close() }()
	about, err := conn.Do(ctx, args...).Slice()
	switch {
	case err != nil:
		return err
	case number != 0 && (len(about) != 2 || about[0] != fmt.Sprintf("%016x", number)):
		return fmt.Errorf("the server has another heap: number %v, want %016x", about, number)
	}
	for {
		p := conn.Pipeline()
		var parts [partsAhead]*redis.Cmd
		for i := range parts {
			parts[i] = p.Do(ctx, "polder", "part")
		}
		_, _ = p.Exec(ctx) // each has its own error
		for _, part := range parts {
			b, err := part.Text()
			if errors.Is(err, redis.Nil) {
				return nil
			}
			if err == nil {
				err = w.Add([]byte(b))
			}
			if err != nil {
				return err
			}
		}
	}
}

func newHeapLoad() *cobra.Command {
	var t keptTool
	name := ""
	cmd := &cobra.Command{
		Use:   "load FILE",
		Short: "Make a new heap of a copy that heap save has written",
		Long: "Makes a new heap in the memory of nodes of a file that polder heap save has written. All of\n" +
			"the file is checked before anything is borrowed. polder serve --heap NAME serves the heap then.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case name == "":
				return &usageError{&config.Error{Source: "--heap", Err: errors.New("it is not given; expected the name of the heap that is to be made")}}
			case !daemon.IsHeapName(name):
				return &usageError{fmt.Errorf("%q is no name of a heap", name)}
			case len(t.cfg.Far) == 0:
				return &usageError{&config.Error{Source: "--far", Err: errors.New("it is not given; expected the nodes that are to have the heap")}}
			}
			cfg, control, err := t.open(cmd, name)
			if err != nil {
				return err
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // it has been read only
			c, err := loadHeap(cmd, f, func(ctx context.Context, c *saved.Contents) error { return daemon.LoadHeap(ctx, control, cfg, f, c) })
			if err != nil {
				return fmt.Errorf("cannot load %s: %w", args[0], err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "heap %s is there: %d segments, %s\n", name, c.Segments, config.FormatSize(c.Bytes+c.Checkpoint))
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&name, "heap", "", "the `name` of the new heap")
	t.holders(fs)
	t.reach(fs)
	fs.Lookup("far").Usage = "the nodes that are to have the heap, as for polder serve"
	fs.IntVar(&t.cfg.Copies, "copies", 0, "how many nodes are to have each piece of it, by default 2 if there are as many")
	return cmd
}

// loadHeap checks a file, and then has load load it.
func loadHeap(cmd *cobra.Command, f *os.File, load func(ctx context.Context, c *saved.Contents) error) (*saved.Contents, error) {
	begin := make([]byte, 5)
	if n, _ := f.ReadAt(begin, 0); bytes.Equal(begin[:n], []byte("REDIS")) {
		return nil, errors.New("it is an RDB file: polder rdb load loads it into a server that runs")
	}
	show := progress.Terminal(cmd.ErrOrStderr())
	end := progress.Waiting(show, "checking the file")
	c, err := saved.Check(cmd.Context(), f)
	end()
	if err != nil {
		return nil, fmt.Errorf("%w; nothing was loaded", err)
	}
	defer progress.Waiting(show, "loading")()
	err = load(cmd.Context(), c)
	var size *saved.SegmentSizeError
	if errors.As(err, &size) {
		err = fmt.Errorf("%w: expected nodes that were started with --chunk %s", err, config.FormatSize(int64(size.Want)))
	}
	return c, err
}
