package simcrash

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// contents is the plain map: what a client has stored, by key. Values in it never change.
type contents map[string]value

type value struct {
	s      string
	fields map[string]string // of a hash; else nil
	expire int64             // milliseconds since 1970; 0 for never
}

// operation is what a client does at once: a command, or a transaction.
type operation struct {
	commands [][]string
	apply    func(m contents)
}

// author makes up what a client does. Its keys begin with its name.
type author struct {
	name string
	r    *rand.Rand
	m    contents // after all that it has made up
	n    int      // operations
	solo bool     // there is no other client
}

func newAuthor(name string, seed uint64, m contents, solo bool) *author {
	return &author{name: name, r: rand.New(rand.NewPCG(11, seed)), m: m, solo: solo}
}

// How many keys there are of each kind.
const (
	stringKeys, counterKeys, hashKeys, passingKeys = 90, 4, 6, 6
	bigKeys, bigHashKeys                           = 3, 2
)

func (a *author) key(kind string, n int) string { return fmt.Sprint(a.name, kind, a.r.IntN(n)) }

// text is n bytes that nobody else has stored.
func (a *author) text(n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<%s%d>", a.name, a.n)
	for b.Len() < n {
		b.WriteString(strconv.FormatUint(a.r.Uint64(), 36))
	}
	return b.String()[:max(n, 1)]
}

func (a *author) size() int {
	switch a.r.IntN(10) {
	case 0:
		return 4<<10 + a.r.IntN(12<<10)
	case 1, 2:
		return 1 + a.r.IntN(20)
	}
	return 20 + a.r.IntN(2<<10)
}

func (a *author) later() int64 {
	return time.Now().Add(time.Duration(1+a.r.IntN(1000)) * time.Hour).UnixMilli()
}

// next makes up an operation.
func (a *author) next() operation {
	a.n++
	var o operation
	switch x := a.r.IntN(100); {
	case x < 60:
		o = a.simple()
	case x < 72:
		o = a.transaction()
	case x < 80:
		o = a.hash()
	case x < 89:
		o = a.bigHash()
	case x < 92:
		k, s := a.key("big", bigKeys), a.text(70<<10+a.r.IntN(200<<10))
		o = operation{[][]string{{"SET", k, s}}, func(m contents) { m[k] = value{s: s} }}
	case x < 94:
		o = a.rename()
	case x == 94 && a.solo && a.r.IntN(2) == 0:
		o = operation{[][]string{{"FLUSHALL"}}, func(m contents) { clear(m) }}
	case x < 98:
		o = operation{[][]string{{"SAVE"}}, func(contents) {}}
	default:
		// Nobody asks for it before it has expired.
		k, s := a.key("passing", passingKeys), a.text(a.size())
		at := time.Now().Add(time.Duration(a.r.IntN(20)) * time.Millisecond).UnixMilli()
		o = operation{[][]string{{"SET", k, s, "PXAT", fmt.Sprint(at)}}, func(m contents) { m[k] = value{s: s, expire: at} }}
	}
	o.apply(a.m)
	return o
}

// simple is an operation that is one command about strings.
func (a *author) simple() operation {
	k := a.key("s", stringKeys)
	was, there := a.m[k]
	switch x := a.r.IntN(60); {
	case x < 30:
		s := a.text(a.size())
		return operation{[][]string{{"SET", k, s}}, func(m contents) { m[k] = value{s: s} }}
	case x < 36:
		keys := []string{k, a.key("s", stringKeys), a.key("big", bigKeys)}[:1+a.r.IntN(3)]
		return operation{[][]string{append([]string{"DEL"}, keys...)}, func(m contents) {
			for _, k := range keys {
				delete(m, k)
			}
		}}
	case x < 44:
		args, set := []string{"MSET"}, map[string]string{}
		for range 2 + a.r.IntN(6) {
			k, s := a.key("s", stringKeys), a.text(a.size())
			args, set[k] = append(args, k, s), s
		}
		return operation{[][]string{args}, func(m contents) {
			for k, s := range set {
				m[k] = value{s: s}
			}
		}}
	case x < 48:
		c := a.key("count", counterKeys)
		return operation{[][]string{{"INCR", c}}, func(m contents) {
			n, _ := strconv.Atoi(m[c].s)
			m[c] = value{s: strconv.Itoa(n + 1)}
		}}
	case x < 52 && len(was.s) < 20<<10:
		s := a.text(1 + a.r.IntN(200))
		return operation{[][]string{{"APPEND", k, s}}, func(m contents) {
			v := m[k]
			v.s += s
			m[k] = v
		}}
	case x < 56:
		s, at := a.text(a.size()), a.later()
		return operation{[][]string{{"SET", k, s, "PXAT", fmt.Sprint(at)}}, func(m contents) { m[k] = value{s: s, expire: at} }}
	case there:
		at := a.later()
		command := []string{"PEXPIREAT", k, fmt.Sprint(at)}
		if was.expire != 0 {
			command, at = []string{"PERSIST", k}, 0
		}
		return operation{[][]string{command}, func(m contents) {
			v := m[k]
			v.expire = at
			m[k] = v
		}}
	}
	return operation{[][]string{{"DEL", k}}, func(m contents) { delete(m, k) }}
}

// transaction is several operations that count together.
func (a *author) transaction() operation {
	o := operation{commands: [][]string{{"MULTI"}}}
	var all []func(m contents)
	m := maps.Clone(a.m)
	now := a.m
	a.m = m // what comes later in the transaction depends on what comes earlier
	for range 2 + a.r.IntN(5) {
		var one operation
		switch a.r.IntN(6) {
		case 0:
			one = a.hash()
		case 1:
			one = a.bigHash()
		default:
			one = a.simple()
		}
		one.apply(m)
		o.commands, all = append(o.commands, one.commands...), append(all, one.apply)
	}
	a.m = now
	o.commands = append(o.commands, []string{"EXEC"})
	o.apply = func(m contents) {
		for _, f := range all {
			f(m)
		}
	}
	return o
}

// setFields is an operation on a hash.
func setFields(k string, set map[string]string, remove []string) operation {
	var o operation
	if len(set) > 0 {
		args := []string{"HSET", k}
		for _, f := range slices.Sorted(maps.Keys(set)) {
			args = append(args, f, set[f])
		}
		o.commands = append(o.commands, args)
	} else {
		o.commands = append(o.commands, append([]string{"HDEL", k}, remove...))
	}
	o.apply = func(m contents) {
		v := m[k]
		fields := maps.Clone(v.fields)
		if fields == nil {
			fields = map[string]string{}
		}
		maps.Copy(fields, set)
		for _, f := range remove {
			delete(fields, f)
		}
		v.fields = fields
		if m[k] = v; len(fields) == 0 {
			delete(m, k)
		}
	}
	return o
}

func (a *author) hash() operation {
	k := a.key("hash", hashKeys)
	if a.r.IntN(4) == 0 {
		return setFields(k, nil, []string{fmt.Sprint("f", a.r.IntN(20)), fmt.Sprint("f", a.r.IntN(20))})
	}
	set := map[string]string{}
	for range 1 + a.r.IntN(5) {
		set[fmt.Sprint("f", a.r.IntN(20))] = a.text(a.r.IntN(100))
	}
	return setFields(k, set, nil)
}

// bigHash is about a hash that lies in blocks of its own when it has many fields.
func (a *author) bigHash() operation {
	k := a.key("table", bigHashKeys)
	n := 1 + a.r.IntN(10)
	switch v, there := a.m[k]; {
	case !there:
		n = 700 // a small hash has 512
	case a.r.IntN(4) == 0:
		fields := slices.Sorted(maps.Keys(v.fields))
		if a.r.IntN(8) > 0 {
			fields = fields[:min(len(fields), 1+a.r.IntN(20))]
		}
		return setFields(k, nil, fields)
	}
	set := map[string]string{}
	for range n {
		set[fmt.Sprint("field", a.r.IntN(900))] = a.text(a.r.IntN(30))
	}
	return setFields(k, set, nil)
}

// rename moves or copies something to another key of its kind.
func (a *author) rename() operation {
	kind, n := "s", stringKeys
	switch a.r.IntN(3) {
	case 0:
		kind, n = "hash", hashKeys
	case 1:
		kind, n = "table", bigHashKeys
	}
	from, to := a.key(kind, n), a.key(kind, n)
	if _, there := a.m[from]; !there || from == to {
		return a.simple()
	}
	if a.r.IntN(2) == 0 {
		return operation{[][]string{{"COPY", from, to, "REPLACE"}}, func(m contents) { m[to] = m[from] }}
	}
	return operation{[][]string{{"RENAME", from, to}}, func(m contents) {
		m[to] = m[from]
		delete(m, from)
	}}
}
