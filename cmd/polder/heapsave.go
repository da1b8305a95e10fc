package main

import (
	"bytes"
	"cmp"
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
	"polder/cmd/polder/internal/usage"
	"polder/far"
	"polder/far/saved"
	"polder/internal/config"
	"polder/internal/directory"
	"polder/internal/operator"
	"polder/internal/progress"
)

const (
	// mostSaves is how many snapshots to try, if the server takes back memory that a snapshot has pinned.
	mostSaves = 8
	// moveTime is for how long to go on without any progress, while a partition moves from one server to another or
	// its server was killed.
	moveTime = 15 * time.Second
	// partsAhead is how many parts to ask for at a time.
	partsAhead = 4
	// haveBytes is the length of an argument that says what the copy has already. There may be several.
	haveBytes = 128 << 10
	// snapshotTime is how long a server may take to answer: it takes a checkpoint first.
	snapshotTime = 5 * time.Minute
)

// heapSaver saves a heap to a file, or to standard output.
type heapSaver struct {
	t      heapTool
	file   string
	server string
	force  bool
	local  int64
}

func newHeapSave() *cobra.Command {
	s := heapSaver{local: 64 << 20}
	run := func(cmd *cobra.Command, names []string) error { return s.run(cmd, names[0]) }
	cmd := s.t.command("save NAME", "Copy a heap to a file, while its server goes on", usage.Args(1, 1), run, run)
	cmd.Long = "Copies a heap to a file, as it is at one moment, while its server goes on serving and changing it. Of\n" +
		"a heap on a disk, --server says where that is. A heap that nobody has open is opened for that. Of a\n" +
		"heap of partitions each is copied to a file of its own in a directory, as it is at a moment of its\n" +
		"own. A copy that breaks off stays in FILE.part, and the same command goes on with it. polder heap\n" +
		"load makes a heap of a copy. The password of the server is taken from the environment, REDISCLI_AUTH."
	s.t.kept.reach(cmd.Flags())
	fs := cmd.Flags()
	fs.StringVarP(&s.file, "output", "o", "", "the `file` to write, or directory of a heap of partitions; without, the copy goes to standard output")
	fs.BoolVar(&s.force, "force", false, "replace the file if it is there")
	fs.StringVar(&s.server, "server", "", "the heap's server, redis://HOST:PORT, rediss://HOST:PORT for TLS, or unix:///PATH; without, it is where the manifest says, and of a heap on a disk nobody. If servers share the heap, any of them: the others are reached in the same way")
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
	s.t.kept.cfg.Disk = s.t.dir
	row, err := s.find(cmd, name)
	if err != nil {
		return fmt.Errorf("cannot save heap %s: %w", name, err)
	}
	if row.shared != nil {
		return s.runParts(cmd, row)
	}
	var to out
	said := cmd.OutOrStdout()
	if s.file == "" {
		if progress.Terminal(cmd.OutOrStdout()) != nil {
			return &usage.Error{Err: &config.Error{Source: "--output", Err: errors.New("it is not given, and standard output is a terminal; expected a file, or a pipe")}}
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
	if err := s.copy(cmd, name, to); err != nil {
		return s.brokenOff(name, err, w.Offset())
	}
	end()
	printSaved(said, name, w.Offset(), had)
	return nil
}

// brokenOff is the error that a heap was not saved because of err. have is how many bytes of it were.
func (s *heapSaver) brokenOff(name string, err error, have int64) error {
	if s.file != "" && have > 0 {
		err = fmt.Errorf("%w; %s has %s of it, and the same command goes on with that", err, heapfile.Partial(s.file), config.FormatSize(have))
	}
	return fmt.Errorf("cannot save heap %s: %w", name, err)
}

func printSaved(to io.Writer, name string, size, had int64) {
	fmt.Fprintf(to, "saved heap %s: %s", name, config.FormatSize(size))
	if had > 0 {
		fmt.Fprintf(to, ", of which %s were there", config.FormatSize(had))
	}
	fmt.Fprintln(to)
}

// runParts saves a heap of partitions, one after the other.
func (s *heapSaver) runParts(cmd *cobra.Command, row *keptRow) (err error) {
	if s.file == "" {
		return &usage.Error{Err: &config.Error{Source: "--output", Err: fmt.Errorf("it is not given, and heap %s has partitions; expected the directory that is to have a file for each", row.Name)}}
	}
	dir, err := heapfile.CreateDir(s.file, row.Partitions, s.force)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	size, had := int64(0), int64(0)
	for number := range row.Partitions {
		if err := s.savePart(cmd, daemon.PartitionHeap(row.Name, number), dir, number, &size, &had); err != nil {
			return s.brokenOff(row.Name, fmt.Errorf("partition %d: %w", number, err), size)
		}
	}
	if err := dir.Commit(); err != nil {
		return s.brokenOff(row.Name, err, size)
	}
	printSaved(cmd.OutOrStdout(), row.Name, size, had)
	return nil
}

// savePart saves a partition. It adds the bytes of its copy to size, and those that were there before to had.
func (s *heapSaver) savePart(cmd *cobra.Command, name string, dir *heapfile.Dir, number int, size, had *int64) (err error) {
	to, there, err := dir.Create(number)
	if to == nil {
		*size, *had = *size+there, *had+there
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	end := progress.Waiting(progress.Terminal(cmd.ErrOrStderr()), "saving heap "+name)
	defer end()
	w := to.Writer()
	*had += w.Offset()
	err = s.copy(cmd, name, to)
	*size += w.Offset()
	return err
}

// copy saves the heap called name into to. If the server takes back the memory that the snapshot has pinned, or the
// heap is a partition and has moved to another server, copy takes another snapshot, and goes on with what the copy
// has already.
func (s *heapSaver) copy(cmd *cobra.Command, name string, to out) error {
	ctx, w, since := cmd.Context(), to.Writer(), time.Now()
	for try := 1; ; try++ {
		row, err := s.find(cmd, name)
		if err != nil {
			return err
		}
		had := w.Offset()
		if err = s.save(cmd, row, w); err == nil {
			return to.Commit()
		}
		if w.Offset() > had {
			since = time.Now()
		}
		refused, again := refusal(err)
		moves := row.of != nil && len(row.of.Servers) > 0 && (again || !refused) && time.Since(since) < moveTime
		if ctx.Err() != nil || !moves && (!again || try >= mostSaves) {
			return err
		}
		select {
		case <-time.After(min(time.Duration(try)*100*time.Millisecond, time.Second)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// refusal reports whether err is a refusal and not a failed connection, and whether another snapshot may succeed
// where this one has failed.
func refusal(err error) (refused, again bool) {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return errors.Is(err, saved.ErrAnother) || errors.As(err, new(*usage.Error)), false
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	return true, code == "OVERTAKEN" || code == "TRYAGAIN" || code == "LOADING"
}

// find returns what is known of a heap, and if it is a partition, of which heap.
func (s *heapSaver) find(cmd *cobra.Command, name string) (row *keptRow, err error) {
	if s.t.dir != "" {
		return s.findOnDisk(name)
	}
	err = s.t.kept.run(cmd, name, func(ctx context.Context, c daemon.Registers) error {
		if row, err = keptHeap(ctx, c, name); err != nil {
			return err
		}
		return row.partOf(ctx, c)
	})
	if err == nil && row.Trouble != "" {
		err = errors.New(row.Trouble)
	}
	return row, err
}

// findOnDisk is find for a heap on a disk.
func (s *heapSaver) findOnDisk(name string) (*keptRow, error) {
	r, err := s.t.row(name)
	switch {
	case err != nil:
		return nil, err
	case r.Trouble != "":
		return nil, errors.New(r.Trouble)
	case r.InUse && s.server == "":
		return nil, &usage.Error{Err: &config.Error{Source: "--server", Err: errors.New("it is not given, and a process has the heap open; expected the server that it is, such as redis://127.0.0.1:6379")}}
	}
	return &keptRow{Name: name, root: &r.info.Root}, nil
}

// save copies the heap: from its server, or else from where it lies.
func (s *heapSaver) save(cmd *cobra.Command, row *keptRow, w *saved.Writer) error {
	number := uint64(0)
	if row.root != nil {
		number = row.root.Heap
	}
	url, ask := s.server, []any{"polder", "snapshot"}
	if url == "" && directory.CheckAddress(row.Owner) == nil {
		url = "redis://" + row.Owner
	}
	if row.of != nil {
		ask = append(ask, "partition", row.number)
		if len(row.of.Servers) == 0 {
			return s.open(cmd, row.Name, w)
		}
		owner, ok := row.of.Server(row.of.Owner[row.number])
		if !ok {
			return errors.New("no server has it at the moment")
		}
		scheme, _, _ := strings.Cut(cmp.Or(s.server, "redis://"), "://") // other servers are reached as --server is
		url = scheme + "://" + owner.Addr
	}
	if url == "" {
		return s.open(cmd, row.Name, w)
	}
	server, err := redisServer(url, os.Getenv("REDISCLI_AUTH"))
	if err != nil {
		return &usage.Error{Err: err}
	}
	server.ReadTimeout = snapshotTime
	if server.TLSConfig != nil {
		_, control, err := s.t.kept.open(cmd, row.Name)
		if err != nil {
			return err
		}
		if c := control.Security.Dial(); c != nil { // the certificates by which we and the witnesses know each other
			name := server.TLSConfig.ServerName
			server.TLSConfig = c.Clone()
			server.TLSConfig.ServerName = name
		}
	}
	logging.Disable() // what goes wrong is in the error
	c := redis.NewClient(server)
	stop := context.AfterFunc(cmd.Context(), func() { _ = c.Close() })
	defer func() {
		if stop() {
			_ = c.Close() // all replies have come, or saving has failed already
		}
	}()
	answers := c.Ping(cmd.Context()).Err()
	if answers == nil || s.server != "" {
		return saveFrom(cmd.Context(), c, ask, number, w)
	}
	if cmd.Context().Err() != nil {
		return context.Cause(cmd.Context())
	}
	var refused redis.Error
	if errors.As(answers, &refused) || row.of != nil {
		return fmt.Errorf("%s: %w", server.Addr, answers)
	}
	err = s.open(cmd, row.Name, w)
	if err != nil {
		err = fmt.Errorf("%w (and %s, which the manifest calls its server, does not answer: %w; --server says where it is reached)", err, row.Owner, answers)
	}
	return err
}

// open saves a heap that no process has open: this process opens it.
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

// saveFrom copies a heap from its server, which goes on serving. args is the command that asks for a snapshot. The
// heap must have this number; 0 is any.
func saveFrom(ctx context.Context, c *redis.Client, args []any, number uint64, w *saved.Writer) error {
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
		_, _ = p.Exec(ctx) // each part has its own error
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
		Use:   "load COPY",
		Short: "Make a new heap of a copy that heap save has written",
		Long: "Makes a new heap in the memory of nodes or on a disk of a file, or at nodes of partitions of a\n" +
			"directory, that polder heap save has written, of either kind. All of it is checked before anything\n" +
			"is borrowed or written. polder serve --heap NAME serves the heap then, or polder up --disk DIR.",
		Args: usage.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case name == "":
				return &usage.Error{Err: &config.Error{Source: "--heap", Err: errors.New("it is not given; expected the name of the heap that is to be made")}}
			case !config.IsName(name):
				return &usage.Error{Err: fmt.Errorf("%q is no name of a heap", name)}
			case t.cfg.Disk == "" && len(t.cfg.Far) == 0:
				return &usage.Error{Err: &config.Error{Source: "--far", Err: errors.New("it is not given; expected the nodes that are to have the heap, or --disk")}}
			case t.cfg.Disk != "" && len(t.cfg.Far)+len(t.cfg.Witness) > 0:
				return &usage.Error{Err: &config.Error{Source: "--disk", Value: t.cfg.Disk, Err: errors.New("expected none with --far and --witness: the heap is to be at one place")}}
			}
			cfg, control, err := t.open(cmd, name)
			if err != nil {
				return err
			}
			return load(cmd, args[0], cfg, control)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&name, "heap", "", "the `name` of the new heap")
	fs.StringVar(&t.cfg.Disk, "disk", "", "the `directory` that is to have the heap, in the place of nodes")
	t.holders(fs)
	t.reach(fs)
	fs.Lookup("far").Usage = "the nodes that are to have the heap, as for polder serve"
	fs.IntVar(&t.cfg.Copies, "copies", 0, "how many nodes are to have each piece of it, by default 2 if there are as many")
	return cmd
}

// load makes a heap from a copy.
func load(cmd *cobra.Command, path string, cfg daemon.BorrowConfig, control *operator.Control) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	paths := []string{path}
	if st.IsDir() && cfg.Disk != "" {
		return fmt.Errorf("cannot load %s: it has the partitions of a heap, which only nodes can have: expected --far and --witness in the place of --disk; nothing was loaded", path)
	}
	if st.IsDir() {
		if paths, err = heapfile.Parts(path); err != nil {
			return err
		}
	}
	var files []io.ReadSeeker
	var contents []*saved.Contents
	var sum saved.Contents
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // the file was only read
		c, err := checkCopy(cmd, f)
		if err != nil {
			return fmt.Errorf("cannot load %s: %w; nothing was loaded", path, err)
		}
		files, contents = append(files, f), append(contents, c)
		sum.Segments, sum.Bytes = sum.Segments+c.Segments, sum.Bytes+c.Bytes+c.Checkpoint
	}
	defer progress.Waiting(progress.Terminal(cmd.ErrOrStderr()), "loading")()
	if st.IsDir() {
		err = daemon.LoadPartitions(cmd.Context(), control, cfg, files, contents)
	} else {
		err = daemon.LoadHeap(cmd.Context(), control, cfg, files[0], contents[0])
	}
	var size *saved.SegmentSizeError
	if errors.As(err, &size) {
		err = fmt.Errorf("%w: expected nodes that were started with --chunk %s", err, config.FormatSize(int64(size.Want)))
	}
	if err != nil {
		return fmt.Errorf("cannot load %s: %w", path, err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "heap %s is there: ", cfg.Heap)
	if st.IsDir() {
		fmt.Fprintf(cmd.OutOrStdout(), "%d partitions, ", len(files))
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%d segments, %s\n", sum.Segments, config.FormatSize(sum.Bytes))
	return nil
}

// checkCopy checks a file of a copy, and returns what it contains.
func checkCopy(cmd *cobra.Command, f *os.File) (*saved.Contents, error) {
	begin := make([]byte, 5)
	if n, _ := f.ReadAt(begin, 0); bytes.Equal(begin[:n], []byte("REDIS")) {
		return nil, errors.New("it is an RDB file: polder rdb load loads it into a server that runs")
	}
	defer progress.Waiting(progress.Terminal(cmd.ErrOrStderr()), "checking the file")()
	return saved.Check(cmd.Context(), f)
}
