// Package rdbload loads RDB files into running servers, by commands that any client may send: SET, HSET, UNLINK and
// PEXPIREAT.
//
// A file is read twice. [Check] reads all of it and changes nothing, so that a file that is damaged or cannot be
// loaded is refused before the first key is loaded. [Load] loads it.
package rdbload

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/far"
	"polder/resp/rdb"
)

// Options say how to load a file. The zero value loads a file that has strings and hashes of one database.
type Options struct {
	// DB is the only database whose keys are loaded, if One is set.
	DB  uint64
	One bool
	// Skip says to leave out keys that are neither strings nor hashes.
	Skip bool
	// Most is the length in bytes of the longest string that the server takes; 0 if that is not known.
	Most int
}

// Summary counts the keys that a file has. Only Strings and Hashes are loaded.
type Summary struct {
	Strings, Hashes int
	Expired         int // keys that have expired
	Left            int // keys that are neither strings nor hashes
	Elsewhere       int // keys of other databases
}

// String says what was loaded, and what was not.
func (s Summary) String() string {
	b := fmt.Sprintf("%d strings and %d hashes", s.Strings, s.Hashes)
	for _, more := range []struct {
		n    int
		what string
	}{{s.Expired, "had expired"}, {s.Left, "are neither strings nor hashes"}, {s.Elsewhere, "are of other databases"}} {
		if more.n > 0 {
			b += fmt.Sprintf("; not loaded: %d keys that %s", more.n, more.what)
		}
	}
	return b
}

// keys calls yield with the keys that have not expired and are in the right database, whatever their type. It counts
// all keys in s.
func (o *Options) keys(ctx context.Context, r io.Reader, now time.Time, s *Summary, yield func(r *rdb.Reader, k *rdb.Key) error) error {
	in := rdb.NewReader(r)
	in.Most = o.Most
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		k, err := in.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case o.One && k.DB != o.DB:
			s.Elsewhere++
			continue
		case !k.Expire.IsZero() && !k.Expire.After(now):
			s.Expired++
			continue
		case k.Kind == rdb.String:
			s.Strings++
		case k.Kind == rdb.Hash:
			s.Hashes++
		default:
			s.Left++
		}
		if err := yield(in, k); err != nil {
			return err
		}
	}
}

// Check reads a file, and fails if the file is damaged, or has a key that cannot be loaded and that o does not leave
// out.
func Check(ctx context.Context, r io.Reader, o Options) (Summary, error) {
	var s Summary
	databases := map[uint64]bool{}
	others := map[string]int{} // by type
	first := map[string]string{}
	var value []byte
	err := o.keys(ctx, r, time.Now(), &s, func(in *rdb.Reader, k *rdb.Key) (err error) {
		databases[k.DB] = true
		if len(k.Name) > far.MaxKeySize {
			return fmt.Errorf("key %.64q... has %d bytes, and may have %d", k.Name, len(k.Name), far.MaxKeySize)
		}
		switch k.Kind {
		case rdb.String:
			value, err = in.Value(value[:0])
			return err
		case rdb.Hash:
			return in.Fields(func(_, _ []byte) error { return nil })
		}
		if others[k.Type]++; others[k.Type] == 1 {
			first[k.Type] = string(k.Name)
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	if !o.Skip && len(others) > 0 {
		var list []string
		for _, typ := range slices.Sorted(maps.Keys(others)) {
			list = append(list, fmt.Sprintf("%d of type %s, such as %.64q", others[typ], typ, first[typ]))
		}
		return s, fmt.Errorf("it has keys that are neither strings nor hashes: %s; --skip-unsupported leaves them out", strings.Join(list, "; "))
	}
	if len(databases) > 1 {
		return s, fmt.Errorf("it has keys of the databases %d, and Polder has one: --db NUMBER loads one of them", slices.Sorted(maps.Keys(databases)))
	}
	return s, nil
}

// A round trip ends when it has batchBytes or batchCommands, an HSET command when it has commandBytes.
const (
	batchBytes    = 512 << 10
	batchCommands = 1000
	commandBytes  = 64 << 10
)

// loader sends commands, many at a time.
type loader struct {
	c     *redis.Client
	pipe  redis.Pipeliner
	bytes int // of the commands in pipe
	begun int // keys whose commands were all given to pipe
	keys  int // keys whose commands were all answered
}

// Load loads a file that Check has accepted. Clients see a hash grow while it is loaded; its expiry is set when all
// of it is there. With replace, keys of the file take the place of keys in the server; without, the caller knows that
// the server has none. If Load fails, the error says how many keys were loaded for certain, and Summary counts the
// keys that were read.
func Load(ctx context.Context, c *redis.Client, r io.Reader, o Options, replace bool) (Summary, error) {
	l := loader{c: c, pipe: c.Pipeline()}
	var s Summary
	err := o.keys(ctx, r, time.Now(), &s, func(in *rdb.Reader, k *rdb.Key) error {
		switch k.Kind {
		case rdb.String:
			v, err := in.Value(nil)
			if err != nil {
				return err
			}
			args := []any{"SET", bytes.Clone(k.Name), v}
			if !k.Expire.IsZero() {
				args = append(args, "PXAT", k.Expire.UnixMilli())
			}
			l.begun++
			return l.send(ctx, len(k.Name)+len(v), args...)
		case rdb.Hash:
			return l.hash(ctx, in, k, replace)
		}
		return nil
	})
	err = cmp.Or(err, l.flush(ctx))
	if err != nil {
		return s, fmt.Errorf("after %d keys: %w", l.keys, err)
	}
	return s, nil
}

func (l *loader) hash(ctx context.Context, in *rdb.Reader, k *rdb.Key, replace bool) error {
	name := bytes.Clone(k.Name)
	if replace {
		if err := l.send(ctx, len(name), "UNLINK", name); err != nil {
			return err
		}
	}
	args, size := []any{"HSET", name}, 0
	err := in.Fields(func(f, v []byte) error {
		args = append(args, bytes.Clone(f), bytes.Clone(v))
		if size += len(f) + len(v); size < commandBytes && len(args) < batchCommands {
			return nil
		}
		err := l.send(ctx, size, args...)
		args, size = []any{"HSET", name}, 0
		return err
	})
	if err == nil && len(args) > 2 {
		err = l.send(ctx, size, args...)
	}
	if err == nil && !k.Expire.IsZero() {
		err = l.send(ctx, len(name), "PEXPIREAT", name, strconv.FormatInt(k.Expire.UnixMilli(), 10))
	}
	l.begun++
	return err
}

// send adds a command of size bytes to the pipeline, and flushes the pipeline when it is full.
func (l *loader) send(ctx context.Context, size int, args ...any) error {
	l.pipe.Do(ctx, args...)
	if l.bytes += size; l.bytes < batchBytes && l.pipe.Len() < batchCommands {
		return nil
	}
	return l.flush(ctx)
}

// flush sends the pipeline and waits for the replies. If the server refuses a command, the error names its key.
func (l *loader) flush(ctx context.Context) error {
	l.bytes = 0
	cmds, err := l.pipe.Exec(ctx)
	if err == nil {
		l.keys = l.begun
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, c := range cmds {
		var said redis.Error
		if errors.As(c.Err(), &said) {
			return fmt.Errorf("the server refuses %s of the key %.64q: %w", c.Args()[0], c.Args()[1], said)
		}
	}
	return err
}
