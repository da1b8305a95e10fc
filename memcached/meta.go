package memcached

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
)

// request is a meta command: key, flags of one letter each, some with a value.
type request struct {
	name  string
	raw   []byte // the key as the client wrote it
	key   []byte // decoded, if it is base64
	flags []flag
}

type flag struct {
	letter byte
	arg    string
}

func (r *request) flag(letter byte) (string, bool) {
	for _, f := range r.flags {
		if f.letter == letter {
			return f.arg, true
		}
	}
	return "", false
}

func (r *request) has(letter byte) bool { _, ok := r.flag(letter); return ok }

var errToken = errors.New("CLIENT_ERROR bad token in command line format")

// number is a flag's value as a number.
func (r *request) number(letter byte) (v int64, ok bool, err error) {
	s, ok := r.flag(letter)
	if !ok {
		return 0, false, nil
	}
	v, err = strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, true, errToken
	}
	return v, true, nil
}

// allowed are the flags that each command knows.
var allowed = map[string]string{
	"mg": "bcfhklqstvEMNORTO",
	"ms": "bcCEFIkOqsTMS",
	"md": "bCEIkOqTx",
	"ma": "bCEkNJDTMOqtcv",
	"me": "bkq",
}

func (c *client) parseMeta(name string, args [][]byte) (*request, error) {
	if len(args) == 0 {
		return nil, errors.New("CLIENT_ERROR bad command line format")
	}
	r := &request{name: name, raw: bytes.Clone(args[0])}
	for _, a := range args[1:] {
		f := flag{a[0], string(a[1:])}
		if name == "ms" && f.letter == 'S' {
			continue // the old way to give the length
		}
		if !bytes.Contains([]byte(allowed[name]), a[:1]) {
			return nil, errors.New("CLIENT_ERROR invalid flag")
		}
		if r.has(f.letter) {
			return nil, errors.New("CLIENT_ERROR duplicate flag")
		}
		r.flags = append(r.flags, f)
	}
	r.key = r.raw
	if r.has('b') {
		k, err := base64.StdEncoding.DecodeString(string(r.raw))
		if err != nil || len(k) == 0 || len(k) > MaxKey {
			return nil, errors.New("CLIENT_ERROR error decoding key")
		}
		r.key = k
	} else if !validKey(r.key) {
		return nil, errors.New("CLIENT_ERROR bad command line format")
	}
	return r, nil
}

// answer writes a status and the flags that the client wants to see.
func (c *client) answer(r *request, status string, i *item, extra string) error {
	_, _ = c.out.WriteString(status)
	for _, f := range r.flags {
		switch f.letter {
		case 'O':
			fmt.Fprintf(c.out, " O%s", f.arg)
		case 'k':
			fmt.Fprintf(c.out, " k%s", r.raw)
		case 'b':
			_, _ = c.out.WriteString(" b")
		}
		if i == nil {
			continue
		}
		switch f.letter {
		case 'c':
			fmt.Fprintf(c.out, " c%d", i.cas)
		case 'f':
			fmt.Fprintf(c.out, " f%d", i.flags)
		case 's':
			fmt.Fprintf(c.out, " s%d", len(i.data))
		case 't':
			left := int64(-1)
			if i.expiry != 0 {
				left = max(i.expiry-c.s.clock().Unix(), 0)
			}
			fmt.Fprintf(c.out, " t%d", left)
		case 'h':
			_, _ = c.out.WriteString(" h1") // read before: nothing else is counted
		case 'l':
			_, _ = c.out.WriteString(" l0")
		}
	}
	return c.say(extra)
}

func (c *client) meta(name string, args [][]byte) error {
	if name == "mn" {
		return c.say("MN")
	}
	if name == "ms" {
		return c.metaSet(args)
	}
	r, err := c.parseMeta(name, args)
	if err != nil {
		return c.say(err.Error())
	}
	l := c.s.lock(r.key)
	l.Lock()
	defer l.Unlock()
	switch name {
	case "mg":
		err = c.metaGet(r)
	case "md":
		err = c.metaDelete(r)
	case "ma":
		err = c.metaArithmetic(r)
	case "me":
		i, ok := c.get(r.key)
		if !ok {
			return c.unless(r.has('q'), "EN")
		}
		return c.say(fmt.Sprintf("ME %s exp=%d la=0 cas=%d fetch=yes cls=1 size=%d", r.raw, i.expiry, i.cas, len(i.data)))
	}
	if errors.Is(err, errToken) {
		return c.say(err.Error())
	}
	return err
}

// metaGet: a miss with N is filled by an empty item that the client who got
// the W flag is to replace; R asks for the same when the item is about to
// expire.
func (c *client) metaGet(r *request) error {
	c.s.stats.gets.Add(1)
	i, ok := c.get(r.key)
	extra := ""
	vivify, wantVivify, err := r.number('N')
	if err != nil {
		return err
	}
	ttl, wantTouch, err := r.number('T')
	if err != nil {
		return err
	}
	recache, wantRecache, err := r.number('R')
	if err != nil {
		return err
	}
	switch {
	case !ok && wantVivify:
		i = item{expiry: c.s.expiry(vivify)}
		c.put(r.key, &i)
		ok, extra = true, " W"
	case !ok:
		if r.has('q') {
			return nil
		}
		return c.say("EN")
	default:
		c.s.stats.hits.Add(1)
		if wantTouch {
			i.expiry = c.s.expiry(ttl)
			c.put(r.key, &i)
		}
		if i.stale || wantRecache && i.expiry != 0 && i.expiry-c.s.clock().Unix() < recache {
			extra = " W"
			if i.stale {
				extra += " X"
			}
		}
	}
	if !r.has('v') {
		return c.answer(r, "HD", &i, extra)
	}
	if err := c.answer(r, "VA "+strconv.Itoa(len(i.data)), &i, extra); err != nil {
		return err
	}
	_, _ = c.out.Write(i.data)
	return c.say("")
}

// metaSet: ms key datalen flags*.
func (c *client) metaSet(args [][]byte) error {
	if len(args) < 2 {
		return c.bad()
	}
	n, err := strconv.ParseInt(string(args[1]), 10, 32)
	if err != nil || n < 0 {
		return c.say("CLIENT_ERROR bad data chunk")
	}
	r, bad := c.parseMeta("ms", append([][]byte{args[0]}, args[2:]...))
	if r != nil { // flags point into the line, which the block is read over
		for i := range r.flags {
			r.flags[i].arg = string([]byte(r.flags[i].arg))
		}
	}
	ok, err := c.block(n)
	switch {
	case errors.Is(err, errChunk):
		return c.say("CLIENT_ERROR bad data chunk")
	case err != nil:
		return err
	case bad != nil:
		return c.say(bad.Error())
	case !ok:
		c.s.items.Delete(r.key)
		return c.say("SERVER_ERROR object too large for cache")
	}
	c.s.stats.sets.Add(1)
	l := c.s.lock(r.key)
	l.Lock()
	defer l.Unlock()
	status, i, err := c.metaStore(r)
	if errors.Is(err, errToken) {
		return c.say(err.Error())
	}
	if status == "HD" && r.has('q') {
		return nil
	}
	return c.answer(r, status, i, "")
}

func (c *client) metaStore(r *request) (status string, _ *item, err error) {
	flags, _, err1 := r.number('F')
	ttl, _, err2 := r.number('T')
	unique, compare, err3 := r.number('C')
	explicit, _, err4 := r.number('E')
	if err := errors.Join(err1, err2, err3, err4); err != nil || flags < 0 || flags > 1<<32-1 {
		return "", nil, errToken
	}
	i := &item{expiry: c.s.expiry(ttl), flags: uint32(flags), cas: uint64(explicit), data: c.data}
	old, there := c.get(r.key)
	mode, _ := r.flag('M')
	if compare {
		switch {
		case !there:
			return "NF", nil, nil
		case old.cas == uint64(unique):
		case r.has('I') && uint64(unique) < old.cas:
			i.stale = true // the client's copy is older, and better than nothing
		default:
			return "EX", nil, nil
		}
	}
	switch mode {
	case "", "S", "s", "set":
	case "E", "e", "add":
		if there {
			return "NS", nil, nil
		}
	case "R", "r", "replace":
		if !there {
			return "NS", nil, nil
		}
	case "A", "a", "append", "P", "p", "prepend":
		if !there {
			return "NS", nil, nil
		}
		if len(old.data)+len(i.data) > MaxValue {
			return "NS", nil, nil
		}
		i.flags, i.expiry = old.flags, old.expiry
		i.data = joined(old.data, i.data, mode[0] == 'P' || mode[0] == 'p')
	default:
		return "", nil, errToken
	}
	c.put(r.key, i)
	return "HD", i, nil
}

func (c *client) metaDelete(r *request) error {
	unique, compare, err1 := r.number('C')
	ttl, wantTTL, err2 := r.number('T')
	explicit, _, err3 := r.number('E')
	if errors.Join(err1, err2, err3) != nil {
		return errToken
	}
	c.s.stats.deletes.Add(1)
	i, ok := c.get(r.key)
	status := "HD"
	switch {
	case !ok:
		status = "NF"
	case compare && i.cas != uint64(unique):
		status = "EX"
	case r.has('I') || r.has('x'):
		i.stale = r.has('I')
		if r.has('x') {
			i.data, i.flags = nil, 0
		}
		if wantTTL {
			i.expiry = c.s.expiry(ttl)
		}
		i.cas = uint64(explicit)
		c.put(r.key, &i)
	default:
		c.s.items.Delete(r.key)
	}
	if r.has('q') && status != "EX" {
		return nil
	}
	return c.answer(r, status, nil, "")
}

func (c *client) metaArithmetic(r *request) error {
	vivify, wantVivify, err1 := r.number('N')
	ttl, wantTTL, err2 := r.number('T')
	unique, compare, err3 := r.number('C')
	explicit, _, err4 := r.number('E')
	if errors.Join(err1, err2, err3, err4) != nil {
		return errToken
	}
	delta, initial := uint64(1), uint64(0)
	for _, x := range []struct {
		letter byte
		p      *uint64
	}{{'D', &delta}, {'J', &initial}} {
		if s, ok := r.flag(x.letter); ok {
			v, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				return errToken
			}
			*x.p = v
		}
	}
	up := true
	switch mode, _ := r.flag('M'); mode {
	case "", "I", "i", "+", "incr":
	case "D", "d", "-", "decr":
		up = false
	default:
		return errToken
	}
	i, ok := c.get(r.key)
	switch {
	case !ok && !wantVivify:
		return c.unless(r.has('q'), "NF")
	case !ok:
		i = item{expiry: c.s.expiry(vivify), data: strconv.AppendUint(nil, initial, 10)}
	case compare && i.cas != uint64(unique):
		return c.answer(r, "EX", nil, "")
	default:
		v, err := strconv.ParseUint(string(bytes.TrimRight(i.data, " ")), 10, 64)
		if err != nil {
			return c.say("CLIENT_ERROR cannot increment or decrement non-numeric value")
		}
		i.data = strconv.AppendUint(nil, add(v, delta, up), 10)
		if wantTTL {
			i.expiry = c.s.expiry(ttl)
		}
	}
	i.cas = uint64(explicit)
	c.put(r.key, &i)
	if r.has('q') {
		return nil
	}
	if !r.has('v') {
		return c.answer(r, "HD", &i, "")
	}
	if err := c.answer(r, "VA "+strconv.Itoa(len(i.data)), &i, ""); err != nil {
		return err
	}
	return c.say(string(i.data))
}
