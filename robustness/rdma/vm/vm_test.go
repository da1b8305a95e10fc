package vm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"polder/robustness/rdma/plan"
)

func TestOnlyOneExitStatusIsAPass(t *testing.T) {
	passed := []Report{{Step: "a", Outcome: plan.Passed}}
	for status := -1; status < 256; status++ {
		if err := verdict(status, errors.New("as it ended"), passed); (err == nil) != (status == 85) {
			t.Errorf("status %d: got %v", status, err)
		}
	}
	for _, outcome := range []string{"", plan.Failed, plan.Hung} {
		if verdict(85, nil, []Report{passed[0], {Step: "b", Outcome: outcome}}) == nil {
			t.Errorf("the guest passed although a step's outcome is %q", outcome)
		}
	}
}

func TestModulesComeAfterWhatTheyNeed(t *testing.T) {
	s := newMModules()
	s.builtin["built_in"] = true
	order, err := s.order([]string{"last"}, func(path string) ([]byte, error) {
		return object(t, map[string]string{
			"/a/last.ko": "middle-one,first,built_in", "/a/middle-one.ko.xz": "first", "/b/first.ko": "",
		}[path]), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range order {
		names = append(names, m.name)
	}
	if got := strings.Join(names, " "); got != "first middle_one last" {
		t.Errorf("got order %q, want %q", got, "first middle_one last")
	}
	_, err = s.order([]string{"first"}, func(string) ([]byte, error) { return object(t, "nowhere"), nil })
	if err == nil || !strings.Contains(err.Error(), "nowhere, which first needs") {
		t.Errorf("a module that needs one that is missing: got error %v", err)
	}
}

func newMModules() *moduleSet {
	s := newModuleSet()
	for _, path := range []string{"/a/last.ko", "/a/middle-one.ko.xz", "/b/first.ko", "/b/first.kontakt", "/b/modules.order"} {
		s.add(path)
	}
	return s
}

// object is an ELF file with a section .modinfo.
func object(t *testing.T, depends string) []byte {
	t.Helper()
	info := "license=GPL\x00depends=" + depends + "\x00name=x\x00"
	names := "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	put := func(v ...any) {
		for _, v := range v {
			if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	at := uint64(64 + len(info) + len(names))
	put([]byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00"), uint16(1), uint16(62), uint32(1),
		uint64(0), uint64(0), at, uint32(0), uint16(64), uint16(0), uint16(0), uint16(64), uint16(3), uint16(2))
	put([]byte(info), []byte(names))
	put(make([]byte, 64))
	section := func(name, kind uint32, off, size int) {
		put(name, kind, uint64(0), uint64(0), uint64(off), uint64(size), uint32(0), uint32(0), uint64(1), uint64(0))
	}
	section(1, 1, 64, len(info))
	section(10, 3, 64+len(info), len(names))
	return b.Bytes()
}

func TestAnImageThatIsNoKernelIsRefused(t *testing.T) {
	good := make([]byte, 0x300*10)
	good[0x1f1] = 1
	copy(good[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(good[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(good[0x248:], 16)
	binary.LittleEndian.PutUint32(good[0x24c:], 104)
	p, err := payload(good)
	if err != nil || len(p) != 100 || &p[0] != &good[1024+16] {
		t.Errorf("got %d bytes, %v, want the 100 at 1040", len(p), err)
	}
	for what, spoil := range map[string]func([]byte) []byte{
		"short":       func(b []byte) []byte { return b[:0x24f] },
		"no magic":    func(b []byte) []byte { b[0x202] = 0; return b },
		"old":         func(b []byte) []byte { b[0x206], b[0x207] = 7, 2; return b },
		"far payload": func(b []byte) []byte { b[0x24b] = 0x7f; return b },
		"long":        func(b []byte) []byte { b[0x24f] = 0x7f; return b },
		"empty":       func(b []byte) []byte { b[0x24c] = 0; return b },
	} {
		if p, err := payload(spoil(bytes.Clone(good))); err == nil {
			t.Errorf("%s: got %d bytes, want an error", what, len(p))
		}
	}
	if _, err := unpack(t.Context(), []byte("plain")); err == nil {
		t.Error("data that is not compressed was unpacked")
	}
}

func TestTheArchiveIsACpioArchive(t *testing.T) {
	host := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(host, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	a := newArchive(&b)
	a.char("/dev/console", 0o600, 5, 1)
	a.copyFile("/bin/deep/program", 0o755, host)
	a.file("/bin/empty", 0o644, nil)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for rest := b.Bytes(); ; {
		field := func(i int) int {
			v, err := strconv.ParseUint(string(rest[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(v)
		}
		if string(rest[:6]) != "070701" {
			t.Fatalf("got magic %q", rest[:6])
		}
		round := func(n int) int { return (n + 3) &^ 3 }
		name := string(rest[110 : 110+field(11)-1])
		if name == "TRAILER!!!" {
			break
		}
		data := rest[round(110+field(11)):][:field(6)]
		got = append(got, fmt.Sprintf("%s %o %d,%d %q", name, field(1), field(9), field(10), data))
		rest = rest[round(110+field(11))+round(field(6)):]
	}
	want := []string{
		`dev 40755 0,0 ""`, `dev/console 20600 5,1 ""`,
		`bin 40755 0,0 ""`, `bin/deep 40755 0,0 ""`, `bin/deep/program 100755 0,0 "12345"`, `bin/empty 100644 0,0 ""`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	a = newArchive(&b)
	a.copyFile("/x", 0o644, filepath.Join(filepath.Dir(host), "missing"))
	if err := a.close(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("archiving a file that does not exist: got %v", err)
	}
}

func TestAWireCarriesFramesUntilItIsCut(t *testing.T) {
	w, err := NewCable()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	buf := make([]byte, maxFrame)
	pass := func(from, to int, frame string) {
		t.Helper()
		if _, err := w.End(from).Write([]byte(frame)); err != nil {
			t.Fatal(err)
		}
		if n, err := w.End(to).Read(buf); err != nil || string(buf[:n]) != frame {
			t.Fatalf("got %q, %v, want %q", buf[:n], err, frame)
		}
	}
	pass(0, 1, "there")
	pass(1, 0, "and back")
	w.Cut()
	if _, err := w.End(0).Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	// What follows the lost frame arrives, so the lost one was not kept.
	for _, lost := w.Frames(); lost == 0; _, lost = w.Frames() {
	}
	w.Mend()
	pass(0, 1, "mended")
	carried, lost := w.Frames()
	for carried+lost < 4 { // a frame arrives before it is counted
		carried, lost = w.Frames()
	}
	if carried != 3 || lost != 1 {
		t.Errorf("carried %d frames and lost %d, want 3 and 1", carried, lost)
	}
}
