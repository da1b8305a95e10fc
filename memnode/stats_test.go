package memnode

import (
	"reflect"
	"testing"
)

// TestStatsAddUp: no field is left out.
func TestStatsAddUp(t *testing.T) {
	one := Stats{}
	v := reflect.ValueOf(&one).Elem()
	for i := range v.NumField() {
		v.Field(i).SetInt(1)
	}
	sum := one
	sum.Add(one)
	for i := range v.NumField() {
		name, want := v.Type().Field(i).Name, int64(2)
		if name == "ChunkSize" || name == "RebindLag" { // alike everywhere; the longest
			want = 1
		}
		if got := reflect.ValueOf(sum).Field(i).Int(); got != want {
			t.Errorf("%s: got %d, want %d", name, got, want)
		}
	}
}
