package component

import "testing"

func TestOnlyBoundedComponentsRunInTheNode(t *testing.T) {
	s := Set{"quick": {Bounded: true}, "slow": {}}
	inside := s.bounded()
	if _, ok := inside["quick"]; !ok || len(inside) != 1 {
		t.Errorf("got %v, want only the quick one", inside)
	}
	if len(s) != 2 {
		t.Error("the set has changed")
	}
}
