package robustness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/fdpass"
	"polder/share"
	"polder/share/internal/shm"
	"polder/share/internal/wire"
	"polder/share/resource"
)

// raw is a client that says what it likes.
type raw struct {
	*fdpass.Conn
	token [16]byte
}

func hello(tok [16]byte, flags uint8) wire.Writer {
	return wire.Writer(nil).U8(uint8(wire.Hello)).U16(wire.Version).U8(flags).Raw(tok[:]).String("intruder").U32(0).U32(0).U32(0)
}

// attach says hello with a token.
func attach(dir string, tok [16]byte) (*raw, wire.Status, error) {
	conn, err := fdpass.Dial(filepath.Join(dir, "s"))
	if err != nil {
		return nil, 0, err
	}
	r := &raw{Conn: conn}
	status, body, files, err := r.ask(hello(tok, 0))
	fdpass.CloseAll(files)
	if err != nil || status != wire.OK {
		conn.Close()
		return nil, status, err
	}
	in := wire.Read(body)
	in.U64()
	copy(r.token[:], in.Take(16))
	return r, status, nil
}

func (r *raw) ask(msg wire.Writer, files ...*os.File) (wire.Status, []byte, []*os.File, error) {
	if err := r.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return 0, nil, nil, err
	}
	if err := r.SendFDs(msg, files...); err != nil {
		return 0, nil, nil, err
	}
	body, got, err := r.RecvFDs()
	if err != nil {
		return 0, nil, nil, err
	}
	return wire.Status(body[0]), body[1:], got, nil
}

// refused asks and returns nil if the answer is the status wanted.
func (r *raw) refused(want wire.Status, msg wire.Writer) error {
	status, body, files, err := r.ask(msg)
	fdpass.CloseAll(files)
	if err != nil {
		return err
	}
	if status != want {
		return fmt.Errorf("got %v (%s), want %v", status, body, want)
	}
	return nil
}

// region is a region that a raw client has allocated.
type region struct {
	id     uint64
	handle []byte
	file   *os.File
}

func (r *raw) alloc() (region, error) {
	status, body, files, err := r.ask(wire.Writer(nil).U8(uint8(wire.Alloc)).U64(4 * smallPage).U64(smallPage).String(""))
	if err != nil || status != wire.OK || len(files) != 1 {
		return region{}, fmt.Errorf("alloc: %v %s %w", status, body, errors.Join(err))
	}
	in := wire.Read(body)
	id := in.U64()
	in.Take(8 + 8 + 4 + 8 + 1)
	return region{id: id, handle: in.Rest(), file: files[0]}, nil
}

func putMessage(region uint64, page uint32, length uint64, key string) wire.Writer {
	return wire.Writer(nil).U8(uint8(wire.Put)).U64(region).U32(page).U64(length).U64(0).String(key)
}

func op(code wire.Op, rest []byte) wire.Writer { return wire.Writer(nil).U8(uint8(code)).Raw(rest) }

// TestAClientOfManyRegionsComesBack: a client that maps more regions than it may hold references tells the daemon of
// all of them, and keeps those that it owns.
func TestAClientOfManyRegionsComesBack(t *testing.T) {
	dir, _ := keep(t, "memfd:4MiB", "")
	open(t, dir)
	c, _, err := attach(dir, [16]byte{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.alloc()
	if err != nil {
		t.Fatal(err)
	}
	r.file.Close()
	c.Close()
	back, err := fdpass.Dial(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	const maps = 12000
	msg := hello(c.token, 0)
	msg = msg[:len(msg)-8].U32(maps)
	for i := range uint64(maps) {
		msg = msg.U64(1<<40 + i)
	}
	again := &raw{Conn: back}
	status, body, files, err := again.ask(msg.U32(1).U64(r.id))
	fdpass.CloseAll(files)
	if err != nil || status != wire.OK {
		t.Fatalf("a client that maps %d regions is answered %v (%s), %v", maps, status, body, err)
	}
	in := wire.Read(body)
	in.Take(8 + 16 + 1)
	if n, id := in.U32(), in.U64(); n != 1 || id != r.id {
		t.Errorf("it has %d regions, of which the first is %d, want the only one to be %d", n, id, r.id)
	}
	// A count without what it counts is refused at once.
	none := hello(c.token, 0)
	for _, cut := range []wire.Writer{none[: len(none)-4 : len(none)-4].U32(1 << 31), none[: len(none)-12 : len(none)-12].U32(1 << 31), msg} {
		bad, err := fdpass.Dial(filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		defer bad.Close()
		if err := (&raw{Conn: bad}).refused(wire.Invalid, cut); err != nil {
			t.Error(err)
		}
	}
}

func TestAttacks(t *testing.T) {
	dir, killDaemon := keep(t, "memfd:4MiB", "")
	owner := open(t, dir)
	put(t, owner, "precious", "right")
	dial := func() *raw {
		t.Helper()
		var r *raw
		until(t, "the daemon answers", func() bool {
			var status wire.Status
			var err error
			r, status, err = attach(dir, [16]byte{})
			return err == nil && status == wire.OK
		})
		t.Cleanup(func() { r.Close() })
		return r
	}
	a, b := dial(), dial()
	mine, err := a.alloc()
	if err != nil {
		t.Fatal(err)
	}
	defer mine.file.Close()
	if err := a.refused(wire.OK, putMessage(mine.id, 0, 1, "mine")); err != nil {
		t.Fatal(err)
	}
	readHandle := lookupHandle(t, b, "mine")

	attacks := []struct {
		name string
		try  func() error
	}{
		{"a handle with a forged MAC", func() error {
			forged := append([]byte(nil), readHandle...)
			forged[len(forged)-1] ^= 1
			return b.refused(wire.Denied, op(wire.Map, forged))
		}},
		{"a handle with more rights than were granted", func() error {
			forged := append([]byte(nil), readHandle...)
			forged[24] |= byte(resource.Own)
			return b.refused(wire.Denied, op(wire.Release, forged))
		}},
		{"a handle that was invented", func() error {
			return b.refused(wire.Denied, op(wire.Map, resource.Handle{Region: mine.id, Rights: resource.Read}.Append(nil)))
		}},
		{"the owner's handle, presented by another client", func() error {
			return b.refused(wire.Denied, op(wire.Map, mine.handle))
		}},
		{"a reader's handle, presented by another client", func() error {
			return a.refused(wire.Denied, op(wire.Map, readHandle))
		}},
		{"freeing a region with the owner's handle, by another client", func() error {
			return b.refused(wire.Denied, op(wire.Release, mine.handle))
		}},
		{"freeing a region with a reader's handle", func() error {
			return b.refused(wire.Denied, op(wire.Release, readHandle))
		}},
		{"registering a key in another's region", func() error {
			return b.refused(wire.Denied, putMessage(mine.id, 1, 1, "redirected"))
		}},
		{"registering a key in a region that does not exist", func() error {
			return a.refused(wire.NotFound, putMessage(mine.id+1000, 0, 1, "k"))
		}},
		{"a page behind the end of the region", func() error {
			return a.refused(wire.Invalid, putMessage(mine.id, 4, 1, "k"))
		}},
		{"a length beyond the page", func() error {
			return a.refused(wire.Invalid, putMessage(mine.id, 1, smallPage+1, "k"))
		}},
		{"a negative length", func() error {
			return a.refused(wire.Invalid, putMessage(mine.id, 1, 1<<63, "k"))
		}},
		{"two keys in one page", func() error {
			return a.refused(wire.Invalid, putMessage(mine.id, 0, 1, "second"))
		}},
		{"an empty key", func() error { return a.refused(wire.Invalid, putMessage(mine.id, 1, 1, "")) }},
		{"an oversized key", func() error {
			return a.refused(wire.Invalid, putMessage(mine.id, 1, 1, strings.Repeat("k", wire.MaxKey+1)))
		}},
		{"an oversized batch", func() error {
			msg := wire.Writer(nil).U8(uint8(wire.Exists))
			for range wire.MaxBatch + 1 {
				msg = msg.String("k")
			}
			return a.refused(wire.Invalid, msg)
		}},
		{"an oversized message", func() error {
			c := dial()
			big := make([]byte, fdpass.MaxMessage+1000)
			big[0] = uint8(wire.Exists)
			err := sendRaw(c, big)
			if err != nil {
				return err
			}
			status, err := c.status()
			if err == nil && status != wire.Invalid {
				return fmt.Errorf("got %v, want %v or the end of the connection", status, wire.Invalid)
			}
			return nil
		}},
		{"a region of a size that overflows", func() error {
			return a.refused(wire.Invalid, wire.Writer(nil).U8(uint8(wire.Alloc)).U64(1<<63).U64(1).String(""))
		}},
		{"a region with more pages than there are words", func() error {
			return a.refused(wire.Invalid, wire.Writer(nil).U8(uint8(wire.Alloc)).U64(1<<40).U64(1).String(""))
		}},
		{"giving back a reference that was never taken", func() error {
			return b.refused(wire.NotFound, wire.Writer(nil).U8(uint8(wire.Unref)).U32(64))
		}},
		{"unmapping what was never mapped", func() error {
			return b.refused(wire.NotFound, wire.Writer(nil).U8(uint8(wire.Unmap)).U64(mine.id))
		}},
		{"unpinning another's pin", func() error {
			if err := owner.Pin(context.Background(), "precious"); err != nil {
				return err
			}
			status, body, _, err := b.ask(wire.Writer(nil).U8(uint8(wire.Unpin)).String("precious"))
			if err != nil || status != wire.OK || wire.Status(body[0]) != wire.NotFound {
				return fmt.Errorf("got %v %v %w", status, body, errors.Join(err))
			}
			return owner.Unpin(context.Background(), "precious")
		}},
		{"an operation that does not exist", func() error { return a.refused(wire.Invalid, op(77, nil)) }},
		{"a token of another process", func() error {
			return run(self(t, "intruder", dir, fmt.Sprintf("token %x", a.token)))
		}},
		{"a lease whose size is not sealed", func() error {
			fd, err := unix.MemfdCreate("lease", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err != nil {
				return err
			}
			f := os.NewFile(uintptr(fd), "lease")
			defer f.Close()
			conn, err := fdpass.Dial(filepath.Join(dir, "s"))
			if err != nil {
				return err
			}
			defer conn.Close()
			status, _, _, err := (&raw{Conn: conn}).ask(hello([16]byte{}, wire.HelloLease), f)
			if err != nil || status != wire.Invalid {
				return fmt.Errorf("got %v, %v, want %v", status, err, wire.Invalid)
			}
			return nil
		}},
		{"a lease on huge pages, which can run out", func() error {
			fd, err := unix.MemfdCreate("lease", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
			if err != nil {
				return nil // this kernel has none to attack with
			}
			f := os.NewFile(uintptr(fd), "lease")
			defer f.Close()
			if err := f.Truncate(2 << 20); err != nil {
				return err
			}
			if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
				return err
			}
			conn, err := fdpass.Dial(filepath.Join(dir, "s"))
			if err != nil {
				return err
			}
			defer conn.Close()
			status, text, _, err := (&raw{Conn: conn}).ask(hello([16]byte{}, wire.HelloLease), f)
			if err != nil || status != wire.Invalid || !strings.Contains(string(text), "huge pages") {
				return fmt.Errorf("got %v (%s), %v, want %v", status, text, err, wire.Invalid)
			}
			return nil
		}},
		{"registering a key in another's region, by mailbox", func() error {
			return post(dir, wire.Denied, putMessage(mine.id, 1, 1, "redirected"))
		}},
		{"an operation that brings descriptors, by mailbox", func() error {
			return post(dir, wire.Invalid, wire.Writer(nil).U8(uint8(wire.Alloc)).U64(4*smallPage).U64(smallPage).String(""))
		}},
		{"nothing, by mailbox", func() error { return post(dir, wire.Invalid, nil) }},
		{"garbage in a mailbox, changed while it is read", func() error { return scribble(dir, owner) }},
		{"writing through a reader's descriptor", func() error { return attackDescriptor(b, readHandle) }},
		{"writing through a view", func() error {
			cmd := self(t, "intruder", dir, "write precious")
			cmd.Stderr = nil
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() == 1 {
				return fmt.Errorf("the writer has not faulted: %v", err)
			}
			return nil
		}},
		{"shrinking a region under its readers", func() error {
			if err := mine.file.Truncate(0); err == nil {
				return errors.New("the owner has shrunk it")
			}
			return nil
		}},
		{"garbage of every operation", func() error { return garbage(dial) }},
		{"a client that never reads its answers", func() error {
			c := dial()
			if err := c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				return err
			}
			for range 100000 {
				if c.Send(op(wire.Stats, nil)) != nil {
					break // the daemon reads no more of it, either
				}
			}
			return nil
		}},
		{"ten thousand connections", func() error { return crowd(dir) }},
	}
	if os.Getuid() == 0 {
		attacks = append(attacks, struct {
			name string
			try  func() error
		}{"another user's socket", func() error {
			cmd := self(t, "intruder", dir, "connect")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			return runAs(t, cmd, dir)
		}})
	}
	attacks = append(attacks, struct {
		name string
		try  func() error
	}{"handles replayed after the region was freed and the daemon restarted", func() error {
		return replay(t, dir, a, mine, killDaemon)
	}})

	var table strings.Builder
	held := 0
	for _, attack := range attacks {
		verdict := "held"
		if err := attack.try(); err != nil {
			verdict = "NOT HELD: " + err.Error()
			t.Errorf("%s: %v", attack.name, err)
		} else {
			held++
		}
		fmt.Fprintf(&table, "\n  %-70s %s", attack.name, verdict)
		// Whatever was tried, everybody else is served, and the bytes are right.
		wantValue(t, owner, "precious", "right")
	}
	t.Logf("%d of %d attacks held:%s", held, len(attacks), table.String())
}

func lookupHandle(t *testing.T, r *raw, key string) []byte {
	t.Helper()
	status, body, _, err := r.ask(wire.Writer(nil).U8(uint8(wire.Lookup)).U8(wire.LookupHandles).String(key))
	if err != nil || status != wire.OK {
		t.Fatalf("lookup: %v %s %v", status, body, err)
	}
	in := wire.Read(body)
	if loc := in.Location(); !loc.Found {
		t.Fatal("lookup: the key is not there")
	}
	return in.Take(resource.HandleSize)
}

func (r *raw) status() (wire.Status, error) {
	body, err := r.Recv()
	if err != nil {
		return 0, err
	}
	defer r.Done()
	return wire.Status(body[0]), nil
}

// attackDescriptor tries to write with what a reader is handed.
func attackDescriptor(r *raw, handle []byte) error {
	status, _, files, err := r.ask(op(wire.Map, handle))
	if err != nil || status != wire.OK || len(files) != 1 {
		return fmt.Errorf("map: %v %w", status, errors.Join(err))
	}
	defer fdpass.CloseAll(files)
	f := files[0]
	if _, err := f.WriteAt([]byte("X"), 0); err == nil {
		return errors.New("write(2) went through")
	}
	if _, err := unix.Mmap(int(f.Fd()), 0, smallPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		return errors.New("it was mapped writable")
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, smallPage, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		return errors.New("a read-only mapping was made writable")
	}
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer again.Close()
	if _, err := again.WriteAt([]byte("X"), 0); err == nil {
		return errors.New("opened again, write(2) went through")
	}
	if _, err := unix.Mmap(int(again.Fd()), 0, smallPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		return errors.New("opened again, it was mapped writable")
	}
	if err := again.Truncate(0); err == nil {
		return errors.New("opened again, it was truncated")
	}
	return nil
}

// attachBusy attaches a client that is polled, and maps its mailbox.
func attachBusy(dir string) (*raw, []byte, *shm.Mailbox, error) {
	conn, err := fdpass.Dial(filepath.Join(dir, "s"))
	if err != nil {
		return nil, nil, nil, err
	}
	r := &raw{Conn: conn}
	status, body, files, err := r.ask(hello([16]byte{}, wire.HelloMailbox))
	defer fdpass.CloseAll(files)
	if err != nil || status != wire.OK || len(files) != 2 {
		conn.Close()
		return nil, nil, nil, fmt.Errorf("hello: %v %s %w", status, body, errors.Join(err))
	}
	box, err := shm.OpenMailbox(files[1])
	if err != nil {
		conn.Close()
		return nil, nil, nil, err
	}
	size, err := files[1].Seek(0, io.SeekEnd)
	if err == nil {
		body, err = unix.Mmap(int(files[1].Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	for err == nil && !box.Attended() {
		err = r.refused(wire.OK, wire.Writer(nil).U8(uint8(wire.Exists)).String("x"))
	}
	if err != nil {
		box.Close()
		conn.Close()
		return nil, nil, nil, err
	}
	return r, body, box, nil
}

// post posts a message and returns nil if the answer is the status wanted.
func post(dir string, want wire.Status, msg wire.Writer) error {
	r, mem, box, err := attachBusy(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	defer box.Close()
	defer unix.Munmap(mem)
	box.Post(0, msg)
	for !box.Answered(0) {
		if !box.Attended() && box.Retract(0) { // the daemon has waited long enough
			if err := r.refused(wire.OK, wire.Writer(nil).U8(uint8(wire.Exists)).String("x")); err != nil {
				return err
			}
			box.Post(0, msg)
		}
	}
	if answer := box.Answer(0); wire.Status(answer[0]) != want {
		return fmt.Errorf("got %v (%s), want %v", wire.Status(answer[0]), answer[1:], want)
	}
	return nil
}

// scribble writes what it likes into a mailbox, while somebody else is served.
func scribble(dir string, owner *share.Client) error {
	r, mem, box, err := attachBusy(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	defer box.Close()
	defer unix.Munmap(mem)
	served := make(chan error, 1)
	go func() {
		var err error
		for range 200 {
			if _, e := owner.Exists(context.Background(), "precious"); e != nil {
				err = e
			}
		}
		served <- err
	}()
	rng := rand.New(rand.NewPCG(3, 4))
	for i := 0; ; i++ {
		slot := rng.IntN(shm.Posts)
		msg := make([]byte, rng.IntN(shm.MaxPost+1))
		for i := range msg {
			msg[i] = byte(rng.Uint32())
		}
		if len(msg) > 0 {
			msg[0] = byte(rng.IntN(int(wire.Bye) + 2))
		}
		box.Post(slot, msg)
		for range 8 { // states, lengths and bytes, whatever the daemon does with them
			mem[rng.IntN(len(mem)-4096)+4096] = byte(rng.IntN(5))
		}
		if i < 20000 {
			continue
		}
		select {
		case err := <-served:
			return err
		default:
		}
	}
}

// garbage sends random bytes behind every operation.
func garbage(dial func() *raw) error {
	rng := rand.New(rand.NewPCG(1, 2))
	for code := wire.Hello; code <= wire.Bye; code++ {
		for range 20 {
			c := dial()
			junk := make([]byte, rng.IntN(200))
			for i := range junk {
				junk[i] = byte(rng.Uint32())
			}
			_, _, files, err := c.ask(op(code, junk))
			fdpass.CloseAll(files)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("%v: no answer", code)
			}
			c.Close()
		}
	}
	return nil
}

// crowd opens ten thousand connections and looks whether others are served.
func crowd(dir string) error {
	var conns []*fdpass.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range 10000 {
		c, err := fdpass.Dial(filepath.Join(dir, "s"))
		if err != nil {
			return fmt.Errorf("after %d connections: %w", len(conns), err)
		}
		conns = append(conns, c)
	}
	r, status, err := attach(dir, [16]byte{})
	if err != nil || status != wire.OK {
		return fmt.Errorf("beside ten thousand connections: %v %w", status, errors.Join(err))
	}
	defer r.Close()
	status, body, _, err := r.ask(wire.Writer(nil).U8(uint8(wire.Exists)).String("precious"))
	if err != nil || status != wire.OK || body[0] != 1 {
		return fmt.Errorf("beside ten thousand connections: %v %w", status, errors.Join(err))
	}
	return nil
}

func run(cmd *exec.Cmd) error {
	var text strings.Builder
	cmd.Stderr = &text
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, text.String())
	}
	return nil
}

// runAs runs a copy of this binary that another user can execute.
func runAs(t *testing.T, cmd *exec.Cmd, dir string) error {
	data, err := os.ReadFile(cmd.Path)
	if err != nil {
		return err
	}
	cmd.Path = filepath.Join(dir, "binary")
	if err := os.WriteFile(cmd.Path, data, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	return run(cmd)
}

// replay presents a handle again when its region is freed, and when the daemon
// has restarted and carved another region in its place.
func replay(t *testing.T, dir string, a *raw, mine region, killDaemon func()) error {
	if err := a.refused(wire.OK, wire.Writer(nil).U8(uint8(wire.Delete)).String("mine")); err != nil {
		return err
	}
	if err := a.refused(wire.OK, op(wire.Release, mine.handle)); err != nil {
		return err
	}
	if err := a.refused(wire.NotFound, op(wire.Map, mine.handle)); err != nil {
		return fmt.Errorf("after the region was freed: %w", err)
	}
	killDaemon()
	var again *raw
	until(t, "the session is resumed", func() bool {
		r, status, err := attach(dir, a.token)
		again = r
		return err == nil && status == wire.OK
	})
	defer again.Close()
	other, err := again.alloc()
	if err != nil {
		return err
	}
	defer other.file.Close()
	if other.id == mine.id {
		return fmt.Errorf("the number %d was used again", mine.id)
	}
	if err := again.refused(wire.NotFound, op(wire.Map, mine.handle)); err != nil {
		return fmt.Errorf("after the daemon restarted: %w", err)
	}
	return nil
}

// sendRaw sends a packet past Conn's own limit.
func sendRaw(r *raw, b []byte) error {
	sock, err := r.SyscallConn()
	if err != nil {
		return err
	}
	var werr error
	err = sock.Control(func(fd uintptr) { _, werr = unix.Write(int(fd), b) })
	return errors.Join(err, werr)
}
