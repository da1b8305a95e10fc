package remote

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"polder/far"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/pool/pooltest"
)

// A get of a table, by one caller and by several at once. The node is in this
// process, too; polder bench far component has it in another one.
func BenchmarkTableGet(b *testing.B) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP, pooltest.SHM} {
		for _, callers := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/%d", s.Name, callers), func(b *testing.B) {
				c := pooltest.NewCluster(b, s, memnode.Config{
					Lend: 64 << 20, ChunkSize: 1 << 20, Components: component.Config{Memory: 48 << 20, ClientMemory: 24 << 20, Time: time.Second},
				})
				table, err := far.NewRemoteTable(b.Context(), NewDevice(c.Open(pool.Config{}).Pool))
				if err != nil {
					b.Fatal(err)
				}
				const keys = 10_000
				for i := range uint64(keys) {
					if err := table.Put(b.Context(), binary.LittleEndian.AppendUint64(nil, i), make([]byte, 64)); err != nil {
						b.Fatal(err)
					}
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
							if buf, err = table.Get(context.Background(), k[:], buf[:0]); err != nil {
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
