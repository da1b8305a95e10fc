package partition

import "testing"

func TestSlotsAreThoseOfRedis(t *testing.T) {
	for key, want := range map[string]int{"": 0, "123456789": 0x31c3, "foo": 12182, "bar": 5061, "hello": 866} {
		if got := Slot([]byte(key)); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
	for key, tag := range map[string]string{
		"{user1000}.following": "user1000",
		"{user1000}.followers": "user1000",
		"foo{{bar}}zap":        "{bar",
		"foo{bar}{zap}":        "bar",
		"a{bar}b":              "bar",
	} {
		if got, want := Slot([]byte(key)), Slot([]byte(tag)); got != want {
			t.Errorf("slot of %q is %d, want %d, that of %q", key, got, want, tag)
		}
	}
	// CRC-16 of the whole key, bit by bit, as there is no hash tag in it.
	for _, key := range []string{"foo{}{bar}", "foo{bar", "foo}bar{", "}{", "{}"} {
		c := 0
		for _, b := range []byte(key) {
			for i := 7; i >= 0; i-- {
				if c = c<<1 ^ int(b>>i&1)<<16; c&0x10000 != 0 {
					c ^= 0x11021
				}
			}
		}
		if got, want := Slot([]byte(key)), c%Slots; got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
}

func TestRangesCoverAllSlots(t *testing.T) {
	for partitions := 1; partitions <= MaxPartitions; partitions++ {
		next := 0
		for p := range partitions {
			first, last := Range(p, partitions)
			if first != next || last < first || Of(first, partitions) != p || Of(last, partitions) != p {
				t.Fatalf("partition %d of %d has slots %d to %d, want from %d; these belong to %d and %d",
					p, partitions, first, last, next, Of(first, partitions), Of(last, partitions))
			}
			next = last + 1
		}
		if next != Slots {
			t.Fatalf("%d partitions end before slot %d, want %d", partitions, next, Slots)
		}
	}
}

func TestSlotDoesNotAllocate(t *testing.T) {
	key := []byte("{user1000}.following")
	if n := testing.AllocsPerRun(100, func() { Slot(key) }); n != 0 {
		t.Errorf("Slot allocates %v times, want 0", n)
	}
}
