package memnode

import (
	"strings"
	"testing"

	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

// fewWindows is a device that has no more than so many windows.
type fewWindows struct {
	verbs.Device
	n int
}

func (d fewWindows) Attr() verbs.DeviceAttr {
	a := d.Device.Attr()
	a.MaxMW = d.n
	return a
}

// starts reports how a node starts on a device with so many windows.
func starts(t *testing.T, windows int, cfg Config) error {
	t.Helper()
	dev, err := inproc.NewFabric().NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	n, err := New(fewWindows{dev, windows}, cfg)
	if err == nil {
		n.Close()
	}
	return err
}

func TestTooFewWindowsAreRefusedWithWhatToDo(t *testing.T) {
	for _, test := range []struct {
		manager    string
		have       int
		chunk      int64
		says       []string
		enough     int   // windows
		larger     int64 // chunks that the same device can lend
		byTheNodes int64 // that have a device each; 0 if that would not do
	}{
		{OneSided, 100, 4096, []string{"3072 windows are needed to lend 4MiB in chunks of 4KiB by onesided", "has 100", "chunks of 128KiB", "by 31 nodes"}, 3072, 128 << 10, 31},
		{RPCMW, 1000, 4096, []string{"1024 windows are needed", "has 1000", "chunks of 8KiB", "by 2 nodes"}, 1024, 8 << 10, 2},
		{FineMem, 76, 4096, []string{"windows are needed to lend 4MiB in chunks of 4KiB by finemem", "chunks of 1MiB"}, 2248, 1 << 20, 0},
		{FineMem, 20, 1 << 20, []string{"76 windows are needed", "has 20", "lend less"}, 76, 0, 0},
	} {
		cfg := Config{Lend: 4 << 20, ChunkSize: int(test.chunk), Manager: test.manager}
		err := starts(t, test.have, cfg)
		for _, says := range test.says {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s, %d windows: got error %v, want one that says %q", test.manager, test.have, err, says)
			}
		}
		// What it says is so.
		if err := starts(t, test.enough, cfg); err != nil {
			t.Errorf("%s, %d windows: %v", test.manager, test.enough, err)
		}
		if test.larger > 0 {
			cfg := cfg
			cfg.ChunkSize = int(test.larger)
			if err := starts(t, test.have, cfg); err != nil {
				t.Errorf("%s, chunks of %d, as was said: %v", test.manager, test.larger, err)
			}
		}
		if test.byTheNodes > 0 {
			cfg := cfg
			cfg.Lend = cfg.Lend / test.byTheNodes
			if err := starts(t, test.have, cfg); err != nil {
				t.Errorf("%s, a part of %d, as was said: %v", test.manager, test.byTheNodes, err)
			}
		}
	}
}

// An rkey tells 16 M windows apart, whatever the device says.
func TestNoDeviceHasMoreWindowsThanKeys(t *testing.T) {
	cfg, err := Config{Lend: 64 << 30, ChunkSize: 4096, Manager: FineMem}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range []int{0, 1 << 30} {
		err = cfg.checkWindows(verbs.DeviceAttr{MaxMW: device})
		if want := "lend in chunks of 16KiB, or by 3 nodes"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one that says %q", err, want)
		}
	}
	cfg.Lend = 28 << 30
	if err := cfg.checkWindows(verbs.DeviceAttr{}); err != nil {
		t.Errorf("28 GiB in chunks of 4 KiB: %v", err)
	}
}

func TestODRPIsRefusedOnADeviceThatReadsAhead(t *testing.T) {
	dev, err := inproc.NewFabric().NewDevice(softnic.Config{Prefetch: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	n, err := New(dev, Config{Manager: ODRP, Lend: 1 << 20, ChunkSize: 4096})
	if err == nil {
		n.Close()
		t.Fatal("a node starts whose chains run what they were before they were rewritten")
	}
	if want := "lend by " + OneSided; !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want it to say %q", err, want)
	}
}
