package tenancy

import (
	"testing"

	"polder/internal/arena"
)

func TestSizesTellHowManyChunksThereAre(t *testing.T) {
	for _, chunkSize := range []int{512, 2048, 4096, 1 << 16, 1 << 30} {
		for _, n := range []int{1, 7, 8, 9, 100} {
			size := Size(n, chunkSize)
			got, ok := Chunks(size, chunkSize)
			if !ok || got < n || Size(got, chunkSize) != size {
				t.Errorf("%d chunks of %d bytes make %d bytes, in which there are %d, %v", n, chunkSize, size, got, ok)
			}
		}
	}
	for _, size := range []int{-1, 0, arena.PageSize, 2*arena.PageSize + 1, 3 * arena.PageSize} {
		if n, ok := Chunks(size, 1<<16); ok {
			t.Errorf("%d chunks of 64 KiB in %d bytes", n, size)
		}
	}
}

func TestTheLeaseIsSharedAndEndsForGood(t *testing.T) {
	fd, err := arena.NewMemfd("test", Size(1, arena.PageSize))
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	var ends [2]*Lease
	for i := range ends {
		if ends[i], err = MapLease(fd); err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	if !ends[1].Valid() {
		t.Fatal("a new lease is not valid")
	}
	ends[0].Revoke()
	if ends[1].Valid() || ends[0].Valid() {
		t.Fatal("a revoked lease is valid")
	}
}
