package farbench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"polder/far"
	"polder/internal/cgroup"
	"polder/internal/child"
)

// zram is a compressed disk in memory that the kernel swaps to, until it is closed.
type zram struct {
	name string // zram0, for example
	used bool   // the kernel swaps to it
}

const zramControl = "/sys/class/zram-control/"

// diskSize is the size of a swap disk for a process with data bytes. It is more than twice as large: while more than
// half of its swap is in use, the kernel gives up the place of a page that it brings back, and has to write the page
// again even if it was only read.
func diskSize(data int64) int64 { return 2*data + (16 << 20) }

// newZram makes a zram for a process with data bytes. That takes root, and a kernel that has zram.
func newZram(ctx context.Context, data int64) (z *zram, err error) {
	b, err := os.ReadFile(zramControl + "hot_add")
	if err != nil {
		return nil, err
	}
	z = &zram{name: "zram" + strings.TrimSpace(string(b))}
	defer func() {
		if err != nil {
			err = errors.Join(err, z.close())
		}
	}()
	if err := os.WriteFile(z.sys("disksize"), []byte(strconv.FormatInt(diskSize(data), 10)), 0); err != nil {
		return nil, err
	}
	for _, command := range [][]string{{"mkswap", z.dev()}, {"swapon", z.dev()}} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(string(out)))
		}
		z.used = command[0] == "swapon"
	}
	return z, nil
}

func (z *zram) dev() string             { return "/dev/" + z.name }
func (z *zram) sys(file string) string  { return filepath.Join("/sys/block", z.name, file) }
func (z *zram) number() (number string) { return strings.TrimPrefix(z.name, "zram") }

// moved is how many bytes were read from the zram and written to it.
func (z *zram) moved() (int64, error) { return blockMoved(z.name) }

// close has the kernel bring back what is left there, and removes it.
func (z *zram) close() error {
	if z.used {
		if out, err := exec.Command("swapoff", z.dev()).CombinedOutput(); err != nil {
			return fmt.Errorf("swapoff %s: %w: %s", z.dev(), err, strings.TrimSpace(string(out)))
		}
	}
	return errors.Join(os.WriteFile(z.sys("reset"), []byte("1"), 0), os.WriteFile(zramControl+"hot_remove", []byte(z.number()), 0))
}

// blockMoved is how many bytes were read from a block device and written to it.
func blockMoved(device string) (int64, error) {
	b, err := os.ReadFile(filepath.Join("/sys/block", device, "stat"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b))
	if len(fields) < 7 {
		return 0, fmt.Errorf("cannot understand the statistics of %s: %q", device, b)
	}
	read, err := strconv.ParseInt(fields[2], 10, 64)
	written, err2 := strconv.ParseInt(fields[6], 10, 64)
	return 512 * (read + written), errors.Join(err, err2)
}

// swapDisk is what the kernel swaps to, until it is closed.
type swapDisk interface {
	moved() (int64, error) // bytes, since the start
	close() error
}

// borrowed is a disk in the memory of a node on this machine. polder swap on has the kernel swap to it over NBD.
type borrowed struct {
	polder string
	l      *lender
	device string // nbd0, for example
}

// newBorrowed makes such a disk for a process with data bytes. That takes root, a kernel that has an NBD client, and
// the tools for it.
func newBorrowed(ctx context.Context, polder string, data int64) (_ *borrowed, err error) {
	d, size := &borrowed{polder: polder}, diskSize(data)
	if d.l, err = startLender(ctx, polder, "tcp", size+size/8); err != nil { // as docs/how-to/swap.md says
		return nil, err
	}
	out, err := exec.CommandContext(ctx, polder, "swap", "on", "--far", d.l.node.Addr("verbs"), "--size", strconv.FormatInt(size, 10), "--local", strconv.Itoa(borrowedLocal), "--op-timeout", patience.String()).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	} else if _, rest, _ := strings.Cut(string(out), " at /dev/"); rest == "" {
		err = fmt.Errorf("cannot tell the device from %q", out)
	} else {
		d.device, _, _ = strings.Cut(rest, ",")
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// borrowedLocal is the budget of the process that serves the disk: the least there is, so that what is swapped out is
// at the node.
const borrowedLocal = far.MinLocal

func (d *borrowed) moved() (int64, error) { return blockMoved(d.device) }

// close has the kernel bring back what is left there, and ends what serves it.
func (d *borrowed) close() error {
	if d.device != "" {
		if out, err := exec.Command(d.polder, "swap", "off", "--nbd", d.device).CombinedOutput(); err != nil {
			return fmt.Errorf("polder swap off: %w: %s", err, strings.TrimSpace(string(out)))
		}
	}
	return d.l.close()
}

// ownMemory is how much local memory a swapped process may have besides the memory that jobs use: for Go's runtime,
// above all, and for what the kernel needs while it swaps.
const ownMemory = 8 << 20

// swapped is a process in a control group, part of whose memory the kernel swaps out.
type swapped struct {
	group *cgroup.Group
	p     *child.Process
	out   *os.File
	enc   *json.Encoder
	lines *bufio.Reader
	w     *io.PipeWriter
}

// errSwapped: a process whose memory is swapped out cannot be started, or it has ended.
var errSwapped = errors.New("no process can be swapped out here")

// startSwapped starts a process with size bytes of memory, of which so much may be local.
func startSwapped(polder string, size, local int64) (_ *swapped, err error) {
	s := &swapped{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w: %w", errSwapped, err), s.close())
		}
	}()
	if s.group, err = cgroup.New(local + ownMemory); err != nil {
		return nil, err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	s.out, s.enc = out, json.NewEncoder(out)
	r, w := io.Pipe()
	s.w, s.lines = w, bufio.NewReader(r)
	if s.p, err = child.Start(child.Command{Path: polder, Args: []string{"bench", SwappedCommand, strconv.FormatInt(size, 10)}, Files: []*os.File{in}, Stdout: w}); err != nil {
		return nil, err
	}
	go func() { // ends with the process
		<-s.p.Done()
		w.Close()
	}()
	return s, s.group.Add(s.p.PID())
}

// do has the process do a job. When ctx ends it is killed.
func (s *swapped) do(ctx context.Context, j job) (r result, err error) {
	defer context.AfterFunc(ctx, s.p.Kill)()
	_ = s.enc.Encode(j) // if the process is gone, there will be no answer
	line, err := s.lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err != nil {
		return r, fmt.Errorf("%w: it has ended: %w (the kernel kills it if it does not find enough to swap out)", errSwapped, s.p.Ended())
	}
	if r.Err != "" {
		err = errors.New(r.Err)
	}
	return r, err
}

func (s *swapped) close() (err error) {
	if s.p != nil {
		s.w.CloseWithError(io.ErrClosedPipe) // whatever it still writes
		s.p.Kill()
	}
	if s.out != nil {
		_ = s.out.Close()
	}
	if s.group != nil {
		err = s.group.Close()
	}
	return err
}

// SwappedCommand is the hidden subcommand of bench that runs Swapped.
const SwappedCommand = "swapped"

// Swapped does jobs with size bytes of its own memory, and writes their results to out. It reads jobs, one JSON
// object a line, from file descriptor 3 until that ends.
func Swapped(ctx context.Context, size int, out io.Writer) error {
	in := os.NewFile(3, "jobs")
	if in == nil || size <= 0 {
		return errors.New("a benchmark starts this command")
	}
	defer in.Close()
	jobs, results := json.NewDecoder(in), json.NewEncoder(out)
	var mem []byte
	var list []program
	for {
		var j job
		if err := jobs.Decode(&j); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		// Not before the first job: by then the process is in its control group, which counts the memory.
		if mem == nil {
			var err error
			if mem, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE); err != nil {
				return err
			}
			_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE)
		}
		var r result
		var err error
		if j.Program == "" {
			r, err = j.do(ctx, mem)
		} else {
			if list == nil {
				list = programs(int64(size), j.Accesses)
			}
			r, err = j.with(mem, list)
		}
		if err != nil {
			r.Err = err.Error()
		}
		if err := results.Encode(r); err != nil {
			return err
		}
	}
}
