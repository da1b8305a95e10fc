package simfinemem

// ratios yields the figures that compare systems with each other, with the most threads.
func ratios(most map[string]outcome, yield func(figure) error) error {
	fine, ok := most[paperName]
	if !ok {
		return nil // not part of the plan
	}
	scan, rpc := most[scanName], most[rpcName]
	for _, f := range []figure{
		{scanName + " / FineMem", "mean", "x", ratio(scan.mean, fine.mean), publishedScan.mean / publishedFineMem.mean},
		{scanName + " / FineMem", "p99", "x", ratio(scan.p99, fine.p99), publishedScan.p99 / publishedFineMem.p99},
		{scanName + " / FineMem", "retries", "x", ratio(scan.retries, fine.retries), publishedScan.retries / publishedFineMem.retries},
		{rpcName + " / FineMem", "mean", "x", ratio(rpc.mean, fine.mean), publishedRPC},
	} {
		f.name = "4 KiB, " + count(mostThreads) + ": " + f.name
		if err := yield(f); err != nil {
			return err
		}
	}
	for _, m := range systems {
		if !m.ours {
			continue
		}
		name := "4 KiB, " + count(mostThreads) + ": FineMem / " + m.name
		for _, f := range []figure{
			{name, "mean", "x", ratio(fine.mean, most[m.name].mean), 0},
			{name, "p99", "x", ratio(fine.p99, most[m.name].p99), 0},
		} {
			if err := yield(f); err != nil {
				return err
			}
		}
	}
	return nil
}

func ratio[T ~int64 | ~float64](a, b T) float64 { return float64(a) / float64(b) }
