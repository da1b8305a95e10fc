package top

import (
	"context"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// model is the state of the screen.
type model struct {
	ctx context.Context
	cfg Config

	list          []daemon // sorted
	asked         bool
	at            time.Time
	width, height int
	cursor        string // the address of the daemon that is marked
	open, help    bool
	scroll        int // how many lines an open daemon is scrolled
	sortBy        int // index of columns
	reverse       bool
}

func newModel(ctx context.Context, cfg Config) *model {
	return &model{ctx: ctx, cfg: cfg, width: 80, height: 24}
}

type answers []daemon

type again struct{}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.ask }

func (m *model) ask() tea.Msg { return answers(ask(m.ctx, m.cfg)) }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case answers:
		m.take(msg)
		return m, tea.Tick(m.cfg.Every, func(time.Time) tea.Msg { return again{} })
	case again:
		return m, m.ask
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

func (m *model) key(key string) tea.Cmd {
	i := slices.IndexFunc(m.list, func(d daemon) bool { return d.addr == m.cursor })
	move := func(by int) {
		if m.open {
			m.scroll = max(m.scroll+by, 0)
		} else if len(m.list) > 0 {
			m.cursor = m.list[min(max(i+by, 0), len(m.list)-1)].addr
		}
	}
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "?", "h":
		m.help = !m.help
	case "esc", "backspace", "left":
		m.open, m.help = false, false
	case "enter", "right", "space":
		m.open, m.help, m.scroll = len(m.list) > 0, false, 0
	case "up", "k":
		move(-1)
	case "down", "j":
		move(1)
	case "pgup":
		move(-m.height / 2)
	case "pgdown":
		move(m.height / 2)
	case "s":
		m.sortBy = (m.sortBy + 1) % len(columns)
		m.sort()
	case "S", "shift+s":
		m.sortBy = (m.sortBy + len(columns) - 1) % len(columns)
		m.sort()
	case "r":
		m.reverse = !m.reverse
		m.sort()
	}
	return nil
}

// take takes daemons' answers. With Config.Usual, it leaves out daemons that have never
// answered.
func (m *model) take(list []daemon) {
	m.asked, m.at = true, time.Now()
	var kept []daemon
	for _, d := range list {
		known := slices.IndexFunc(m.list, func(old daemon) bool { return old.addr == d.addr })
		if d.state == nil && known >= 0 {
			d.state = m.list[known].state // the last figures, with the error
		}
		clean(&d)
		if d.state != nil || !m.cfg.Usual {
			kept = append(kept, d)
		}
	}
	m.list = kept
	m.sort()
	if len(kept) > 0 && !slices.ContainsFunc(kept, func(d daemon) bool { return d.addr == m.cursor }) {
		m.cursor = kept[0].addr
	}
}

func (m *model) sort() {
	slices.SortStableFunc(m.list, func(a, b daemon) int {
		c := columns[m.sortBy].compare(&a, &b)
		if c == 0 {
			c = strings.Compare(a.addr, b.addr)
		}
		if m.reverse {
			return -c
		}
		return c
	})
}

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.screen(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "polder top"
	return v
}

// screen is at most height lines of at most width cells.
func (m *model) screen() []string {
	var lines []string
	foot := "q quit  ? help  s sort by " + columns[(m.sortBy+1)%len(columns)].name + "  r reverse  enter open"
	switch {
	case m.help:
		lines, foot = helpLines, "? back  q quit"
	case !m.asked:
		lines = []string{bold("polder top"), "", "Asking " + strings.Join(m.cfg.Addrs, ", ") + " ..."}
	case len(m.list) == 0:
		lines = []string{bold("polder top"), "", "No daemon answers at the usual addresses.", "Start one with polder up, or name its address with --admin.", "", "It is asked again every " + m.cfg.Every.String() + "."}
	case m.open:
		i := slices.IndexFunc(m.list, func(d daemon) bool { return d.addr == m.cursor })
		lines, foot = m.detail(&m.list[max(i, 0)]), "esc back  up/down scroll  ? help  q quit"
		m.scroll = min(m.scroll, max(len(lines)-(m.height-1), 0))
		lines = lines[m.scroll:]
	default:
		lines = append([]string{bold("polder top") + "  " + m.at.Format("15:04:05") + ", every " + m.cfg.Every.String() + ", sorted by " + columns[m.sortBy].name, ""}, m.table(true)...)
	}
	lines = slices.Clone(lines[:min(len(lines), max(m.height-1, 0))])
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, faint(foot))
	for i := range lines {
		lines[i] = cut(lines[i], m.width)
	}
	return lines
}

var helpLines = []string{
	bold("polder top: keys"), "",
	"  up, down, k, j   mark another daemon; in an open one, scroll",
	"  enter, right     open the marked daemon: memory, figures, nodes, events",
	"  esc, left        back to the list",
	"  s, S             sort by the next column, the last one",
	"  r                reverse the order",
	"  ?, h             this help",
	"  q, ctrl-c        quit",
	"",
	bold("columns"), "",
	"  STATE   well; ill, and the open daemon says why; silent: no answer;",
	"          2 of 3 up: how many of its nodes can be reached",
	"  MEMORY  what it holds of what it may: the local budget, what a node",
	"          lends, what caches are granted, the shared pools",
	"  RSS     resident memory of the process",
	"  RATE    what it mostly does, a second: commands, chunks, lookups",
	"  LATELY  the same, or what it holds, over the last minutes",
}
