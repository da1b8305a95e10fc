package witness_test

import (
	"fmt"
	"slices"
	"testing"

	"polder/holder/witness"
)

// TestNamesHasEveryRegisterThatWasSet: also more than one reply has room for, with a witness that is down, and after
// the set was replaced by one with other witnesses.
func TestNamesHasEveryRegisterThatWasSet(t *testing.T) {
	all, addrs := startSet(t, 3)
	c := newClient(t, addrs...)
	var want []string
	check := func(when string) {
		t.Helper()
		got, err := c.Names(in(t))
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%s: there are %d registers, %v, want %d", when, len(got), err, len(want))
		}
	}
	check("at the beginning")
	for i := range 600 {
		name := fmt.Sprintf("register %04d", i)
		if _, err := newRegister(t, c, name).Swap(in(t), 0, []byte("x")); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
	}
	if _, _, err := newRegister(t, c, "never set").Read(in(t)); err != nil {
		t.Fatal(err)
	}
	check("when all are up")
	all[1].stop()
	check("when one is down")
	all[1].start(witness.Config{}) // so that a majority of the old set is sealed, and in no other
	others := addrs[:1:1]
	for range 2 {
		others = append(others, start(t, witness.Config{}).addr)
	}
	if _, err := newClient(t, others...).Change(in(t), others); err != nil {
		t.Fatal(err)
	}
	if _, err := newRegister(t, newClient(t, others...), "z").Swap(in(t), 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	want = append(want, "z")
	check("after the set was replaced, of which this client knows nothing")
}
