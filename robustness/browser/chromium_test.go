//go:build browser

package browser

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"polder/internal/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// patience bounds every answer of the browser.
const patience = time.Minute

// page is a page in a browser of its own, driven by the DevTools protocol over
// pipes: messages in JSON with a zero byte after each.
type page struct {
	t       *testing.T
	to      *os.File
	session string
	closed  chan struct{} // the browser has ended

	mu      sync.Mutex
	next    int
	waiting map[int]chan message // guarded by mu
	errors  []string             // guarded by mu; what the page has complained of
}

type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// open starts a browser that shows an empty page of that size.
func open(t *testing.T, width, height int, dark bool) *page {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("cannot test the page: %v (make test-console installs it)", err)
	}
	theirIn, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
		fmt.Sprintf("--window-size=%d,%d", width, height), "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirIn.Close()
	_ = theirOut.Close()
	p := &page{t: t, to: to, closed: make(chan struct{}), waiting: make(map[int]chan message)}
	go p.read(bufio.NewReader(from))
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it and the processes that it has started
		_ = cmd.Wait()
		<-p.closed
		_ = to.Close()
		_ = from.Close()
	})
	var targets struct {
		TargetInfos []struct{ TargetID, Type string }
	}
	proctest.Until(t, "the browser has a page", func() bool {
		p.ask("Target.getTargets", nil, &targets)
		return len(targets.TargetInfos) > 0 && targets.TargetInfos[0].Type == "page"
	})
	var attached struct{ SessionID string }
	p.ask("Target.attachToTarget", map[string]any{"targetId": targets.TargetInfos[0].TargetID, "flatten": true}, &attached)
	p.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.ask(domain+".enable", nil, nil)
	}
	p.ask("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	if dark {
		p.ask("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": "dark"}}}, nil)
	}
	return p
}

// read takes what the browser says, until it ends.
func (p *page) read(from *bufio.Reader) {
	defer close(p.closed)
	for {
		text, err := from.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if err := json.Unmarshal(bytes.TrimRight(text, "\x00"), &m); err != nil {
			continue
		}
		p.mu.Lock()
		if ch := p.waiting[m.ID]; m.ID != 0 && ch != nil {
			delete(p.waiting, m.ID)
			ch <- m
		}
		switch complaint := string(m.Params); m.Method {
		case "Runtime.exceptionThrown":
			p.errors = append(p.errors, complaint)
		case "Runtime.consoleAPICalled", "Log.entryAdded":
			if strings.Contains(complaint, `"type":"error"`) || strings.Contains(complaint, `"level":"error"`) {
				p.errors = append(p.errors, complaint)
			}
		}
		p.mu.Unlock()
	}
}

// ask has the browser do something.
func (p *page) ask(method string, params map[string]any, into any) {
	p.t.Helper()
	ch := make(chan message, 1)
	p.mu.Lock()
	p.next++
	id := p.next
	p.waiting[id] = ch
	p.mu.Unlock()
	if params == nil {
		params = map[string]any{}
	}
	request := map[string]any{"id": id, "method": method, "params": params}
	if p.session != "" {
		request["sessionId"] = p.session
	}
	text, err := json.Marshal(request)
	if err == nil {
		_, err = p.to.Write(append(text, 0))
	}
	if err != nil {
		p.t.Fatalf("cannot ask the browser for %s: %v", method, err)
	}
	select {
	case m := <-ch:
		if m.Error != nil {
			p.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		if into != nil {
			if err := json.Unmarshal(m.Result, into); err != nil {
				p.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-p.closed:
		p.t.Fatalf("%s: the browser has ended", method)
	case <-time.After(patience):
		p.t.Fatalf("%s: no answer", method)
	}
}

func (p *page) visit(url string) {
	p.t.Helper()
	p.ask("Page.navigate", map[string]any{"url": url}, nil)
}

// eval is the value of an expression in the page.
func (p *page) eval(expression string, into any) error {
	var r struct {
		Result struct {
			Value json.RawMessage
		}
		ExceptionDetails *struct {
			Exception struct{ Description string }
		}
	}
	p.ask("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		return errors.New(r.ExceptionDetails.Exception.Description)
	}
	return json.Unmarshal(r.Result.Value, into)
}

// text is the text of the first element that a selector finds, "" without one.
func (p *page) text(selector string) (s string) {
	p.t.Helper()
	if err := p.eval(fmt.Sprintf(`(document.querySelector(%q) || {innerText: ""}).innerText`, selector), &s); err != nil {
		p.t.Fatalf("%s: %v", selector, err)
	}
	return s
}

// until waits until an element's text has a part.
func (p *page) until(selector, part string) {
	p.t.Helper()
	proctest.Until(p.t, fmt.Sprintf("%s says %q", selector, part), func() bool { return strings.Contains(p.text(selector), part) })
}

// complaints are the errors in the page's console since the last call.
func (p *page) complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	errors := p.errors
	p.errors = nil
	return errors
}

// shoot writes a picture of the page's first lines to a file.
func (p *page) shoot(path string) {
	p.t.Helper()
	var picture struct{ Data string }
	p.ask("Page.captureScreenshot", map[string]any{"format": "png", "optimizeForSpeed": false}, &picture)
	b, err := base64.StdEncoding.DecodeString(picture.Data)
	if err == nil {
		err = os.WriteFile(path, b, 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
