package commands

import (
	"math"
	"time"

	"polder/resp/proto"
	"polder/resp/reply"
)

type optFlags uint16

const (
	optNX optFlags = 1 << iota
	optXX
	optGet
	optKeepTTL
	optPersist
	optEx    // some expiry was given
	optMilli // the expiry is in milliseconds
	optAt    // the expiry is a point in time
)

// setOptions are the options of SET and GETEX.
type setOptions struct {
	flags  optFlags
	expire []byte // argument of the expiry option
}

// parseSetOptions reads options. It fails if one of them is not in allowed.
func parseSetOptions(a [][]byte, allowed optFlags) (o setOptions, err error) {
	const (
		kind   = optEx | optMilli | optAt
		expiry = kind | optKeepTTL | optPersist
	)
	for i := 0; i < len(a); i++ {
		var f optFlags
		var clash optFlags
		switch w := a[i]; {
		case proto.Is(w, "nx"):
			f, clash = optNX, optXX
		case proto.Is(w, "xx"):
			f, clash = optXX, optNX
		case proto.Is(w, "get"):
			f = optGet
		case proto.Is(w, "keepttl"):
			f, clash = optKeepTTL, optEx|optPersist
		case proto.Is(w, "persist"):
			f, clash = optPersist, optEx|optKeepTTL
		case proto.Is(w, "ex"):
			f, clash = optEx, expiry
		case proto.Is(w, "px"):
			f, clash = optEx|optMilli, expiry
		case proto.Is(w, "exat"):
			f, clash = optEx|optAt, expiry
		case proto.Is(w, "pxat"):
			f, clash = optEx|optMilli|optAt, expiry
		}
		again := f&optEx != 0 && o.flags&kind == f // EX 1 EX 2: the last one counts
		if f == 0 || o.flags&clash != 0 && !again || f&allowed == 0 {
			return o, reply.ErrSyntax
		}
		if f&optEx != 0 {
			i++
			if i == len(a) {
				return o, reply.ErrSyntax
			}
			o.expire = a[i]
		}
		o.flags |= f
	}
	return o, nil
}

// expireTime returns the time that the expiry option says, in milliseconds since 1970, or 0 if there is no such
// option. Name is the command's, for the error.
func (o *setOptions) expireTime(name string) (int64, error) {
	if o.flags&optEx == 0 {
		return 0, nil
	}
	ms, ok := proto.ParseInt(o.expire)
	if !ok {
		return 0, reply.ErrNotInt
	}
	bad := reply.Error("ERR invalid expire time in '" + name + "' command")
	if ms <= 0 {
		return 0, bad
	}
	if o.flags&optMilli == 0 {
		if ms > math.MaxInt64/1000 {
			return 0, bad
		}
		ms *= 1000
	}
	if o.flags&optAt == 0 {
		now := nowMilli()
		if ms > math.MaxInt64-now {
			return 0, bad
		}
		ms += now
	}
	return ms, nil
}

func nowMilli() int64 { return time.Now().UnixMilli() }

// expireAt turns milliseconds since 1970 into a time.
func expireAt(ms int64) time.Time { return time.UnixMilli(ms) }
