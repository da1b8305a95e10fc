package farbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"polder/far"
	"polder/internal/child"
	"polder/pages"
	"polder/pages/region"
)

// pager is a polder pager in a process of its own.
type pager struct {
	p         *child.Process
	dir, addr string
}

// startPager starts a pager for one mapping at a time of so many bytes, whose far memory is
// l's.
func startPager(ctx context.Context, polder string, l *lender, size int64) (_ *pager, err error) {
	p := &pager{}
	if p.dir, err = os.MkdirTemp("", "polder-bench-"); err != nil {
		return nil, err
	}
	p.addr = "unix:" + filepath.Join(p.dir, "pager")
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if p.p, err = child.StartReady(ctx, child.Command{Path: polder, Args: []string{
		"pager", "--far", l.node.Addr("verbs"), "--listen", p.addr, "--local", fmt.Sprint(far.MinLocal), "--admin", "127.0.0.1:0", "--log-level", "warn",
		"--size", fmt.Sprint(size), "--frames", fmt.Sprint(size), "--op-timeout", patience.String(),
	}}); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot start a pager: %w", err), p.close())
	}
	return p, nil
}

// mapping makes a region of size bytes, of which so much is local.
func (p *pager) mapping(ctx context.Context, size, local int64) (r *region.Region, err error) {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) { // the pager may not have the last one's memory back yet
		r, err = region.Map(ctx, p.addr, size, region.Config{Local: max(local/pages.Size*pages.Size, 256<<10)})
		if err != nil && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil || !errors.Is(err, region.ErrRefused) || time.Since(begin) > startTimeout {
			return r, err
		}
	}
}

// moved is how many bytes the pager has read from far memory, and written there.
func (p *pager) moved() (n int64, err error) {
	reply, err := http.Get("http://" + p.p.Addr("admin") + "/metrics")
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	found := 0
	for lines := bufio.NewScanner(reply.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if name == "polder_far_read_bytes_total" || name == "polder_far_written_bytes_total" {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			n += int64(v)
			found++
		}
	}
	if found != 2 {
		return 0, errors.New("the pager does not say what it has read and written")
	}
	return n, nil
}

func (p *pager) close() (err error) {
	if p.p != nil {
		err = p.p.Stop()
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}
