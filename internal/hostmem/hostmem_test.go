package hostmem

import (
	"os"
	"path/filepath"
	"testing"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const meminfo = "MemTotal:       1000000 kB\nMemFree:         100000 kB\nMemAvailable:    400000 kB\n"

func TestIdleMemoryIsWhatTheTightestLimitLeaves(t *testing.T) {
	for _, c := range []struct {
		name             string
		proc, cgroup     map[string]string
		total, available int64
		stalled          float64
	}{
		{"no groups", map[string]string{"meminfo": meminfo}, nil, 1000000 << 10, 400000 << 10, 0},
		{
			"version 2, limit on the parent",
			map[string]string{"meminfo": meminfo, "self/cgroup": "0::/a/b\n", "pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0 avg60=0 avg300=0 total=7\n"},
			map[string]string{
				"a/memory.max": "100000\n", "a/memory.current": "60000\n", "a/memory.stat": "anon 1\ninactive_file 10000\n",
				"a/b/memory.max": "max\n", "a/b/memory.current": "60000\n",
			},
			100000, 50000, 1.5,
		},
		{
			"version 1",
			map[string]string{"meminfo": meminfo, "self/cgroup": "3:cpu:/z\n2:memory:/c\n1:name=systemd:/\n"},
			map[string]string{
				"memory/c/memory.limit_in_bytes": "200000\n", "memory/c/memory.usage_in_bytes": "150000\n",
				"memory/c/memory.stat":         "total_inactive_file 20000\n",
				"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "999999\n",
			},
			200000, 70000, 0,
		},
		{
			"version 2, unlimited",
			map[string]string{"meminfo": meminfo, "self/cgroup": "0::/a\n"},
			map[string]string{"a/memory.max": "max\n", "a/memory.high": "max\n", "a/memory.current": "2000\n"},
			1000000 << 10, 400000 << 10, 0,
		},
		{
			"version 2, slowed down before it is killed",
			map[string]string{"meminfo": meminfo, "self/cgroup": "0::/a\n"},
			map[string]string{"a/memory.max": "90000\n", "a/memory.high": "70000\n", "a/memory.current": "20000\n"},
			70000, 50000, 0,
		},
		{
			"version 2, nested: the tightest limit and the fullest group are different ones",
			map[string]string{"meminfo": meminfo, "self/cgroup": "0::/a/b\n"},
			map[string]string{
				"a/memory.max": "100000\n", "a/memory.current": "95000\n",
				"a/b/memory.max": "50000\n", "a/b/memory.current": "10000\n",
			},
			50000, 5000, 0,
		},
		{
			"version 2, a container whose groups have a namespace",
			map[string]string{"meminfo": meminfo, "self/cgroup": "0::/\n"},
			map[string]string{"memory.max": "80000\n", "memory.current": "30000\n"},
			80000, 50000, 0,
		},
		{
			"version 1, a container whose groups have none",
			map[string]string{"meminfo": meminfo, "self/cgroup": "4:memory:/docker/abc\n"},
			map[string]string{"memory/memory.limit_in_bytes": "80000\n", "memory/memory.usage_in_bytes": "30000\n"},
			80000, 50000, 0,
		},
		{
			"version 1, an ancestor that is not visible",
			map[string]string{"meminfo": meminfo, "self/cgroup": "4:memory:/\n"},
			map[string]string{
				"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "30000\n",
				"memory/memory.stat": "hierarchical_memory_limit 60000\ntotal_inactive_file 0\n",
			},
			60000, 30000, 0,
		},
		{
			"version 1, mounted with another controller",
			map[string]string{"meminfo": meminfo, "self/cgroup": "4:memory,hugetlb:/c\n"},
			map[string]string{"memory,hugetlb/c/memory.limit_in_bytes": "70000\n", "memory,hugetlb/c/memory.usage_in_bytes": "20000\n"},
			70000, 50000, 0,
		},
		{
			"hybrid: memory is under version 1",
			map[string]string{"meminfo": meminfo, "self/cgroup": "4:memory:/c\n0::/u\n"},
			map[string]string{
				"memory/c/memory.limit_in_bytes": "200000\n", "memory/c/memory.usage_in_bytes": "50000\n",
				"unified/u/cgroup.procs": "1\n",
			},
			200000, 150000, 0,
		},
		{
			"hybrid: memory is under version 2",
			map[string]string{"meminfo": meminfo, "self/cgroup": "4:cpu:/c\n0::/u\n"},
			map[string]string{"unified/u/memory.max": "200000\n", "unified/u/memory.current": "50000\n"},
			200000, 150000, 0,
		},
		{
			"a group that is over its limit",
			map[string]string{"meminfo": meminfo, "self/cgroup": "0::/a\n"},
			map[string]string{"a/memory.max": "1000\n", "a/memory.current": "2000\n"},
			1000, 0, 0,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Host{Proc: tree(t, c.proc), Cgroup: tree(t, c.cgroup)}
			m, err := h.Read()
			if err != nil {
				t.Fatal(err)
			}
			if m.Total != c.total || m.Available != c.available || m.Stalled != c.stalled {
				t.Errorf("got %+v, want %d, %d, %v", m, c.total, c.available, c.stalled)
			}
		})
	}
}

// TestWhatBindsIsNamed: the group, if it leaves less than the host has.
func TestWhatBindsIsNamed(t *testing.T) {
	h := Host{Proc: tree(t, map[string]string{"meminfo": meminfo, "self/cgroup": "0::/pod/app\n"}),
		Cgroup: tree(t, map[string]string{
			"pod/memory.max": "90000000\n", "pod/memory.current": "80000000\n",
			"pod/app/memory.max": "50000000\n", "pod/app/memory.current": "1000000\n",
		})}
	m, err := h.Read()
	if err != nil || m.Bound != "the control group /pod" || m.Available != 10000000 {
		t.Errorf("got %+v, %v, want the group /pod with 10000000 bytes left", m, err)
	}
	if m.Reserve() != leastReserve || m.Spare() != 0 {
		t.Errorf("the reserve is %d and %d are to spare, want %d and none", m.Reserve(), m.Spare(), leastReserve)
	}
	h.Cgroup = tree(t, map[string]string{"pod/memory.max": "900000000000\n", "pod/memory.current": "1\n"})
	if m, err = h.Read(); err != nil || m.Bound != "the host's memory" {
		t.Errorf("under a limit beyond the host's memory: got %+v, %v", m, err)
	}
	if want := int64(400000<<10) - leastReserve; m.Spare() != want {
		t.Errorf("%d bytes are to spare, want %d", m.Spare(), want)
	}
}

func TestThisHostCanBeMeasured(t *testing.T) {
	m, err := Host{}.Read()
	if err != nil {
		t.Fatal(err)
	}
	if m.Total <= 0 || m.Available <= 0 || m.Available > m.Total {
		t.Errorf("got %+v", m)
	}
}

func TestAHostWithoutMeminfoIsAnError(t *testing.T) {
	for _, files := range []map[string]string{nil, {"meminfo": "nonsense\n"}} {
		if m, err := (Host{Proc: tree(t, files)}).Read(); err == nil {
			t.Errorf("got %+v of %v", m, files)
		}
	}
}

func TestTheReserveIsRaisedWhileSomebodyWaits(t *testing.T) {
	i := Idle{Reserve: 1600}
	look := func(available int64, stalled float64) {
		i.Note(Memory{Total: 1 << 20, Available: available, Stalled: stalled})
	}
	want := func(beyond int64, urgent bool) {
		t.Helper()
		if i.Beyond() != beyond || i.Urgent() != urgent {
			t.Errorf("%d bytes beyond the reserve, urgent %v, want %d, %v", i.Beyond(), i.Urgent(), beyond, urgent)
		}
	}
	look(10000, 7) // what was before the first look is not known
	want(8400, false)
	if i.Next() != Calm {
		t.Errorf("looks again after %v, want %v", i.Next(), Calm)
	}
	look(1600, 8)
	want(-100, false)
	if i.Next() != Tense {
		t.Errorf("looks again after %v, want %v", i.Next(), Tense)
	}
	look(700, 8.0005) // 500 µs are nothing: it goes down again
	want(-999, true)
	for s := range 100 {
		look(2000, 9+float64(s))
	}
	want(2000-2*1600, false) // at most twice
}
