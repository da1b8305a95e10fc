package memcached

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"time"
)

// version is what version and stats answer: that of the protocol which is
// spoken.
const version = "1.6.21-polder"

// command reads and answers one command.
func (c *client) command() error {
	line, err := c.line()
	if errors.Is(err, bufio.ErrBufferFull) {
		_, _ = c.out.WriteString("CLIENT_ERROR line too long\r\n")
		return errQuit
	}
	if err != nil {
		return err
	}
	line = bytes.TrimRight(line, "\r\n")
	c.args = appendFields(c.args[:0], line)
	if len(c.args) == 0 {
		return c.say("ERROR")
	}
	name, args := string(c.args[0]), c.args[1:]
	switch name {
	case "get", "gets":
		return c.retrieve(args, name == "gets", false)
	case "gat", "gats":
		return c.retrieve(args, name == "gats", true)
	case "set", "add", "replace", "append", "prepend", "cas":
		return c.set(name, args)
	case "delete":
		return c.remove(args)
	case "incr", "decr":
		return c.arithmetic(name == "incr", args)
	case "touch":
		return c.touch(args)
	case "flush_all":
		return c.flushAll(args)
	case "version":
		return c.say("VERSION " + version)
	case "verbosity":
		if len(args) == 0 {
			return c.say("ERROR")
		}
		return c.unless(quietly(args), "OK")
	case "stats":
		return c.report(args)
	case "quit":
		return errQuit
	case "mn", "mg", "ms", "md", "ma", "me":
		return c.meta(name, args)
	}
	// A web page can have its visitor's browser send a request of HTTP to a server that only the visitor's machine
	// reaches, and what follows in it must not be run. memcached knows such a request by the same word.
	if bytes.HasPrefix(c.args[len(c.args)-1], []byte("HTTP/")) {
		return errQuit
	}
	return c.say("ERROR")
}

// flushAll is flush_all [delay] [noreply]: after so many seconds, nothing is there any more that was stored before. A
// flush that is yet to come is replaced by the next flush_all.
func (c *client) flushAll(args [][]byte) error {
	quiet := quietly(args)
	if quiet {
		args = args[:len(args)-1]
	}
	var delay int64
	if len(args) > 0 {
		var err error
		if delay, err = strconv.ParseInt(string(args[0]), 10, 64); err != nil {
			return c.say("CLIENT_ERROR invalid exptime argument")
		}
	}
	c.s.stats.flushes.Add(1)
	if at := min(c.expiry(delay), math.MaxInt64/int64(time.Second)); at > c.now.Unix() {
		c.s.flush.set(time.Unix(at, 0).UnixNano(), c.now.UnixNano())
	} else {
		c.s.flush.set(0, c.now.UnixNano())
		c.s.items.Clear()
		c.s.cas.Add(1) // memcached uses one up, to tell what came before the flush
	}
	return c.unless(quiet, "OK")
}

func appendFields(list [][]byte, line []byte) [][]byte {
	for len(line) > 0 {
		i := bytes.IndexByte(line, ' ')
		if i < 0 {
			return append(list, line)
		}
		if i > 0 {
			list = append(list, line[:i])
		}
		line = line[i+1:]
	}
	return list
}

func (c *client) say(s string) error {
	_, _ = c.out.WriteString(s)
	_, err := c.out.WriteString("\r\n")
	return err
}

func (c *client) unless(quiet bool, s string) error {
	if quiet {
		return nil
	}
	return c.say(s)
}

func quietly(args [][]byte) bool {
	return len(args) > 0 && string(args[len(args)-1]) == "noreply"
}

func (c *client) bad() error { return c.say("CLIENT_ERROR bad command line format") }

func validKey(k []byte) bool {
	if len(k) == 0 || len(k) > MaxKey {
		return false
	}
	for _, b := range k {
		if b <= ' ' || b == 0x7f {
			return false
		}
	}
	return true
}

func (c *client) retrieve(keys [][]byte, unique, touch bool) error {
	var expiry int64
	if touch {
		if len(keys) == 0 {
			return c.say("ERROR")
		}
		n, err := strconv.ParseInt(string(keys[0]), 10, 64)
		if err != nil {
			return c.say("CLIENT_ERROR invalid exptime argument")
		}
		expiry = c.expiry(n)
		keys = keys[1:]
	}
	if len(keys) == 0 {
		return c.say("ERROR")
	}
	for _, k := range keys {
		if !validKey(k) {
			return c.bad()
		}
		c.s.stats.gets.Add(1)
		l := c.lock(k)
		i, ok := c.get(k)
		if ok {
			c.s.uses.note(k, c.now)
		}
		if ok && touch {
			i.expiry = expiry
			c.put(k, &i)
			c.s.stats.touches.Add(1)
		}
		l.Unlock()
		if !ok {
			c.missed(k)
			continue
		}
		c.s.stats.hits.Add(1)
		c.value(k, &i, unique)
	}
	return c.say("END")
}

// value writes an item as get answers it, without formatting by reflection.
func (c *client) value(k []byte, i *item, unique bool) {
	b := c.out.AvailableBuffer()
	b = append(b, "VALUE "...)
	b = append(b, k...)
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(i.flags), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(len(i.data)), 10)
	if unique {
		b = append(b, ' ')
		b = strconv.AppendUint(b, i.cas, 10)
	}
	b = append(b, "\r\n"...)
	_, _ = c.out.Write(b)
	_, _ = c.out.Write(i.data)
	_, _ = c.out.WriteString("\r\n")
}

// block reads a data block of n bytes. A block that is too large is read and
// thrown away.
func (c *client) block(n int64) (ok bool, err error) {
	if n > MaxValue {
		if _, err := io.CopyN(io.Discard, c.in, n+2); err != nil {
			return false, err
		}
		return false, nil
	}
	// The buffer doubles as the block comes: what a client announces costs
	// nothing before.
	want := int(n) + 2
	c.data = c.data[:0]
	for len(c.data) < want {
		if have := len(c.data); have == cap(c.data) {
			c.data = append(make([]byte, 0, min(want, max(2*have, keptBuffer))), c.data...)
			c.hold()
		}
		from := len(c.data)
		c.data = c.data[:min(want, cap(c.data))]
		if _, err := io.ReadFull(c.in, c.data[from:]); err != nil {
			return false, err
		}
	}
	if string(c.data[n:]) != "\r\n" {
		// What follows cannot be told from commands: skip to the line's end.
		if c.data[n+1] != '\n' {
			if _, err := c.in.ReadSlice('\n'); err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				return false, err
			}
		}
		c.data = c.data[:0]
		return false, errChunk
	}
	c.data = c.data[:n]
	return true, nil
}

var errChunk = errors.New("bad data chunk")

// set is set, add, replace, append, prepend and cas:
// name key flags exptime bytes [unique] [noreply].
func (c *client) set(name string, args [][]byte) error {
	quiet := quietly(args)
	if quiet {
		args = args[:len(args)-1]
	}
	want := 4
	if name == "cas" {
		want = 5
	}
	if len(args) != want {
		return c.say("ERROR")
	}
	flags, err1 := strconv.ParseUint(string(args[1]), 10, 32)
	exptime, err2 := strconv.ParseInt(string(args[2]), 10, 64)
	n, err3 := strconv.ParseInt(string(args[3]), 10, 32)
	var unique uint64
	var err4 error
	if name == "cas" {
		unique, err4 = strconv.ParseUint(string(args[4]), 10, 64)
	}
	valid := validKey(args[0])
	if errors.Join(err1, err2, err3, err4) != nil || n < 0 || !valid && n > MaxValue {
		return c.bad()
	}
	key := bytes.Clone(args[0]) // the block is read over it
	ok, err := c.block(n)
	switch {
	case errors.Is(err, errChunk):
		return c.say("CLIENT_ERROR bad data chunk")
	case err != nil:
		return err
	case !valid:
		return c.bad()
	case !ok:
		c.s.items.Delete(key) // the old value would be wrong by now
		return c.unless(quiet, "SERVER_ERROR object too large for cache")
	}
	c.s.stats.sets.Add(1)
	l := c.lock(key)
	defer l.Unlock()
	i := item{expiry: c.expiry(exptime), flags: uint32(flags), data: c.data}
	if name != "set" {
		old, there := c.get(key)
		switch name {
		case "add":
			if there {
				return c.unless(quiet, "NOT_STORED")
			}
		case "replace":
			if !there {
				return c.unless(quiet, "NOT_STORED")
			}
		case "append", "prepend":
			if !there {
				return c.unless(quiet, "NOT_STORED")
			}
			if len(old.data)+len(c.data) > MaxValue {
				return c.unless(quiet, "SERVER_ERROR object too large for cache")
			}
			i.expiry, i.flags = old.expiry, old.flags
			i.data = joined(old.data, c.data, name == "prepend")
		case "cas":
			if !there {
				return c.unless(quiet, "NOT_FOUND")
			}
			if old.cas != unique {
				return c.unless(quiet, "EXISTS")
			}
		}
	}
	c.store(key, &i)
	return c.unless(quiet, "STORED")
}

func joined(old, data []byte, before bool) []byte {
	if before {
		old, data = data, old
	}
	return append(append(make([]byte, 0, len(old)+len(data)), old...), data...)
}

func (c *client) remove(args [][]byte) error {
	quiet := quietly(args)
	if quiet {
		args = args[:len(args)-1]
	}
	switch {
	case len(args) == 0 || len(args) > 2:
		return c.say("ERROR")
	case len(args) == 2 && string(args[1]) != "0": // which is an old form
		return c.unless(quiet, "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]")
	case !validKey(args[0]):
		return c.bad()
	}
	l := c.lock(args[0])
	_, ok := c.get(args[0])
	c.s.items.Delete(args[0])
	l.Unlock()
	c.s.stats.deletes.Add(1)
	if !ok {
		return c.unless(quiet, "NOT_FOUND")
	}
	return c.unless(quiet, "DELETED")
}

func (c *client) arithmetic(up bool, args [][]byte) error {
	quiet := quietly(args)
	if quiet {
		args = args[:len(args)-1]
	}
	if len(args) != 2 {
		return c.unless(quiet, "ERROR")
	}
	if !validKey(args[0]) {
		return c.bad()
	}
	delta, err := strconv.ParseUint(string(args[1]), 10, 64)
	if err != nil {
		return c.unless(quiet, "CLIENT_ERROR invalid numeric delta argument")
	}
	l := c.lock(args[0])
	defer l.Unlock()
	i, ok := c.get(args[0])
	if !ok {
		return c.unless(quiet, "NOT_FOUND")
	}
	v, err := parseNumber(i.data)
	if err != nil {
		return c.unless(quiet, "CLIENT_ERROR cannot increment or decrement non-numeric value")
	}
	i.data, i.cas = strconv.AppendUint(nil, add(v, delta, up), 10), 0
	c.put(args[0], &i)
	return c.unless(quiet, string(i.data))
}

// parseNumber accepts blanks around a number. So does memcached, which pads a number that has become shorter with
// blanks.
func parseNumber(b []byte) (uint64, error) {
	return strconv.ParseUint(string(bytes.Trim(b, " ")), 10, 64)
}

// add wraps around upwards and stops at zero downwards, as memcached does.
func add(v, delta uint64, up bool) uint64 {
	if up {
		return v + delta
	}
	return v - min(v, delta)
}

func (c *client) touch(args [][]byte) error {
	quiet := quietly(args)
	if quiet {
		args = args[:len(args)-1]
	}
	if len(args) != 2 {
		return c.unless(quiet, "ERROR")
	}
	if !validKey(args[0]) {
		return c.bad()
	}
	n, err := strconv.ParseInt(string(args[1]), 10, 64)
	if err != nil {
		return c.unless(quiet, "CLIENT_ERROR invalid exptime argument")
	}
	l := c.lock(args[0])
	defer l.Unlock()
	i, ok := c.get(args[0])
	if !ok {
		return c.unless(quiet, "NOT_FOUND")
	}
	i.expiry = c.expiry(n)
	c.put(args[0], &i)
	c.s.uses.note(args[0], c.now)
	c.s.stats.touches.Add(1)
	return c.unless(quiet, "TOUCHED")
}

func (c *client) report(args [][]byte) error {
	if len(args) > 0 {
		return c.say("END") // no slabs, items or settings to tell of
	}
	s := c.s
	h := s.cfg.Heap.Stats()
	s.mu.Lock()
	conns := len(s.conns)
	s.mu.Unlock()
	for _, x := range []struct {
		name  string
		value any
	}{
		{"pid", os.Getpid()},
		{"uptime", int64(s.clock().Sub(s.begun).Seconds())},
		{"time", s.clock().Unix()},
		{"version", version},
		{"curr_connections", conns},
		{"total_connections", s.stats.total.Load()},
		{"cmd_get", s.stats.gets.Load()},
		{"cmd_set", s.stats.sets.Load()},
		{"cmd_touch", s.stats.touches.Load()},
		{"cmd_flush", s.stats.flushes.Load()},
		{"get_hits", s.stats.hits.Load()},
		{"get_misses", s.stats.gets.Load() - min(s.stats.hits.Load(), s.stats.gets.Load())},
		{"delete_hits", s.stats.deletes.Load()},
		{"bytes", h.Live},
		{"curr_items", h.Objects},
		{"evictions", h.EvictedObjects + h.LostObjects},
		{"limit_maxbytes", min(h.Budget, math.MaxInt64)},
	} {
		if _, err := fmt.Fprintf(c.out, "STAT %s %v\r\n", x.name, x.value); err != nil {
			return err
		}
	}
	return c.say("END")
}
