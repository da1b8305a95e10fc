package named_test

import (
	"errors"
	"reflect"
	"runtime"
	"testing"
	"time"

	"polder/far/named"
	"polder/partition"
)

func someManifest() *named.Manifest {
	return &named.Manifest{
		Epoch: 7, Nonce: 1 << 60, Beat: 3, Owner: "10.0.0.1:6379", Process: "boot/pid:[1]/2/3", Lease: time.Second,
		Sessions: map[string][]byte{"10.0.0.2:7070": {1, 2, 3}, "10.0.0.3:7070": {}},
		Root:     []byte("root"),
		Moved:    map[uint64]string{7<<32 + 1: "segment 30064771073 at 10.0.0.2:7070/chunk 3"},
	}
}

func FuzzDecodeManifest(f *testing.F) {
	f.Add(someManifest().Encode())
	f.Add((&named.Manifest{}).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := named.DecodeManifest(b)
		if err != nil {
			return
		}
		again, err := named.DecodeManifest(m.Encode())
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}

// TestAMapOfPartitionsIsNoManifest, and says so. What a heap leaves that was removed is vacant.
func TestAMapOfPartitionsIsNoManifest(t *testing.T) {
	if _, err := named.DecodeManifest((&partition.Map{Partitions: 1, Owner: []string{""}, Next: []string{""}}).Encode()); !errors.Is(err, named.ErrPartitions) {
		t.Errorf("a map of partitions is read with %v, want ErrPartitions", err)
	}
	if _, ok := named.Vacant(someManifest().Encode()); ok {
		t.Error("a heap is vacant")
	}
	if epoch, ok := named.Vacant((&named.Manifest{Epoch: 7}).Encode()); epoch != 7 || !ok {
		t.Errorf("a heap that was removed: %d, %v, want 7, true", epoch, ok)
	}
}

// TestAManifestIsReadAsItWasWritten, and no other bytes are taken for one.
func TestAManifestIsReadAsItWasWritten(t *testing.T) {
	want := someManifest()
	b := want.Encode()
	got, err := named.DecodeManifest(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for i := range b {
		c := append([]byte(nil), b...)
		c[i] ^= 1
		if _, err := named.DecodeManifest(c); err == nil {
			t.Errorf("a manifest whose byte %d was changed is taken for one", i)
		}
		if _, err := named.DecodeManifest(b[:i]); err == nil {
			t.Errorf("the first %d bytes of a manifest are taken for one", i)
		}
	}
}

// TestAManifestIsEncodedWithoutGarbage of the size of what packs it, also when garbage was collected since the last time.
func TestAManifestIsEncodedWithoutGarbage(t *testing.T) {
	m := someManifest()
	m.Encode()
	runtime.GC()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m.Encode()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
		t.Errorf("%d bytes are allocated for a manifest, want some KiB", n)
	}
}
