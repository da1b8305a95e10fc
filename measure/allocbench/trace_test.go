package allocbench

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestATraceIsTimesAndSizeClasses(t *testing.T) {
	tr, err := ReadTrace(strings.NewReader("0 0\n\n167\t9\r\n  101 18\n"), "t")
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{{0, 0}, {101 * time.Microsecond, 18}, {167 * time.Microsecond, 9}}
	if !slices.Equal(tr.Requests, want) {
		t.Errorf("got %v, want %v", tr.Requests, want)
	}
	if got, want := tr.Bytes(), int64(4<<10+1<<30+2<<20); got != want {
		t.Errorf("the trace asks for %d bytes, want %d", got, want)
	}
}

func TestAWrongTraceIsRefusedByLine(t *testing.T) {
	for text, want := range map[string]string{
		"0 0\n101\n":                         `t.txt:2: 1 field, want 2: the time of arrival in microseconds and a size class, such as "101 9"`,
		"0 0 0\n":                            `t.txt:1: 3 fields, want 2`,
		"0 0\n\n-4 1\n":                      `t.txt:3: the time of arrival is "-4", want a whole number from 0 to 1099511627776 in microseconds`,
		"9999999999999999999999 1\n":         `t.txt:1: the time of arrival is "9999999999999999999999"`,
		"1.5 1":                              `t.txt:1: the time of arrival is "1.5"`,
		"1 19\n":                             `t.txt:1: the size class is "19", want a whole number from 0 to 18 (4 KiB to 1 GiB)`,
		"1 4KiB\n":                           `t.txt:1: the size class is "4KiB"`,
		"":                                   `t.txt: no requests, want a line for each, such as "101 9"`,
		"1 1\n" + strings.Repeat("1", 1<<17): `t.txt:2: the line is longer than 65536 bytes`,
	} {
		_, err := ReadTrace(strings.NewReader(text), "t.txt")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %s", text, err, want)
		}
	}
}

func TestATraceIsNamedAfterItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "je.larson.txt")
	if err := os.WriteFile(path, []byte("0 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tr, err := ReadTraceFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if tr.Name != "je.larson" {
		t.Errorf("got %q, want %q", tr.Name, "je.larson")
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add("0 0\n101 9\n")
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := ReadTrace(strings.NewReader(text), "t")
		if err != nil {
			return
		}
		last := time.Duration(0)
		for _, q := range tr.Requests {
			if q.At < last || q.Class > MaxClass {
				t.Errorf("got %v after %v", q, last)
			}
			last = q.At
		}
	})
}
