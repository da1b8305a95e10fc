package arena

import (
	"slices"
	"testing"
)

func TestPagesAreTouchedByWritesAndNotAnyMoreWhenPunched(t *testing.T) {
	m, err := Anonymous(4*PageSize, false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	p, err := OpenPagemap()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	check := func(off int, want ...bool) {
		t.Helper()
		got := make([]bool, len(want))
		if err := p.Touched(m.Bytes()[off:], got); err != nil || !slices.Equal(got, want) {
			t.Errorf("from %d: got %v (%v), want %v", off, got, err, want)
		}
	}
	check(0, false, false, false, false)
	m.Bytes()[PageSize+5] = 1
	m.Bytes()[4*PageSize-1] = 1
	check(0, false, true, false, true)
	check(PageSize, true, false)
	if err := m.Punch(PageSize, PageSize); err != nil {
		t.Fatal(err)
	}
	check(0, false, false, false, true)
}
