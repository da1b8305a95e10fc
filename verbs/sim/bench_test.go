package sim

import (
	"testing"

	"polder/verbs"
)

// BenchmarkOperations is how many operations of a page 24 processes simulate in
// a second.
func BenchmarkOperations(b *testing.B) {
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpWrite, verbs.OpFetchAdd} {
		b.Run(op.String(), func(b *testing.B) {
			size := 4096
			if op == verbs.OpFetchAdd {
				size = 8
			}
			r := newRig(b, Testbed())
			const threads = 24
			for i := range threads {
				cq := r.client.newCQ(b)
				qp, _ := r.join(b, cq)
				n := (b.N + i) / threads
				wrs := []verbs.SendWR{r.request(op, size)}
				r.w.Go("thread", func(*Proc) error {
					for range n {
						if err := do(qp, cq, wrs...); err != nil {
							return err
						}
					}
					return nil
				})
			}
			b.ReportAllocs()
			b.ResetTimer()
			if err := r.w.Run(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
		})
	}
}
