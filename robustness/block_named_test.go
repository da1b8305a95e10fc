package robustness

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
)

// disk is a client of a block device that asks one question at a time.
type disk struct {
	net.Conn
	cookie uint64
}

// NBD's commands, and the flag that has a write survive the server.
const (
	nbdRead, nbdWrite, nbdFlush = 0, 1, 3
	nbdFUA                      = 1
)

// openDisk connects to the export of a block device.
func openDisk(t *testing.T, p *child.Process, name string) *disk {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr("nbd"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * hang)); err != nil {
		t.Fatal(err)
	}
	be := binary.BigEndian
	b := be.AppendUint32(nil, 3)                                                         // fixed newstyle, no zeroes
	b = be.AppendUint32(be.AppendUint32(append(b, "IHAVEOPT"...), 1), uint32(len(name))) // NBD_OPT_EXPORT_NAME
	if _, err := c.Write(append(b, name...)); err != nil {
		t.Fatal(err)
	}
	hello := make([]byte, 18+10)
	if _, err := io.ReadFull(c, hello); err != nil || !bytes.HasPrefix(hello, []byte("NBDMAGICIHAVEOPT")) {
		t.Fatalf("the block device said %x: %v", hello, err)
	}
	return &disk{Conn: c}
}

// do makes a request, and fills b if it is a read.
func (d *disk) do(command, flags uint16, off int64, b []byte) error {
	be := binary.BigEndian
	d.cookie++
	m := be.AppendUint32(nil, 0x25609513)
	m = be.AppendUint64(be.AppendUint16(be.AppendUint16(m, flags), command), d.cookie)
	m = be.AppendUint32(be.AppendUint64(m, uint64(off)), uint32(len(b)))
	if command == nbdWrite {
		m = append(m, b...)
	}
	if _, err := d.Write(m); err != nil {
		return err
	}
	reply := make([]byte, 16)
	if _, err := io.ReadFull(d, reply); err != nil {
		return err
	}
	if e := be.Uint32(reply[4:]); e != 0 || be.Uint32(reply) != 0x67446698 || be.Uint64(reply[8:]) != d.cookie {
		return fmt.Errorf("the answer to command %d at %d is %x", command, off, reply)
	}
	if command != nbdRead {
		return nil
	}
	_, err := io.ReadFull(d, b)
	return err
}

// TestADiskAtNodesOutlivesItsServer: what was flushed, or written with FUA, is there byte for byte after the server of a
// named heap was killed, be it that a standby takes over, or that it is started again; of what was not, each page is the
// old one or the new one.
func TestADiskAtNodesOutlivesItsServer(t *testing.T) {
	t.Parallel()
	const size, page = 16 << 20, 4096
	witnesses := startWitnesses(t)
	_, far := startNodes(t, 3)
	args := func(more ...string) []string {
		return named(far, witnesses, append(more, "--size", "16MiB", "--compress")...)
	}
	server := proctest.Run(t, "block", append([]string{"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args()...)...)
	want, maybe := make([]byte, size), make([]byte, size)
	random := rand.New(rand.NewPCG(1, 2))
	fill := func(b []byte) {
		few := byte(random.Uint32() | 3) // so that some pages can be made smaller
		for i := range b {
			b[i] = byte(random.Uint32()) & few
		}
	}
	check := func(d *disk) {
		t.Helper()
		got := make([]byte, 1<<20)
		for off := 0; off < size; off += len(got) {
			if err := d.do(nbdRead, 0, int64(off), got); err != nil {
				t.Fatal(err)
			}
			for at := 0; at < len(got); at += page {
				b := got[at : at+page]
				if !bytes.Equal(b, want[off+at:off+at+page]) && !bytes.Equal(b, maybe[off+at:off+at+page]) {
					t.Fatalf("page %d is not what was flushed, nor what was written since", (off+at)/page)
				}
				copy(want[off+at:], b) // as it is from now on
			}
		}
		copy(maybe, want)
	}
	for round := range 3 {
		d := openDisk(t, server, "polder")
		check(d)
		for range 40 {
			off, n := random.IntN(size-128<<10), 1+random.IntN(128<<10)
			fill(want[off : off+n])
			if err := d.do(nbdWrite, 0, int64(off), want[off:off+n]); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.do(nbdFlush, 0, 0, nil); err != nil {
			t.Fatal(err)
		}
		fill(want[:page])
		if err := d.do(nbdWrite, nbdFUA, 0, want[:page]); err != nil {
			t.Fatal(err)
		}
		copy(maybe, want)
		for range 20 { // pages that may be there or not
			off := (1 + random.IntN(size/page-1)) * page
			if bytes.Equal(maybe[off:off+page], want[off:off+page]) {
				fill(maybe[off : off+page])
				if err := d.do(nbdWrite, 0, int64(off), maybe[off:off+page]); err != nil {
					t.Fatal(err)
				}
			}
		}
		var standby <-chan *child.Process
		if round == 0 {
			standby = startStandby(t, "block", "127.0.0.1:0", args())
		}
		server.Kill()
		<-server.Done()
		if round > 0 {
			server = proctest.Run(t, "block", append([]string{"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args()...)...)
			continue
		}
		select {
		case server = <-standby:
		case <-time.After(2 * hang):
			t.Fatal("the standby has not taken over")
		}
		if server == nil {
			t.FailNow()
		}
	}
	check(openDisk(t, server, "polder"))
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
}
