package respbench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"polder/far"
	"polder/internal/child"
	"polder/internal/load"
	"polder/measure/benchout"
)

// On loopback, three processes share the processors and repair reads its source in place, so repair is limited by the
// processors. Here the network is the limit: each node is in a network namespace of its own, which a pair of veth
// devices, limited by a token bucket filter, connects to the server's namespace. The process that calls RunLinks is
// itself in a namespace of its own, so that nobody else's network changes; all of it disappears when that process and
// the nodes' processes have ended, however they end.

const (
	linkNodes = 4 // of which one is killed
	// linkTimeout bounds the measurements over links of one rate.
	linkTimeout = time.Minute
	// linkSize is the size of a value.
	linkSize = 4 << 10
	// linkRaw is how long plain writing is measured.
	linkRaw = 500 * time.Millisecond
)

// limits is a script that makes a pair of devices and limits the rate of one. If it fails, nothing here can be
// measured.
const limits = "ip link add here type veth peer name there && tc qdisc add dev here root tbf rate 1gbit burst 512kb latency 100ms"

// canLimit returns nil if links can be limited on this machine, and otherwise the reason why not.
func canLimit(ctx context.Context) error {
	for _, tool := range []string{"ip", "tc", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	p, err := child.Start(child.Command{Path: "sh", Args: []string{"-c", limits}, Network: true})
	if err != nil {
		return fmt.Errorf("a network namespace cannot be made: %w", err)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Kill()
		return context.Cause(ctx)
	}
	return p.Err()
}

// overLinks starts a process in a network namespace of its own, which measures how size bytes of values are repaired
// over links of each of the rates gbits, in Gbit/s, and prints its figures. Where links cannot be limited, it notes
// why and returns nil.
func (b *bench) overLinks(ctx context.Context, gbits []int, size int64) error {
	if len(gbits) == 0 {
		return nil
	}
	b.cfg.Progress(b.done, b.total, "repair over limited links")
	b.done += len(gbits)
	if err := canLimit(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b.cfg.note(fmt.Sprintf("repair over limited links is not measured, which takes root, and ip, tc and nsenter: %v", err))
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(len(gbits))*linkTimeout)
	defer cancel()
	var out bytes.Buffer
	p, err := child.Start(child.Command{Path: b.cfg.Polder, Args: []string{
		"bench", LinksCommand, "--gbits", strings.Trim(strings.ReplaceAll(fmt.Sprint(gbits), " ", ","), "[]"), "--bytes", fmt.Sprint(size),
	}, Network: true, Stdout: &out})
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), p.Stop())
	}
	if err := p.Err(); err != nil {
		return err
	}
	for d := json.NewDecoder(&out); ; {
		var r benchout.Row
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("cannot understand what %s prints: %w", LinksCommand, err)
		}
		if err := b.cfg.Printer.Print(r); err != nil {
			return err
		}
	}
	return nil
}

// LinksCommand is the subcommand of polder bench that calls RunLinks. RunSurvive starts it.
const LinksCommand = "survive-links"

// RunLinks measures how size bytes of values are repaired over links of each of the rates gbits, in Gbit/s. Call it
// in a network namespace that is empty.
func RunLinks(ctx context.Context, cfg Config, gbits []int, size int64) error {
	b := &bench{cfg: cfg}
	b.cfg.Progress = func(int, int, string) {}
	if err := shell(ctx, "ip link set lo up"); err != nil {
		return err
	}
	for _, rate := range gbits {
		if err := b.overLink(ctx, rate, size); err != nil {
			return fmt.Errorf("links of %d Gbit/s: %w", rate, err)
		}
	}
	return nil
}

// overLink measures repair over links of gbit Gbit/s beside plain writing over one of them.
func (b *bench) overLink(ctx context.Context, gbit int, size int64) (err error) {
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	s := new(survivor)
	for i := range linkNodes {
		node, err := child.StartReady(ctx, child.Command{Path: b.cfg.Polder, Network: true, Args: []string{
			"node", "--listen", "0.0.0.0:7070", "--insecure", "--admin", "off", "--log-level", "warn", "--client-budget", "0", "--lend", fmt.Sprint(2*size + 128<<20), "--overcommit",
		}})
		if err != nil {
			return errors.Join(err, s.stop())
		}
		s.nodes, s.addrs = append(s.nodes, node), append(s.addrs, fmt.Sprintf("10.0.%d.2:7070", i))
		if err := connect(ctx, node.PID(), i, gbit); err != nil {
			return errors.Join(err, s.stop())
		}
	}
	if err := s.serve(ctx, b.cfg.Polder, 2, far.MinLocal); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := b.fill(ctx, s.server, int(size/(load.KeySize+linkSize)), linkSize); err != nil {
		return err
	}
	if _, err := b.healed(ctx, s, -1); err != nil {
		return err
	}
	raw, err := rawWrite(ctx, s.addrs[0], linkRaw, false)
	if err != nil {
		return err
	}
	rate, took, err := b.repaired(ctx, s)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("2 copies, links of %d Gbit/s", gbit)
	err = b.cfg.Printer.Print(benchout.Row{Bench: "survive", Case: name, Metric: "repair", Value: rate / (1 << 20), Unit: "MiB/s"}.Against("WRITE", raw/(1<<20), benchout.Higher))
	if err == nil {
		err = b.cfg.Printer.Print(benchout.Row{Bench: "survive", Case: name, Metric: "all copies again", Value: float64(took.Milliseconds()), Unit: "ms"})
	}
	return err
}

// connect makes link number i, with gbit Gbit/s in either direction, from this network namespace to that of process
// pid. This end's address is 10.0.i.1, the other's 10.0.i.2.
func connect(ctx context.Context, pid, i, gbit int) error {
	limit := fmt.Sprintf("root tbf rate %dgbit burst 512kb latency 100ms", gbit)
	return shell(ctx, fmt.Sprintf(`set -e
there="nsenter -t %[1]d -n"
ip link add node%[2]d type veth peer name eth0 netns %[1]d
ip addr add 10.0.%[2]d.1/30 dev node%[2]d
ip link set node%[2]d up
tc qdisc add dev node%[2]d %[3]s
$there ip addr add 10.0.%[2]d.2/30 dev eth0
$there ip link set eth0 up
$there tc qdisc add dev eth0 %[3]s`, pid, i, limit))
}

// shell runs a script.
func shell(ctx context.Context, script string) error {
	if out, err := exec.CommandContext(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot set up a network: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
