package verbsbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"polder/measure/benchout"
	"polder/memnode"
	"polder/pool"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// groupCounts are the numbers of groups of queue pairs that are compared.
// groupCallers is how many callers use a pool, each with a chunk of its own.
var groupCounts = [...]int{1, 2, 4}

const (
	groupCallers = 8
	groupChunk   = 1 << 20
)

// fabric is a driver, over which pools of this process reach a node of this process.
type fabric struct {
	name   string
	device func() (verbs.Device, error)
	listen func(verbs.Device) (verbs.Listener, error)
	dial   func(context.Context, verbs.Device, string) (verbs.Conn, error)
}

// groups measures pools with several groups of queue pairs to a node beside a pool with a
// single group, over every driver. The pools take turns.
func (b *bench) groups() error {
	dir, err := os.MkdirTemp("", "polder-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	f := inproc.NewFabric()
	for _, over := range []fabric{
		{
			"tcp", func() (verbs.Device, error) { return tcp.NewDevice(softnic.Config{}) },
			func(d verbs.Device) (verbs.Listener, error) { return tcp.Listen(d, "127.0.0.1:0", tcp.Config{}) },
			func(ctx context.Context, d verbs.Device, addr string) (verbs.Conn, error) {
				return tcp.Dial(ctx, d, addr, tcp.Config{})
			},
		},
		{
			"shm", func() (verbs.Device, error) { return shm.NewDevice(softnic.Config{}) },
			func(d verbs.Device) (verbs.Listener, error) {
				return shm.Listen(d, filepath.Join(dir, "groups.sock"), shm.Config{})
			},
			func(ctx context.Context, d verbs.Device, addr string) (verbs.Conn, error) {
				return shm.Dial(ctx, d, addr, shm.Config{})
			},
		},
		{
			"inproc", func() (verbs.Device, error) { return f.NewDevice(softnic.Config{}) },
			func(d verbs.Device) (verbs.Listener, error) { return f.Listen(d, "node") }, f.Dial,
		},
	} {
		if err := b.groupsOver(&over); err != nil {
			return fmt.Errorf("%s: %w", over.name, err)
		}
	}
	return nil
}

// groupsOver does what groups does, over one driver.
func (b *bench) groupsOver(f *fabric) (err error) {
	dev, err := f.device()
	if err != nil {
		return err
	}
	defer dev.Close()
	node, err := memnode.New(dev, memnode.Config{
		Manager: memnode.Native, ChunkSize: groupChunk, Lend: (groupCallers + 1) * int64(len(groupCounts)) * groupChunk,
	})
	if err != nil {
		return err
	}
	l, err := f.listen(dev)
	if err != nil {
		return errors.Join(err, node.Close())
	}
	served := make(chan error, 1)
	go func() { served <- node.Serve(l) }()
	defer func() { err = errors.Join(err, node.Close(), <-served) }()
	var users []*groupUser
	for _, n := range groupCounts {
		u, err := newGroupUser(b.ctx, f, l.Addr(), n)
		if err != nil {
			return err
		}
		defer u.close()
		users = append(users, u)
	}
	rates, waits := make([][]float64, len(users)), make([][]float64, len(users))
	for range b.rounds {
		for i, u := range users {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			rate, err := u.together(b.ctx, b.span)
			if err != nil {
				return err
			}
			wait, err := u.besideBulk(b.ctx, b.span, b.lat[:0])
			if err != nil {
				return err
			}
			rates[i], waits[i] = append(rates[i], rate), append(waits[i], wait)
		}
	}
	for i, n := range groupCounts[1:] {
		row := benchout.Row{Bench: "verbs", Case: fmt.Sprintf("%s %d groups READ 64 B", f.name, n),
			Metric: fmt.Sprintf("%d callers", groupCallers), Value: median(rates[i+1]), Unit: "op/s"}
		if err := b.out.Print(row.Against("1 group", median(rates[0]), benchout.Higher)); err != nil {
			return err
		}
		row.Metric, row.Value, row.Unit = "beside bulk writes", median(waits[i+1]), "us"
		if err := b.out.Print(row.Against("1 group", median(waits[0]), benchout.Lower)); err != nil {
			return err
		}
	}
	return nil
}

// groupUser is a pool with a given number of groups, and its chunks.
type groupUser struct {
	dev    verbs.Device
	pool   *pool.Pool
	chunks []*pool.Chunk // one for each of groupCallers callers, and the last for bulk writes
}

func newGroupUser(ctx context.Context, f *fabric, addr string, groups int) (*groupUser, error) {
	dev, err := f.device()
	if err != nil {
		return nil, err
	}
	u := &groupUser{dev: dev}
	u.pool, err = pool.Open(ctx, pool.Config{Device: dev, Groups: groups, Nodes: []pool.NodeConfig{{
		Name: "node", Dial: func(ctx context.Context) (verbs.Conn, error) { return f.dial(ctx, dev, addr) },
	}}})
	for err == nil && len(u.chunks) <= groupCallers {
		var c *pool.Chunk
		if c, err = u.pool.Alloc(ctx, groupChunk); err == nil {
			u.chunks = append(u.chunks, c)
		}
	}
	if err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

func (u *groupUser) close() {
	if u.pool != nil {
		u.pool.Close()
	}
	u.dev.Close()
}

// together returns how many short READs all callers together complete in a second.
func (u *groupUser) together(ctx context.Context, d time.Duration) (rate float64, err error) {
	var wg sync.WaitGroup
	counts, errs := make([]int, groupCallers), make([]error, groupCallers)
	start := time.Now()
	for i := range groupCallers {
		wg.Go(func() {
			buf := make([]byte, 64)
			for more := true; more && errs[i] == nil; more = time.Since(start) < d { // at least one
				_, errs[i] = u.chunks[i].ReadContext(ctx, buf, int64(counts[i]*64%groupChunk))
				counts[i]++
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	for _, n := range counts {
		rate += float64(n)
	}
	return rate / took.Seconds(), errors.Join(errs...)
}

// besideBulk returns the median time, in microseconds, of one caller's short READs while another
// caller writes a whole chunk over and over, in bulk.
func (u *groupUser) besideBulk(ctx context.Context, d time.Duration, lat []time.Duration) (us float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	written := make(chan error, 1)
	go func() {
		data := make([]byte, groupChunk)
		for {
			if err := u.chunks[groupCallers].WriteBulk(ctx, data, 0); err != nil {
				if ctx.Err() != nil {
					err = nil
				}
				written <- err
				return
			}
		}
	}()
	buf := make([]byte, 64)
	lat, err = timed(d, lat, func() error {
		_, err := u.chunks[0].ReadContext(ctx, buf, 0)
		return err
	})
	cancel()
	if err = errors.Join(err, <-written); err != nil {
		return 0, err
	}
	slices.Sort(lat)
	return float64(lat[len(lat)/2]) / 1e3, nil
}
