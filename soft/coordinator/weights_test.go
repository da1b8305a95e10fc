package coordinator

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"polder/soft/wire"
)

func TestWeightsThatCannotBeAreRefused(t *testing.T) {
	for in, want := range map[string]string{
		"":                      "want name:NAME=WEIGHT, user:USER=WEIGHT or cgroup:/PATH=WEIGHT",
		"web=2":                 "want name:NAME=WEIGHT",
		"name:web":              "want name:NAME=WEIGHT",
		"name:=2":               "want name:NAME=WEIGHT",
		"pid:7=2":               "want name:NAME=WEIGHT",
		"name:web=":             `the weight is ""`,
		"name:web=heavy":        `the weight is "heavy": want a number above 0, of at most a million`,
		"name:web=0":            `the weight is "0"`,
		"name:web=-1":           `the weight is "-1"`,
		"name:web=NaN":          `the weight is "NaN"`,
		"name:web=2e6":          `the weight is "2e6"`,
		"user:nobody.of.that=1": `there is no user "nobody.of.that" on this host`,
		"cgroup:system.slice=1": `the control group is "system.slice": want its path below /sys/fs/cgroup`,
	} {
		if _, err := ParseWeight(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", in, err, want)
		}
	}
}

func TestAFileOfWeightsIsReadOrItsLineIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weights")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# of the shop\n\nname: polder serve * = 2.5\n  user:0=4\ncgroup:/a/b/=0.5\n")
	list, err := ReadWeights(path)
	if err != nil || len(list) != 3 || list[0] != (Weight{byName, "polder serve *", 0, 2.5}) ||
		list[1] != (Weight{byUser, "0", 0, 4}) || list[2] != (Weight{byCgroup, "/a/b", 0, 0.5}) {
		t.Errorf("got %+v, %v", list, err)
	}
	write("name:a=1\n# so\nname:b=much\n")
	if list, err := ReadWeights(path); err == nil || !strings.Contains(err.Error(), path+`, line 3: "name:b=much": the weight is "much"`) {
		t.Errorf("got %v, %v, want an error with the file and the line", list, err)
	}
	if _, err := ReadWeights(path + ".gone"); err == nil {
		t.Error("a file that is not there was read")
	}
}

// TestTheFirstWeightThatIsAboutAClientCounts: the client is this process, as the kernel
// says, and calls itself "raw".
func TestTheFirstWeightThatIsAboutAClientCounts(t *testing.T) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	own := strings.SplitN(first, ":", 3)[2]
	uid := strconv.Itoa(os.Getuid())
	host := newHost(reserve + 64<<20)
	c, socket := start(t, host, func(cfg *Config) { cfg.MaxWeight = 3 })
	raw := connect(t, socket, 8)
	raw.hello(t, wire.Hello{Version: wire.Version, Name: "raw", Weight: 5})
	until(t, "the client is there", func() bool { return len(c.Stats().MoreByClient) == 1 })
	for _, tt := range []struct {
		list []string
		want float64
	}{
		{nil, 3}, // what it claims, within bounds
		{[]string{"name:raw=7"}, 7},
		{[]string{"name:ra*=8"}, 8},
		{[]string{"name:ra=8", "name:raw2=8", "name:x*=8"}, 3},
		{[]string{"user:" + uid + "=9", "name:raw=7"}, 9},
		{[]string{"user:12345678=9", "name:raw=7"}, 7},
		{[]string{"cgroup:" + own + "=11"}, 11},
		{[]string{"cgroup:/=12"}, 12},
		{[]string{"cgroup:" + strings.TrimSuffix(own, "/") + "/below=11"}, 3},
		{[]string{"cgroup:/nowhere=11", "name:*=0.25"}, 0.25},
	} {
		var list []Weight
		for _, s := range tt.list {
			w, err := ParseWeight(s)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, w)
		}
		c.SetWeights(list)
		if got := c.Stats().MoreByClient[0].Weight; got != tt.want {
			t.Errorf("%q: got a weight of %v, want %v", tt.list, got, tt.want)
		}
	}
}

func TestAWeightMovesMemory(t *testing.T) {
	r := restart(t, reserve+256<<20, 256<<20)
	first, _ := r.come(16, 16)
	second, _ := r.come(16, 16)
	divide := func() {
		for range 20 {
			first.costs(1e-3)
			second.costs(1e-3)
			r.pass(time.Second)
		}
	}
	divide()
	if first.target > 2*second.target || second.target > 2*first.target {
		t.Errorf("of two that are alike one has %d segments, the other %d", first.target, second.target)
	}
	first.weight = 10 // as weigh sets it
	divide()
	if first.target < 3*second.target {
		t.Errorf("one that weighs ten times as much has %d segments, the other %d", first.target, second.target)
	}
}

func TestAControlGroupIsNotAnotherWhoseNameItBegins(t *testing.T) {
	s := &session{cgroups: []string{"/", "/a/bc/d"}}
	for path, want := range map[string]bool{"/": true, "/a": true, "/a/bc": true, "/a/bc/d": true, "/a/b": false, "/a/bc/d/e": false} {
		if got := s.concerns(Weight{by: byCgroup, of: path}); got != want {
			t.Errorf("a weight of %s concerns who is in %q: got %v, want %v", path, s.cgroups, got, want)
		}
	}
}
