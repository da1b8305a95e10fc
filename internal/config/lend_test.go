package config

import (
	"strings"
	"testing"
)

func TestAFixedSizeIsLentOrWhatIsIdle(t *testing.T) {
	for s, want := range map[string]struct {
		size int64
		idle bool
	}{
		"8GiB":       {8 << 30, false},
		"idle:8GiB":  {8 << 30, true},
		"idle:1.5MB": {1_500_000, true},
	} {
		size, idle := int64(1), !want.idle
		v := NewLend(&size, &idle, 512)
		if err := v.Set(s); err != nil || size != want.size || idle != want.idle {
			t.Errorf("Set(%q): %d, idle %v, %v, want %d, %v", s, size, idle, err, want.size, want.idle)
		}
		size, idle = 0, false
		if err := v.Set(s); err != nil {
			t.Fatal(err)
		}
		if err := v.Set(v.String()); err != nil || size != want.size || idle != want.idle {
			t.Errorf("what is printed for %q is %q, which is another value: %d, idle %v, %v", s, v.String(), size, idle, err)
		}
	}
	for s, say := range map[string]string{
		"idle":      `behind "idle:"`,
		"idle:":     "expected a size such as 64MiB",
		"idle:all":  "expected a size such as 64MiB",
		"idle:-1":   "expected a size such as 64MiB",
		"idle:1B":   "expected at least 512B",
		"busy:1GiB": "expected a size such as 64MiB",
		"Idle:1GiB": "expected a size such as 64MiB",
	} {
		size, idle := int64(7), false
		if err := NewLend(&size, &idle, 512).Set(s); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("Set(%q): got %v, want an error that says %q", s, err, say)
		}
		if size != 7 || idle {
			t.Errorf("Set(%q) has stored %d, idle %v although it failed", s, size, idle)
		}
	}
}
