package origin

import (
	"bytes"
	"strings"

	"polder/resp/proto"
)

// A rule says what must be known of a command to pass it on.
type rule struct {
	op op
	// The keys are the arguments from first to last (counted from the end if negative), in steps of step. first is 0
	// if it is not known which keys the command concerns.
	first, last, step int8
}

// op is what a command does to the connection that it comes from.
type op uint8

const (
	opNone     op = iota // nothing
	opQuiet              // nothing, and it concerns no values
	opGet                // answered from the cache
	opMGet               // likewise
	opExists             // this and the next two are answered from the cache if their values are there
	opStrLen             //
	opGetRange           //
	opSelect             // this and the following, up to opUnwatch, change what later commands mean
	opHello              //
	opAuth               //
	opMulti              //
	opEnd                // EXEC and DISCARD
	opWatch              //
	opUnwatch            //
	opSwap               // SWAPDB changes values and invalidates none
	opListen             // replies no longer match commands, but no value is changed
	opRaw                // replies no longer match commands
	opRefused
)

var rules = func() map[string]rule {
	m := map[string]rule{}
	add := func(r rule, names string) {
		for name := range strings.FieldsSeq(names) {
			m[name] = r
		}
	}
	add(rule{op: opGet, first: 1, last: 1, step: 1}, "get")
	add(rule{op: opMGet, first: 1, last: -1, step: 1}, "mget")
	add(rule{op: opExists, first: 1, last: -1, step: 1}, "exists")
	add(rule{op: opStrLen, first: 1, last: 1, step: 1}, "strlen")
	add(rule{op: opGetRange, first: 1, last: 1, step: 1}, "getrange substr")
	add(rule{op: opQuiet}, "ping echo time info command client quit publish spublish")
	add(rule{op: opSelect}, "select")
	add(rule{op: opHello}, "hello")
	add(rule{op: opAuth}, "auth")
	add(rule{op: opMulti}, "multi")
	add(rule{op: opEnd}, "exec discard")
	add(rule{op: opWatch}, "watch")
	add(rule{op: opUnwatch}, "unwatch")
	add(rule{op: opSwap}, "swapdb")
	add(rule{op: opListen}, "subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe monitor")
	add(rule{op: opRaw}, "reset")
	add(rule{op: opRefused}, "sync psync replconf")
	add(rule{first: 1, last: 1, step: 1}, `
		set setex psetex setnx getset getdel getex append incr decr incrby decrby incrbyfloat setrange
		setbit getbit bitcount bitpos bitfield bitfield_ro
		expire pexpire expireat pexpireat persist ttl pttl expiretime pexpiretime type dump restore
		hget hset hsetnx hmset hmget hgetall hdel hexists hlen hstrlen hkeys hvals hincrby hincrbyfloat hrandfield hscan
		lpush lpushx rpush rpushx lpop rpop llen lindex linsert lrange lrem lset ltrim lpos
		sadd srem scard sismember smismember smembers spop srandmember sscan
		zadd zrem zcard zcount zscore zmscore zincrby zrange zrangebyscore zrangebylex zrevrange zrevrangebyscore
		zrevrangebylex zrank zrevrank zlexcount zpopmin zpopmax zrandmember zremrangebyrank zremrangebyscore zremrangebylex zscan
		xadd xlen xrange xrevrange xdel xtrim xack pfadd geoadd geopos geodist geohash geosearch`)
	add(rule{first: 1, last: -1, step: 1}, "del unlink touch pfcount pfmerge sunion sinter sdiff sunionstore sinterstore sdiffstore")
	add(rule{first: 1, last: -1, step: 2}, "mset msetnx")
	add(rule{first: 1, last: 2, step: 1}, "rename renamenx copy smove rpoplpush lmove zrangestore geosearchstore")
	add(rule{first: 1, last: -2, step: 1}, "blpop brpop bzpopmin bzpopmax")
	return m
}()

// ruleOf returns what is known of a command.
func ruleOf(args [][]byte) rule {
	var name [16]byte
	if len(args[0]) > len(name) {
		return rule{}
	}
	r := rules[string(lower(name[:0], args[0]))]
	if r.op == opQuiet && len(args) > 1 && bytes.EqualFold(args[0], []byte("client")) {
		for _, own := range []string{"tracking", "caching", "reply"} {
			if bytes.EqualFold(args[1], []byte(own)) {
				return rule{op: opRaw}
			}
		}
	}
	return r
}

func lower(dst, b []byte) []byte {
	for _, c := range b {
		if c-'A' < 26 {
			c |= 0x20
		}
		dst = append(dst, c)
	}
	return dst
}

// maxChecked is how many keys of a command are looked for in the cache. The reply to a command with more keys always
// waits.
const maxChecked = 64

// passed is a command that was passed on, and whose reply is yet to come.
type passed struct {
	op   op
	wait bool     // its reply waits for the link, whatever the keys are
	keys []string // its reply waits for the link if one of these is cached
	// These count if the command succeeds.
	db    int
	proto int
	user  string // "" if it does not change
}

// expect says what to do with the reply to a command.
func (r rule) expect(args [][]byte) passed {
	p := passed{op: r.op}
	switch r.op {
	case opQuiet, opMulti, opWatch, opUnwatch, opListen, opRaw:
	case opSelect:
		p.db = -1
		if len(args) == 2 {
			if n, ok := proto.ParseInt(args[1]); ok && n >= 0 && n < 1<<31 {
				p.db = int(n)
			}
		}
	case opAuth:
		if p.user = "default"; len(args) == 3 {
			p.user = string(args[1])
		}
	case opHello:
		p.hello(args)
	default:
		p.concerns(r, args)
	}
	return p
}

// hello reads HELLO [version [AUTH user password] [SETNAME name]].
func (p *passed) hello(args [][]byte) {
	if len(args) < 2 {
		return
	}
	if n, ok := proto.ParseInt(args[1]); ok && (n == 2 || n == 3) {
		p.proto = int(n)
	}
	for i := 2; i+1 < len(args); i += 2 {
		if bytes.EqualFold(args[i], []byte("auth")) {
			p.user = string(args[i+1])
			i++
		}
	}
}

// concerns notes the keys that a command concerns.
func (p *passed) concerns(r rule, args [][]byte) {
	last := int(r.last)
	if last < 0 {
		last += len(args)
	}
	first, step := int(r.first), int(r.step)
	if first == 0 || last >= len(args) || last < first || (last-first)/step >= maxChecked {
		p.wait = true
		return
	}
	for i := first; i <= last; i += step {
		if len(args[i]) <= maxKey { // longer keys are not cached
			p.keys = append(p.keys, string(args[i]))
		}
	}
}

// state is the state of a client's connection to the origin, as far as it matters here.
type state struct {
	proto        int
	db           int
	user         string // as whom it has authenticated; "" for nobody
	multi, watch bool
	lost         bool // the state is not known any more
}

// apply changes the state as a command does that has succeeded.
func (s *state) apply(p *passed) {
	switch p.op {
	case opSelect, opHello, opAuth:
		if s.multi { // the command was queued, and has its effect only if EXEC comes
			s.lost = true
			return
		}
	}
	switch p.op {
	case opSelect:
		s.db = p.db
	case opHello:
		if p.proto != 0 {
			s.proto = p.proto
		}
	case opMulti:
		s.multi = true
	case opEnd:
		s.multi, s.watch = false, false
	case opWatch:
		s.watch = true
	case opUnwatch:
		s.watch = false
	}
	if p.user != "" {
		s.user = p.user
	}
}

// reads reports whether the client's reads may be answered from the cache of u.
func (s *state) reads(u *URL) bool {
	if s.multi || s.watch || s.lost || s.db != u.DB {
		return false
	}
	return s.user == u.user() || s.user == "" && !u.guarded()
}
