package hashes

import (
	"maps"
	"strings"
	"testing"
)

func FuzzList(f *testing.F) {
	f.Add([]byte("abcabc"), 3)
	f.Fuzz(func(t *testing.T, script []byte, max int) {
		var l List
		want := map[string]string{}
		for i, c := range script {
			field := string(rune('a' + c%16))
			if c%3 == 0 {
				var removed bool
				_, there := want[field]
				if l, removed = l.Remove([]byte(field)); removed != there {
					t.Fatalf("remove reported %v, want %v", removed, there)
				}
				delete(want, field)
				continue
			}
			value := strings.Repeat("v", int(c)*i%300)
			_, there := want[field]
			var added bool
			if l, added = l.Set([]byte(field), []byte(value)); added == there {
				t.Fatalf("set reported %v, want %v", added, !there)
			}
			want[field] = value
		}
		got := map[string]string{}
		for f, v := range l.All() {
			got[string(f)] = string(v)
		}
		if !maps.Equal(got, want) || l.Len() != len(want) {
			t.Errorf("got %v (%d), want %v", got, l.Len(), want)
		}
	})
}
