//go:build guests

package vm

import (
	"path/filepath"
	"testing"
	"time"

	"polder/robustness/rdma/plan"
)

// TestContainersOfVersion2 runs robustness' tests of small containers in a guest,
// whose control groups are of version 2.
func TestContainersOfVersion2(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := t.TempDir()
	polder, tests := filepath.Join(dir, "polder"), filepath.Join(dir, "robustness.test")
	static := []string{"CGO_ENABLED=0"}
	if err := Build(t.Context(), polder, "polder/cmd/polder", static, "build", "-ldflags=-s -w"); err != nil {
		t.Fatal(err)
	}
	if err := Build(t.Context(), tests, "polder/robustness", static, "test", "-c", "-ldflags=-s -w"); err != nil {
		t.Fatal(err)
	}
	res := run(t, Config{
		Name: "container", Kernel: r.kernel, Init: r.init, MemoryMiB: 2048,
		Files: map[string]string{"/bin/polder": polder, "/bin/robustness.test": tests},
		Plan: plan.Plan{
			Env: []string{"TEST_BINARY=/bin/polder"},
			Steps: []plan.Step{{
				Name:    "containers",
				Args:    []string{"/bin/robustness.test", "-test.v", "-test.run", "^(TestANodeKeepsToItsContainer|TestANodeRefusesToLendMoreThanThereIs)$/^by_default$"},
				Tests:   3, // none is skipped: the first has a subtest
				Timeout: 5 * time.Minute,
			}},
		},
		Timeout: 6 * time.Minute,
		Console: func(line string) { t.Log(line) },
	})
	if res.Err != nil {
		t.Fatal(res.Err)
	}
}
