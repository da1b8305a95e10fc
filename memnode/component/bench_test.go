package component_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"polder/internal/active"
	"polder/pool"
	"polder/pool/pooltest"
)

// A get of a table, by one caller and by several at once.
func BenchmarkTableGet(b *testing.B) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		for _, callers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/%d", s.Name, callers), func(b *testing.B) {
				c := pooltest.NewCluster(b, s, node(time.Second))
				table := construct(b, c.Open(pool.Config{}).Pool, active.Table)
				const keys = 10_000
				for i := range keys {
					mustWrite(b, table, string(keyOf(i)), "0123456789012345678901234567890123456789012345678901234567890123")
				}
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for id := range callers {
					wg.Go(func() {
						var buf []byte
						var k [8]byte
						for i := id; i < b.N; i += callers {
							binary.LittleEndian.PutUint64(k[:], uint64(i*7919%keys))
							var err error
							if buf, err = table.Read(context.Background(), k[:], buf[:0]); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

func keyOf(i int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(i)) }
