package memnode

import (
	"reflect"
	"testing"
)

// TestStatsAddUp: no field is left out.
func TestStatsAddUp(t *testing.T) {
	var one Stats
	eachNumber(reflect.ValueOf(&one).Elem(), func(_ string, v reflect.Value) { v.SetInt(1) })
	sum := one
	sum.Add(one)
	eachNumber(reflect.ValueOf(&sum).Elem(), func(name string, v reflect.Value) {
		want := int64(2)
		if name == "ChunkSize" || name == "RebindLag" { // alike everywhere; the longest
			want = 1
		}
		if got := v.Int(); got != want {
			t.Errorf("%s: got %d, want %d", name, got, want)
		}
	})
}

// eachNumber calls do for every field of a structure and of those within it.
func eachNumber(s reflect.Value, do func(name string, v reflect.Value)) {
	for i := range s.NumField() {
		if v := s.Field(i); v.Kind() == reflect.Struct {
			eachNumber(v, do)
		} else {
			do(s.Type().Field(i).Name, v)
		}
	}
}
