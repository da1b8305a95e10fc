package allocbench

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Trace is what an allocator has asked its operating system for.
//
// In a file it is text, one request a line: the time of arrival in microseconds,
// and a size class c from 0 to 18, which means 4 KiB << c. Both are decimal numbers,
// with spaces or tabs between them. Empty lines are ignored. Lines need not be
// ordered by time.
type Trace struct {
	Name     string
	Requests []Request // ordered by At
}

// A Request is a line of a trace.
type Request struct {
	At    time.Duration // time of arrival, from the trace's beginning
	Class uint8
}

// Limits of a trace.
const (
	MaxClass     = 18      // 1 GiB
	maxTime      = 1 << 40 // microseconds: twelve days
	maxRequests  = 1 << 24
	smallestSize = 4096
)

// Size is how many bytes the request asks for.
func (r Request) Size() int64 { return smallestSize << r.Class }

// Bytes is how many bytes all requests of the trace ask for.
func (t *Trace) Bytes() (sum int64) {
	for _, r := range t.Requests {
		sum += r.Size()
	}
	return sum
}

// ReadTraceFile reads a trace from a file, and names it after the file.
func ReadTraceFile(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read a trace: %w", err)
	}
	defer f.Close()
	t, err := ReadTrace(f, path)
	if err != nil {
		return nil, err
	}
	t.Name = strings.TrimSuffix(filepath.Base(path), ".txt")
	return t, nil
}

// ReadTrace reads a trace and names it name. Errors say name and the line's number.
func ReadTrace(r io.Reader, name string) (*Trace, error) {
	t := &Trace{Name: name}
	s := bufio.NewScanner(r)
	line := 0
	wrong := func(err error) error { return fmt.Errorf("cannot read a trace: %s:%d: %w", name, line, err) }
	for s.Scan() {
		line++
		fields := strings.Fields(s.Text())
		if len(fields) == 0 {
			continue
		}
		q, err := parseRequest(fields)
		if err != nil {
			return nil, wrong(err)
		}
		if len(t.Requests) == maxRequests {
			return nil, wrong(fmt.Errorf("more than %d requests", maxRequests))
		}
		t.Requests = append(t.Requests, q)
	}
	line++
	switch err := s.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, wrong(fmt.Errorf("the line is longer than %d bytes, want a time and a size class", bufio.MaxScanTokenSize))
	case err != nil:
		return nil, wrong(err)
	case len(t.Requests) == 0:
		return nil, fmt.Errorf("cannot read a trace: %s: no requests, want a line for each, such as %q", name, "101 9")
	}
	slices.SortStableFunc(t.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return t, nil
}

func parseRequest(fields []string) (Request, error) {
	if len(fields) != 2 {
		return Request{}, fmt.Errorf("%s, want 2: the time of arrival in microseconds and a size class, such as %q",
			count(len(fields), "field"), "101 9")
	}
	at, err := parseNumber("time of arrival", fields[0], maxTime, "in microseconds")
	if err != nil {
		return Request{}, err
	}
	class, err := parseNumber("size class", fields[1], MaxClass, "(4 KiB to 1 GiB)")
	if err != nil {
		return Request{}, err
	}
	return Request{At: time.Duration(at) * time.Microsecond, Class: uint8(class)}, nil
}

func parseNumber(what, s string, most uint64, unit string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > most {
		if len(s) > 32 {
			s = s[:32] + "..."
		}
		return 0, fmt.Errorf("the %s is %q, want a whole number from 0 to %d %s", what, s, most, unit)
	}
	return n, nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
