package commands

import (
	"errors"
	"math/rand/v2"

	"polder/far"
	"polder/resp/hashes"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

func Del(c *Client, a [][]byte) error {
	n, err := c.DelMany(a[1:])
	if err == nil {
		c.Int(n)
	}
	return err
}

func Exists(c *Client, a [][]byte) error {
	n := int64(0)
	for _, key := range a[1:] {
		_, _, found, err := c.Stat(key)
		if err != nil {
			return err
		}
		if found {
			n++
		}
	}
	c.Int(n)
	return nil
}

func typeName(tag uint8) string {
	if keyspace.IsHash(tag) {
		return "hash"
	}
	return "string"
}

func Type(c *Client, a [][]byte) error {
	e, _, found, err := c.Stat(a[1])
	switch {
	case err != nil:
		return err
	case !found:
		c.Status("none")
	default:
		c.Status(typeName(e.Tag))
	}
	return nil
}

func Rename(c *Client, a [][]byte) error {
	_, err := c.rename(a[1], a[2], false)
	if err == nil {
		c.OK()
	}
	return err
}

func RenameNX(c *Client, a [][]byte) error {
	done, err := c.rename(a[1], a[2], true)
	if err == nil {
		c.Bool(done)
	}
	return err
}

func (c *Client) rename(src, dst []byte, nx bool) (bool, error) {
	e, found, err := c.Get(src, c.Scratch[:0])
	if err != nil {
		return false, err
	}
	if !found {
		return false, reply.ErrNoKey
	}
	keyspace.Reuse(&c.Scratch, e.Value)
	if string(src) == string(dst) {
		return !nx, nil
	}
	if nx {
		if _, _, found, err = c.Stat(dst); err != nil || found {
			return false, err
		}
	}
	c.Begin()
	h := c.LargeOf(src)
	if len(dst) > far.MaxKeySize {
		return false, reply.ErrKeyTooLong
	}
	if h == nil {
		if _, err := c.Del(src); err != nil {
			return false, err
		}
		return true, c.Put(dst, e)
	}
	return true, c.MoveLarge(src, dst, h, e)
}

func Copy(c *Client, a [][]byte) error {
	replace := false
	for i := 3; i < len(a); i++ {
		switch {
		case proto.Is(a[i], "replace"):
			replace = true
		case proto.Is(a[i], "db") && i+1 < len(a):
			i++
			if err := CheckDB(a[i]); err != nil {
				return err
			}
		default:
			return reply.ErrSyntax
		}
	}
	if string(a[1]) == string(a[2]) {
		return reply.ErrSameObject
	}
	e, found, err := c.Get(a[1], c.Scratch[:0])
	if err != nil {
		return err
	}
	if !found {
		c.Int(0)
		return nil
	}
	keyspace.Reuse(&c.Scratch, e.Value)
	if !replace {
		if _, _, found, err = c.Stat(a[2]); err != nil {
			return err
		}
		if found {
			c.Int(0)
			return nil
		}
	}
	if h := c.LargeOf(a[1]); h != nil {
		err = c.CopyLarge(h, a[1], a[2], e)
	} else {
		err = c.Put(a[2], e)
	}
	if err == nil {
		c.Int(1)
	}
	return err
}

// CheckDB refuses all databases but 0.
func CheckDB(arg []byte) error {
	db, ok := proto.ParseInt(arg)
	switch {
	case !ok:
		return reply.ErrNotInt
	case db != int64(int32(db)):
		return reply.ErrNotInt32
	case db != 0:
		return reply.ErrDBIndex
	}
	return nil
}

// randomTries is how many random keys RANDOMKEY tries, since a key may have expired.
const randomTries = 100

func RandomKey(c *Client, a [][]byte) error {
	found := false
	pick := func(int) (done bool, err error) {
		found, err = c.randomKey()
		return found, err
	}
	err := c.Each(rand.IntN(max(1, c.Partitions)), pick)
	if err == nil && !found && c.Partitions != 0 {
		err = c.Each(0, pick)
	}
	if err == nil && !found {
		c.Null()
	}
	return err
}

// randomKey replies with a random key, and reports whether it has found any.
func (c *Client) randomKey() (bool, error) {
	for range randomTries {
		key, err := c.Random(c.Scratch[:0])
		if errors.Is(err, far.ErrNotFound) {
			break
		}
		if err != nil {
			return false, err
		}
		keyspace.Reuse(&c.Scratch, key)
		if _, _, found, err := c.Stat(key); err == nil && found {
			c.Bulk(key)
			return true, nil
		} else if errors.Is(err, far.ErrWouldBlock) {
			return false, err
		}
	}
	return false, nil
}

func DBSize(c *Client, a [][]byte) error {
	n := 0
	err := c.Each(0, func(int) (bool, error) {
		n += c.Space.Len()
		return false, nil
	})
	c.Int(int64(n))
	return err
}

func Flush(c *Client, a [][]byte) error {
	if len(a) > 2 || len(a) == 2 && !proto.Is(a[1], "sync") && !proto.Is(a[1], "async") {
		return reply.ErrSyntax
	}
	if err := c.Flush(); err != nil {
		return err
	}
	c.OK()
	return nil
}

// objectMaxInt is the length up to which Redis may keep a string as an integer.
const objectMaxInt = 20

// embedMax is the length up to which Redis embeds a string in its object.
const embedMax = 44

func encoding(e far.Entry) string {
	switch e.Tag {
	case keyspace.TagHash:
		return "listpack"
	case keyspace.TagTable, keyspace.TagLarge:
		return "hashtable"
	}
	if e.Tag == keyspace.TagString && len(e.Value) <= objectMaxInt {
		if _, ok := proto.ParseInt(e.Value); ok {
			return "int"
		}
	}
	if e.Tag != keyspace.TagRaw && len(e.Value) <= embedMax {
		return "embstr"
	}
	return "raw"
}

// object looks up the key of an OBJECT command. If there is none, it replies with null.
func (c *Client) object(key []byte) (far.Entry, bool, error) {
	e, found, err := c.Get(key, c.Scratch[:0])
	if err == nil && !found {
		c.Null()
	}
	keyspace.Reuse(&c.Scratch, e.Value)
	return e, found, err
}

func ObjectEncoding(c *Client, a [][]byte) error {
	e, found, err := c.object(a[2])
	if found {
		c.Str(encoding(e))
	}
	return err
}

func ObjectRefcount(c *Client, a [][]byte) error {
	_, found, err := c.object(a[2])
	if found {
		c.Int(1)
	}
	return err
}

func ObjectIdletime(c *Client, a [][]byte) error {
	_, found, err := c.object(a[2])
	if found {
		c.Int(0)
	}
	return err
}

func ObjectFreq(c *Client, a [][]byte) error {
	_, found, err := c.object(a[2])
	if found {
		return reply.Error("ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.")
	}
	return err
}

// entryOverhead is how many bytes an entry takes beside its key and value: its place in the index and its header in
// the log.
const entryOverhead = 16 + 24

func MemoryUsage(c *Client, a [][]byte) error {
	for i := 3; i < len(a); i++ {
		if !proto.Is(a[i], "samples") || i+1 == len(a) {
			return reply.ErrSyntax
		}
		i++
		if n, ok := proto.ParseInt(a[i]); !ok {
			return reply.ErrNotInt
		} else if n < 0 {
			return reply.ErrSyntax
		}
	}
	e, size, found, err := c.Stat(a[2])
	if err != nil {
		return err
	}
	if !found {
		c.Null()
		return nil
	}
	if e.Tag == keyspace.TagLarge {
		if h := c.LargeOf(a[2]); h != nil {
			size += h.Bytes + int(h.Buckets)*(entryOverhead+hashes.BlockKeyLen)
		}
	}
	c.Int(int64(len(a[2]) + size + entryOverhead))
	return nil
}
