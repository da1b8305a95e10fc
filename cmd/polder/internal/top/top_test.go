package top

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"polder/internal/console"
)

var styles = regexp.MustCompile("\x1b\\[[0-9;]*m")

// someone is a server with one of its two nodes down.
func someone(addr string, commands float32) daemon {
	return daemon{addr: addr, state: &console.State{
		Service: "serve", Version: "v1", PID: 7, Started: time.Unix(0, 0), Now: time.Unix(100, 0),
		Advice: []string{strings.Repeat("Raise the local budget. ", 12)},
		Events: []console.Event{{Time: time.Unix(50, 0), Level: "warn", Text: "connection lost \x1b[2J", More: strings.Repeat(" x=y", 100)}},
		Metrics: console.Metrics{
			"polder_far_local_bytes": {Samples: []console.Sample{{Labels: map[string]string{"use": "cold"}, Value: 12 << 20}, {Labels: map[string]string{"use": "free"}, Value: 4 << 20}}},
			"polder_pool_node_up":    {Samples: []console.Sample{{Labels: map[string]string{"node": "a:1"}, Value: 1}, {Labels: map[string]string{"node": "b:1"}}}},
		},
		History: &console.History{Times: []int64{1, 2}, Series: []*console.Series{{Panel: "commands", Name: "commands", Values: []float32{1, commands}}}},
	}}
}

// TestEveryScreenFits in any terminal, whatever is shown.
func TestEveryScreenFits(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {40, 10}, {200, 60}, {1, 1}} {
		m := newModel(t.Context(), Config{Addrs: []string{"x"}, Every: time.Second})
		check := func(what string, wants ...string) {
			t.Helper()
			m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
			lines := m.screen()
			text := styles.ReplaceAllString(strings.Join(lines, "\n"), "")
			if len(lines) > size[1] || strings.Contains(text, "\x1b") {
				t.Errorf("%s at %v: %d lines: %q", what, size, len(lines), text)
			}
			for _, line := range strings.Split(text, "\n") {
				if n := utf8.RuneCountInString(line); n > size[0] {
					t.Errorf("%s at %v: %d cells: %q", what, size, n, line)
				}
			}
			for _, want := range wants {
				if size[0] >= 80 && !strings.Contains(text, want) {
					t.Errorf("%s at %v does not say %q:\n%s", what, size, want, text)
				}
			}
		}
		check("before the first answer", "Asking x")
		m.Update(answers{someone("127.0.0.1:7079", 5000), someone("127.0.0.1:7071", 3), {addr: "127.0.0.1:1", err: errors.New("connection refused")}})
		check("the list", "serve", "1 of 2 up", "12.0M/16.0M", "5k/s", "silent", "127.0.0.1:7071")
		m.key("?")
		check("help", "sort by the next column")
		m.key("?")
		m.key("enter")
		check("a daemon that never answered", "connection refused")
		m.key("esc")
		m.key("down")
		m.key("enter")
		check("a daemon", "Raise the local budget", "cold 12.0M", "Redis commands")
		for range 50 {
			m.key("down")
		}
		check("its end", "connection lost")
	}
}

func TestTheOrderIsTheUsers(t *testing.T) {
	m := newModel(t.Context(), Config{Every: time.Second})
	m.take([]daemon{someone("a", 1), someone("b", 3), someone("c", 2)})
	order := func() (s string) {
		for _, d := range m.list {
			s += d.addr
		}
		return s
	}
	for m.sortBy = 0; columns[m.sortBy].name != "rate"; {
		m.key("s")
	}
	if got := order(); got != "bca" {
		t.Errorf("by rate: got %s, want bca", got)
	}
	m.key("r")
	if got := order(); got != "acb" {
		t.Errorf("reversed: got %s, want acb", got)
	}
	// The mark stays on its daemon.
	if m.cursor != "a" {
		t.Errorf("the mark is on %s", m.cursor)
	}
}

func TestADaemonThatFallsSilentStays(t *testing.T) {
	m := newModel(t.Context(), Config{Usual: true, Every: time.Second})
	m.take([]daemon{someone("a", 1), {addr: "b", err: errors.New("nobody")}})
	if len(m.list) != 1 {
		t.Errorf("usual addresses at which nobody is are shown: %d daemons", len(m.list))
	}
	m.take([]daemon{{addr: "a", err: errors.New("gone")}, {addr: "b", err: errors.New("nobody")}})
	if len(m.list) != 1 || m.list[0].health() != "silent" || m.list[0].service() != "serve" {
		t.Errorf("got %+v", m.list)
	}
}

func TestWithoutATerminalItPrintsLines(t *testing.T) {
	var out bytes.Buffer
	err := Run(t.Context(), Config{Addrs: []string{"127.0.0.1:1"}, Every: time.Millisecond, Count: 2, Out: &out})
	if err != nil || strings.Count(out.String(), "SERVICE") != 2 || !strings.Contains(out.String(), "silent") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("got %v\n%s", err, out.String())
	}
	if err := Run(t.Context(), Config{Addrs: []string{"127.0.0.1:1"}, Usual: true, Every: time.Millisecond, Count: 1, Out: &out}); err == nil {
		t.Error("no daemon at the usual addresses, and no error")
	}
	if testing.Verbose() {
		m := newModel(t.Context(), Config{Every: time.Second})
		m.take([]daemon{someone("127.0.0.1:7079", 5000), someone("127.0.0.1:7071", 3)})
		fmt.Println(strings.Join(m.screen(), "\n"))
	}
}
