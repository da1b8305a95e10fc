package vm

import "testing"

func TestTheGuestIsToldHowFastItsClockRuns(t *testing.T) {
	a, b := tscKHz(), tscKHz()
	if a < 500_000 || a > 10_000_000 || max(a, b)-min(a, b) > a/100 {
		t.Errorf("two measurements gave %d and %d kHz, want the same, between 0.5 and 10 GHz", a, b)
	}
}
