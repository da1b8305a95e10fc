// Package top is "polder top": what daemons are doing, in a terminal. It shows
// console.State and console.History, as the page in a browser does, and nothing
// else.
//
// Each daemon is one line; Enter opens the daemon. Without a terminal, top prints
// the lines instead, once or as often as Config.Count says.
package top

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/term"

	"polder/internal/console"
)

// Config says what to show.
type Config struct {
	Addrs []string // administrative addresses
	Usual bool     // Addrs are the usual addresses: those that do not answer are not shown
	TLS   *tls.Config
	Token string
	Every time.Duration
	Count int // without a terminal, how often to print; 0 means without end
	In    io.Reader
	Out   io.Writer
}

// askTimeout is how long a daemon may take to answer.
const askTimeout = 3 * time.Second

// points is the most values that a sparkline has.
const points = 200

// Run shows daemons until the user or ctx ends it.
func Run(ctx context.Context, cfg Config) error {
	in, _ := cfg.In.(*os.File)
	out, _ := cfg.Out.(*os.File)
	if in == nil || out == nil || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return print(ctx, cfg)
	}
	m := newModel(ctx, cfg)
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler()).Run()
	if ctx.Err() != nil {
		return nil // interrupted, as by the key q
	}
	return err
}

// print prints the table for pipes and files.
func print(ctx context.Context, cfg Config) error {
	tick := time.NewTicker(cfg.Every)
	defer tick.Stop()
	for i := 1; ; i++ {
		m := newModel(ctx, cfg)
		m.take(ask(ctx, cfg))
		if len(m.list) == 0 {
			return fmt.Errorf("no daemon answers at the usual addresses: start one with polder up, or name its address with --admin")
		}
		for _, line := range m.table(false) {
			if _, err := fmt.Fprintln(cfg.Out, strings.TrimRight(line, " ")); err != nil {
				return fmt.Errorf("cannot print: %w", err)
			}
		}
		if i == cfg.Count {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// A daemon is what one address has answered.
type daemon struct {
	addr  string
	state *console.State // nil if the daemon has not answered
	err   error
}

// ask asks all daemons at once.
func ask(ctx context.Context, cfg Config) []daemon {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	list := make([]daemon, len(cfg.Addrs))
	var wg sync.WaitGroup
	for i, addr := range cfg.Addrs {
		wg.Go(func() {
			s, err := console.Query(ctx, cfg.TLS, cfg.Token, addr, points)
			list[i] = daemon{addr, s, err}
		})
	}
	wg.Wait()
	return list
}
