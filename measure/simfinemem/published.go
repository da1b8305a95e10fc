package simfinemem

// published is what FineMem's authors have published of an allocation of 4 KiB
// with 128 threads, in microseconds; 0 stands for what they have not.
type published struct{ mean, p99, retries float64 }

var (
	publishedFineMem = published{mean: 43.2, p99: 79.3, retries: 1.33}
	publishedScan    = published{mean: 763, p99: 16000, retries: 45}
)

// publishedRPC is how many times as long as FineMem's an allocation by RPC takes:
// FineMem's latency is "up to 95 % lower".
const publishedRPC = 20
