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
	flags []metaFlag
}

type metaFlag struct {
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

var (
	errToken  = errors.New("CLIENT_ERROR bad token in command line format")
	errFlag   = errors.New("CLIENT_ERROR invalid flag")
	errTwice  = errors.New("CLIENT_ERROR duplicate flag")
	errOpaque = errors.New("CLIENT_ERROR opaque token too long")
	errLine   = errors.New("CLIENT_ERROR bad command line format")
	errKey    = errors.New("CLIENT_ERROR error decoding key")
)

// maxOpaque bounds what O gives back.
const maxOpaque = 32

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

// unique is a flag's value as an item's unique number.
func (r *request) unique(letter byte) (v uint64, ok bool, err error) {
	s, ok := r.flag(letter)
	if !ok {
		return 0, false, nil
	}
	if v, err = strconv.ParseUint(s, 10, 64); err != nil {
		return 0, true, errToken
	}
	return v, true, nil
}

// allowed are the flags that each command knows. P and L are for proxies.
var allowed = map[string]string{
	"mg": "bcfhklqstuvEMNORTOPL",
	"ms": "bcCEFIkNOqsTMSPL",
	"md": "bCEIkOqTxPL",
	"ma": "bCEkNJDTMOqtcvPL",
	"me": "bkq",
}

// parseMeta parses a command's key and flags, which it copies.
func (c *client) parseMeta(name string, args [][]byte) (*request, error) {
	if len(args) == 0 {
		return nil, errors.New("ERROR")
	}
	r := &request{name: name, raw: bytes.Clone(args[0])}
	for _, a := range args[1:] {
		f := metaFlag{a[0], string(a[1:])}
		if name == "ms" && f.letter == 'S' {
			continue // the old way to give the length
		}
		switch {
		case !bytes.Contains([]byte(allowed[name]), a[:1]):
			return nil, errFlag
		case r.has(f.letter):
			return nil, errTwice
		case f.letter == 'O' && len(f.arg) > maxOpaque:
			return nil, errOpaque
		}
		r.flags = append(r.flags, f)
	}
	r.key = r.raw
	if r.has('b') {
		k, err := base64.StdEncoding.DecodeString(string(r.raw))
		if err != nil || len(k) == 0 || len(k) > MaxKey {
			return nil, errKey
		}
		r.key = k
	} else if !validKey(r.key) {
		return nil, errLine
	}
	return r, nil
}

// answer writes a status and the flags that the client wants to see: i is the
// item, or nil if there is none.
func (c *client) answer(r *request, status string, i *item) error {
	_, _ = c.out.WriteString(status)
	for _, f := range r.flags {
		c.flag(r, f, i)
	}
	return c.say("")
}

// flag writes what a flag asks for.
func (c *client) flag(r *request, f metaFlag, i *item) {
	switch f.letter {
	case 'O':
		fmt.Fprintf(c.out, " O%s", f.arg)
	case 'k':
		if r.has('b') {
			fmt.Fprintf(c.out, " k%s b", base64.StdEncoding.EncodeToString(r.key))
		} else {
			fmt.Fprintf(c.out, " k%s", r.key)
		}
	case 'c':
		if i != nil {
			fmt.Fprintf(c.out, " c%d", i.cas)
		} else if r.name == "ms" {
			_, _ = c.out.WriteString(" c0")
		}
	}
	if i == nil {
		return
	}
	switch f.letter {
	case 'f':
		fmt.Fprintf(c.out, " f%d", i.flags)
	case 's':
		fmt.Fprintf(c.out, " s%d", len(i.data))
	case 't':
		fmt.Fprintf(c.out, " t%d", c.ttl(i))
	case 'h':
		_, used := c.idle(r.key, i)
		hit := 0
		if used {
			hit = 1
		}
		fmt.Fprintf(c.out, " h%d", hit)
	case 'l':
		seconds, _ := c.idle(r.key, i)
		fmt.Fprintf(c.out, " l%d", seconds)
	}
}

// ttl is how many seconds an item has left, -1 for ever.
func (c *client) ttl(i *item) int64 {
	if i.expiry == 0 {
		return -1
	}
	return max(i.expiry-c.now.Unix(), 0)
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
		return c.refuse(name, err)
	}
	var value []byte
	send := false
	l := c.lock(r.key)
	switch name {
	case "mg":
		value, send, err = c.metaGet(r)
	case "md":
		err = c.metaDelete(r)
	case "ma":
		err = c.metaArithmetic(r)
	case "me":
		err = c.metaDebug(r)
	}
	l.Unlock()
	if send {
		_, _ = c.out.Write(value)
		err = c.say("")
	}
	if errors.Is(err, errToken) {
		return c.refuse(name, err)
	}
	return err
}

// refuse says what is wrong with a command. For some faults of md and ma it does not say which, as memcached does
// not.
func (c *client) refuse(name string, err error) error {
	if (name == "md" || name == "ma") && (errors.Is(err, errToken) || errors.Is(err, errFlag) || errors.Is(err, errTwice)) {
		return c.say("CLIENT_ERROR invalid or duplicate flag")
	}
	return c.say(err.Error())
}

func (c *client) metaDebug(r *request) error {
	i, ok := c.get(r.key)
	if !ok {
		return c.unless(r.has('q'), "EN")
	}
	idle, used := c.idle(r.key, &i)
	fetched := "no"
	if used {
		fetched = "yes"
	}
	return c.say(fmt.Sprintf("ME %s exp=%d la=%d cas=%d fetch=%s cls=1 size=%d", r.raw, c.ttl(&i), idle, i.cas, fetched, itemHeader+len(r.key)+len(i.data)))
}

// metaGet: with the flag N, a miss stores an empty item, which the client that is told W is to replace. With R, an
// item that is about to expire is to be replaced likewise; a stale item always is. One client wins and is told W; the
// others are told Z. Flags take effect in the order in which they come. If send is true, the value is to be
// sent behind the answer, when the key is no longer locked.
func (c *client) metaGet(r *request) (value []byte, send bool, err error) {
	c.s.stats.gets.Add(1)
	i, ok := c.get(r.key)
	vivify, create, err1 := r.number('N')
	ttl, _, err2 := r.number('T')
	recache, _, err3 := r.number('R')
	explicit, _, err4 := r.unique('E')
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return nil, false, errToken
	}
	created := !ok && create
	switch {
	case created:
		i = item{cas: explicit}
		c.store(r.key, &i)
	case !ok:
		c.missed(r.key)
		if r.has('q') {
			return nil, false, nil
		}
		return nil, false, c.answer(r, "EN", nil)
	default:
		c.s.stats.hits.Add(1)
	}
	if r.has('v') {
		_, _ = c.out.WriteString("VA " + strconv.Itoa(len(i.data)))
	} else {
		_, _ = c.out.WriteString("HD")
	}
	before, won := i, false
	for _, f := range r.flags {
		switch f.letter {
		case 'T':
			i.expiry = c.expiry(ttl)
			c.s.stats.touches.Add(1)
		case 'N':
			if created {
				i.expiry, won = c.expiry(vivify), true
			}
		case 'R':
			won = won || !i.won && !created && i.expiry != 0 && i.expiry < c.now.Unix()+recache
		default:
			c.flag(r, f, &i)
		}
	}
	if i.won {
		_, _ = c.out.WriteString(" Z")
	}
	if i.stale {
		_, _ = c.out.WriteString(" X")
		won = won || !i.won
	}
	if won {
		_, _ = c.out.WriteString(" W")
		i.won = true
		c.missed(r.key)
	}
	if i.won != before.won || i.expiry != before.expiry {
		c.put(r.key, &i)
	}
	if !r.has('u') {
		c.s.uses.note(r.key, c.now)
	}
	return i.data, r.has('v'), c.say("")
}

// metaSet: ms key datalen flags*.
func (c *client) metaSet(args [][]byte) error {
	if len(args) == 0 {
		return c.say("ERROR")
	}
	if len(args) < 2 {
		return c.bad()
	}
	n, err := strconv.ParseInt(string(args[1]), 10, 32)
	if err != nil || n < 0 {
		return c.bad()
	}
	r, bad := c.parseMeta("ms", append([][]byte{args[0]}, args[2:]...))
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
	l := c.lock(r.key)
	defer l.Unlock()
	status, i, err := c.metaStore(r)
	if err != nil {
		return c.say(err.Error())
	}
	if status == "HD" && r.has('q') {
		return nil
	}
	return c.answer(r, status, i)
}

var errStoreMode = errors.New("CLIENT_ERROR invalid mode for ms M token")

// mode is the letter of the M flag, in upper case; standard if there is none.
func (r *request) mode(standard byte) (byte, error) {
	s, ok := r.flag('M')
	switch {
	case !ok:
		return standard, nil
	case len(s) != 1:
		return 0, errors.New("CLIENT_ERROR incorrect length for M token")
	}
	return bytes.ToUpper([]byte(s))[0], nil
}

// metaStore does what ms asks for. A set with a unique number to compare is a cas. Append and prepend compare the
// number, too. Add does not: there is no item to compare with.
func (c *client) metaStore(r *request) (status string, _ *item, err error) {
	flags, _, err1 := r.number('F')
	ttl, _, err2 := r.number('T')
	unique, compare, err3 := r.unique('C')
	explicit, _, err4 := r.unique('E')
	vivify, wantVivify, err5 := r.number('N')
	switch {
	case errors.Join(err1, err2, err3, err4, err5) != nil:
		return "", nil, errToken
	case flags < 0 || flags > 1<<32-1:
		return "", nil, errLine
	}
	mode, err := r.mode('S')
	if err != nil {
		return "", nil, err
	}
	i := &item{expiry: c.expiry(ttl), flags: uint32(flags), cas: explicit, data: c.data}
	old, there := c.get(r.key)
	switch mode {
	case 'S', 'R':
		switch {
		case !compare && mode == 'R' && !there:
			return "NS", nil, nil
		case !compare:
		case !there:
			return "NF", nil, nil
		case old.cas == unique:
		case r.has('I') && unique < old.cas:
			// The client's copy is older, and better than nothing.
			i.stale, i.won, i.expiry = true, old.won, old.expiry
		default:
			return "EX", nil, nil
		}
	case 'E':
		if there {
			return "NS", nil, nil
		}
	case 'A', 'P':
		switch {
		case !there && wantVivify:
			i.expiry = c.expiry(vivify)
		case !there:
			return "NS", nil, nil
		case compare && old.cas != unique:
			return "EX", nil, nil
		case len(old.data)+len(i.data) > MaxValue:
			return "", nil, errors.New("SERVER_ERROR object too large for cache")
		default:
			i.flags, i.expiry = old.flags, old.expiry
			i.data = joined(old.data, i.data, mode == 'P')
		}
	default:
		return "", nil, errStoreMode
	}
	c.store(r.key, i)
	return "HD", i, nil
}

func (c *client) metaDelete(r *request) error {
	unique, compare, err1 := r.unique('C')
	ttl, wantTTL, err2 := r.number('T')
	explicit, _, err3 := r.unique('E')
	if errors.Join(err1, err2, err3) != nil {
		return errToken
	}
	c.s.stats.deletes.Add(1)
	i, ok := c.get(r.key)
	status := "HD"
	switch {
	case !ok:
		status = "NF"
	case compare && i.cas != unique:
		status = "EX"
	case r.has('I') || r.has('x'):
		if r.has('I') {
			i.stale, i.won = true, false // whoever comes next is to recache it
		}
		if r.has('x') {
			i.data, i.flags = nil, 0
		}
		if wantTTL {
			i.expiry = c.expiry(ttl)
		}
		i.cas = explicit
		c.put(r.key, &i)
	default:
		c.s.items.Delete(r.key)
	}
	if r.has('q') && status == "HD" {
		return nil
	}
	return c.answer(r, status, nil)
}

func (c *client) metaArithmetic(r *request) error {
	vivify, wantVivify, err1 := r.number('N')
	ttl, wantTTL, err2 := r.number('T')
	unique, compare, err3 := r.unique('C')
	explicit, _, err4 := r.unique('E')
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
	mode, err := r.mode('I')
	if err != nil {
		return errToken
	}
	up := mode == 'I' || mode == '+'
	if !up && mode != 'D' && mode != '-' {
		return c.say("CLIENT_ERROR invalid mode for ma M token")
	}
	i, ok := c.get(r.key)
	switch {
	case !ok && !wantVivify:
		return c.answer(r, "NF", nil)
	case !ok:
		i = item{expiry: c.expiry(vivify), cas: explicit, data: strconv.AppendUint(nil, initial, 10)}
		c.store(r.key, &i)
	case compare && i.cas != unique && len(i.data) > 0: // memcached looks for a number first, but not closely
		return c.answer(r, "EX", nil)
	default:
		v, err := parseNumber(i.data)
		if err != nil {
			return c.say("CLIENT_ERROR cannot increment or decrement non-numeric value")
		}
		i.data = strconv.AppendUint(nil, add(v, delta, up), 10)
		if wantTTL {
			i.expiry = c.expiry(ttl)
		}
		i.cas = explicit
		c.put(r.key, &i)
	}
	if r.has('q') {
		return nil
	}
	if !r.has('v') {
		return c.answer(r, "HD", &i)
	}
	if err := c.answer(r, "VA "+strconv.Itoa(len(i.data)), &i); err != nil {
		return err
	}
	return c.say(string(i.data))
}
