package resp

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkSession measures commands without the network, in pipelines of 16
// over 10,000 keys.
func BenchmarkSession(b *testing.B) {
	for _, size := range []int{64, 1024, 4096} {
		for _, name := range []string{"SET", "GET"} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				const keys, pipeline = 10000, 16
				s := newTestSession(b)
				defer s.close()
				value := strings.Repeat("v", size)
				batches := make([][]byte, keys/pipeline)
				for i := range batches {
					var in strings.Builder
					for j := range pipeline {
						args := []string{name, fmt.Sprintf("key:%012d", i*pipeline+j)}
						s.feed([]byte(encode("SET", args[1], value)))
						if name == "SET" {
							args = append(args, value)
						}
						in.WriteString(encode(args...))
					}
					batches[i] = []byte(in.String())
				}
				b.ReportAllocs()
				b.ResetTimer()
				for i := 0; i < b.N; i += pipeline {
					s.feed(batches[i/pipeline%len(batches)])
				}
			})
		}
	}
}
