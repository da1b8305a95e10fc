package resp

import (
	"fmt"
	"strings"
	"testing"

	"polder/resp/keyspace"
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

// BenchmarkWide measures commands with 20,000 keys, without the network.
func BenchmarkWide(b *testing.B) {
	const keys = 20_000
	mset, del := []string{"MSET"}, []string{"DEL"}
	for i := range keys {
		key := fmt.Sprintf("name:%08d", i)
		mset = append(mset, key, "0123456789abcdef")
		del = append(del, key)
	}
	commands := map[string]string{"MSET": encode(mset...), "DEL": encode(del...), "FLUSHALL": encode("FLUSHALL")}
	for _, c := range []struct{ name, before, reply string }{{"MSET", "FLUSHALL", "+OK\r\n"}, {"DEL", "MSET", fmt.Sprintf(":%d\r\n", keys)}} {
		b.Run(c.name, func(b *testing.B) {
			srv, _ := startServer(b, 4*roomy, Config{Loops: -1})
			s := srv.newSession()
			defer s.close()
			for range b.N {
				b.StopTimer()
				s.Tries = keyspace.MaxTries + 1 // it may wait for room
				s.feed([]byte(commands[c.before]))
				in := []byte(commands[c.name])
				s.Tries = keyspace.MaxTries + 1
				b.StartTimer()
				if reply := s.feed(in); string(reply) != c.reply {
					b.Fatalf("got %.100q, want %q", reply, c.reply)
				}
			}
		})
	}
}
