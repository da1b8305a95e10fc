// Package marutest has a client of Maru's protocol, for tests and measurements of
// the door. It shares no code with the door, so that neither's mistakes hide the
// other's.
package marutest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/share/server"
)

// The types of requests to the directory.
const (
	typeAlloc         = 0x01
	typeReturn        = 0x03
	typeRegister      = 0x10
	typeLookup        = 0x11
	typeExists        = 0x12
	typeDelete        = 0x13
	typePin           = 0x14
	typeUnpin         = 0x15
	typeBatchRegister = 0x20
	typeBatchLookup   = 0x21
	typeHandshake     = 0xfe
)

// patience is how long a Client waits for an answer.
const patience = 10 * time.Second

// Client asks one thing at a time, and remembers nothing but its mappings. It answers
// the server's heartbeats only while it asks. It is for one goroutine.
type Client struct {
	directory *zmtp
	number    uint32
	instance  string
	name      string   // at the resource manager
	address   string   // of the resource manager
	resources net.Conn // nil before a region is mapped
	maps      map[uint64]*arena.Mapping
	waited    time.Duration
}

// Dial connects to a directory server at tcp://HOST:PORT or ipc:///PATH, and asks it
// for its resource manager. The identity may be empty.
func Dial(addr, identity, instance string) (*Client, error) {
	scheme, at, _ := strings.Cut(addr, "://")
	z, err := dialZMTP(map[string]string{"ipc": "unix", "tcp": "tcp"}[scheme], at, identity)
	if err != nil {
		return nil, fmt.Errorf("cannot reach Maru's directory: %w", err)
	}
	c := &Client{directory: z, instance: instance, name: fmt.Sprintf("%s:%d", instance, os.Getpid()), maps: map[uint64]*arena.Mapping{}}
	a, err := c.ask(typeHandshake, map[string]any{})
	if err != nil {
		z.Close()
		return nil, fmt.Errorf("cannot greet Maru's directory: %w", err)
	}
	c.address = a.Resources
	return c, nil
}

// answer is the payload of an answer of any type.
type answer struct {
	Error     string   `msgpack:"error"`
	Success   bool     `msgpack:"success"`
	Resources string   `msgpack:"rm_address"`
	IsNew     bool     `msgpack:"is_new"`
	Exists    bool     `msgpack:"exists"`
	Handle    handle   `msgpack:"handle"`
	Offset    int64    `msgpack:"kv_offset"`
	Length    int64    `msgpack:"kv_length"`
	Entries   []answer `msgpack:"entries"`
	Results   []bool   `msgpack:"results"`
}

type handle struct {
	Region uint64 `msgpack:"region_id"`
	Length int64  `msgpack:"length"`
	Token  uint64 `msgpack:"auth_token"`
}

func (h handle) region() server.MaruRegion {
	return server.MaruRegion{ID: h.Region, Length: h.Length, Token: h.Token}
}

func (a answer) found() server.Found {
	return server.Found{MaruRegion: a.Handle.region(), At: a.Offset, Size: a.Length}
}

// ask sends a request and reads the answer.
func (c *Client) ask(kind byte, fields map[string]any) (a answer, err error) {
	payload, err := msgpack.Marshal(fields)
	if err != nil {
		return a, err
	}
	c.number++
	msg := []byte{0xcf, 0, 1, kind, 0, 0, 0, 0}
	msg = binary.BigEndian.AppendUint32(msg, c.number)
	msg = binary.BigEndian.AppendUint32(msg, uint32(len(payload)))
	if err := c.directory.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return a, err
	}
	msg = append(msg, payload...)
	began := time.Now()
	if err := c.directory.send(msg); err != nil {
		return a, err
	}
	body, err := c.directory.receive()
	c.waited = time.Since(began)
	switch {
	case err != nil:
		return a, err
	case len(body) < 16 || body[0] != 0xcf || body[2] != 1 || body[3] != kind|0x80:
		return a, fmt.Errorf("the answer to a request of type %#x begins with %x", kind, body[:min(len(body), 16)])
	case binary.BigEndian.Uint32(body[8:]) != c.number:
		return a, fmt.Errorf("the answer is to request %d, want %d", binary.BigEndian.Uint32(body[8:]), c.number)
	}
	if err := msgpack.Unmarshal(body[16:], &a); err != nil {
		return a, fmt.Errorf("the answer to a request of type %#x: %w", kind, err)
	}
	if a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

// Waited returns how long the directory's last answer took, from when the request was
// given to the system: what the client takes to encode and decode is not in it.
func (c *Client) Waited() time.Duration { return c.waited }

// Alloc asks for a region.
func (c *Client) Alloc(size int64) (server.MaruRegion, error) {
	a, err := c.ask(typeAlloc, map[string]any{"instance_id": c.instance, "size": size})
	return a.Handle.region(), err
}

// Return returns a region.
func (c *Client) Return(region uint64) error {
	_, err := c.ask(typeReturn, map[string]any{"instance_id": c.instance, "region_id": region})
	return err
}

// Register registers a key; false if it was there already.
func (c *Client) Register(k server.MaruKey) (isNew bool, err error) {
	a, err := c.ask(typeRegister, map[string]any{"key": k.Key, "region_id": k.Region, "kv_offset": k.Offset, "kv_length": k.Length})
	return a.IsNew, err
}

// RegisterAll registers keys, and tells of each whether it is new.
func (c *Client) RegisterAll(keys []server.MaruKey) (isNew []bool, err error) {
	entries := make([]map[string]any, len(keys))
	for i, k := range keys {
		entries[i] = map[string]any{"key": k.Key, "region_id": k.Region, "kv_offset": k.Offset, "kv_length": k.Length}
	}
	a, err := c.ask(typeBatchRegister, map[string]any{"entries": entries})
	return a.Results, err
}

// Exists reports whether a key is there.
func (c *Client) Exists(key string) (bool, error) {
	a, err := c.ask(typeExists, map[string]any{"key": key})
	return a.Exists, err
}

// Pin pins a key; false if it is not there.
func (c *Client) Pin(key string) (bool, error) {
	a, err := c.ask(typePin, map[string]any{"key": key})
	return a.Exists, err
}

// Unpin takes a pin back; false if there is none.
func (c *Client) Unpin(key string) (bool, error) {
	a, err := c.ask(typeUnpin, map[string]any{"key": key})
	return a.Success, err
}

// Delete deletes a key; false if it is not there, or pinned.
func (c *Client) Delete(key string) (bool, error) {
	a, err := c.ask(typeDelete, map[string]any{"key": key})
	return a.Success, err
}

// Lookup asks where a key lies. There is none if the region's number is 0.
func (c *Client) Lookup(key string) (server.Found, error) {
	a, err := c.ask(typeLookup, map[string]any{"key": key})
	return a.found(), err
}

// LookupAll asks where keys lie.
func (c *Client) LookupAll(keys []string) ([]server.Found, error) {
	a, err := c.ask(typeBatchLookup, map[string]any{"keys": keys})
	found := make([]server.Found, len(a.Entries))
	for i, e := range a.Entries {
		found[i] = e.found()
	}
	return found, err
}

// Get looks a key up and returns its bytes where they are, or nil.
func (c *Client) Get(key string) ([]byte, error) {
	f, err := c.Lookup(key)
	if err != nil || f.ID == 0 {
		return nil, err
	}
	b, err := c.Map(f.MaruRegion)
	if err != nil {
		return nil, err
	}
	return b[f.At:][:f.Size:f.Size], nil
}

// Map maps a region, as Maru's clients do: for reading and writing.
func (c *Client) Map(r server.MaruRegion) ([]byte, error) {
	if m := c.maps[r.ID]; m != nil {
		return m.Bytes(), nil
	}
	path, err := c.Path(r)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := arena.MapFile(f, 0, int(r.Length), true)
	if err != nil {
		return nil, err
	}
	c.maps[r.ID] = m
	return m.Bytes(), nil
}

// The resource manager's protocol.
const (
	magic         = 0x4d415255
	version       = 2
	accessRequest = 9
	errorResponse = 255
	headerSize    = 12
)

// Path asks the resource manager where a region lies.
func (c *Client) Path(r server.MaruRegion) (string, error) {
	q := binary.LittleEndian.AppendUint32(nil, magic)
	q = binary.LittleEndian.AppendUint16(q, version)
	q = binary.LittleEndian.AppendUint16(q, accessRequest)
	q = binary.LittleEndian.AppendUint32(q, uint32(32+2+len(c.name)))
	for _, n := range []uint64{r.ID, 0, uint64(r.Length), r.Token} {
		q = binary.LittleEndian.AppendUint64(q, n)
	}
	q = append(binary.LittleEndian.AppendUint16(q, uint16(len(c.name))), c.name...)
	kind, b, err := c.askResources(q)
	if err != nil {
		return "", fmt.Errorf("cannot ask Maru's resource manager: %w", err)
	}
	if len(b) < 8 || uint64(len(b)-8) < uint64(binary.LittleEndian.Uint32(b[4:])) {
		return "", errors.New("the resource manager's answer is cut off")
	}
	status, text := int32(binary.LittleEndian.Uint32(b)), string(b[8:][:binary.LittleEndian.Uint32(b[4:])])
	if kind == errorResponse || status != 0 {
		return "", fmt.Errorf("the resource manager refuses: %s (%w)", text, unix.Errno(-status))
	}
	return text, nil
}

func (c *Client) askResources(request []byte) (kind uint16, payload []byte, err error) {
	if c.resources == nil {
		if c.resources, err = net.Dial("tcp", c.address); err != nil {
			return 0, nil, err
		}
	}
	if err := c.resources.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, nil, err
	}
	if _, err := c.resources.Write(request); err != nil {
		return 0, nil, err
	}
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(c.resources, head); err != nil {
		return 0, nil, err
	}
	payload = make([]byte, min(binary.LittleEndian.Uint32(head[8:]), 1<<20))
	_, err = io.ReadFull(c.resources, payload)
	return binary.LittleEndian.Uint16(head[6:]), payload, err
}

// Mapped returns the bytes of a region that is mapped, or nil.
func (c *Client) Mapped(region uint64) []byte {
	if m := c.maps[region]; m != nil {
		return m.Bytes()
	}
	return nil
}

// LeaveDirectory ends the connection to the directory alone, as a synchronous client
// does when an answer does not come in time.
func (c *Client) LeaveDirectory() error { return c.directory.Close() }

// LeaveResources ends the connection to the resource manager alone.
//
// Preconditions: a region was mapped.
func (c *Client) LeaveResources() error { return c.resources.Close() }

// Close ends the connections, and unmaps everything. Regions that have not been
// returned are as those of a client that has died.
func (c *Client) Close() error {
	err := c.directory.Close()
	if c.resources != nil {
		err = errors.Join(err, c.resources.Close())
	}
	for _, m := range c.maps {
		m.Close()
	}
	return err
}
