package config

import (
	"strings"
	"testing"
)

func TestNodeAddressesMayBeSockets(t *testing.T) {
	var addr string
	v := NewNodeAddress(&addr)
	for _, s := range []string{"127.0.0.1:7070", "unix:/run/polder/node.sock"} {
		if err := v.Set(s); err != nil || addr != s || v.String() != s {
			t.Errorf("%s: got %q, %v", s, addr, err)
		}
	}
	for _, s := range []string{"", "unix:", "unix:relative", "/run/polder/node.sock"} {
		if err := v.Set(s); err == nil || !strings.Contains(err.Error(), "unix:") {
			t.Errorf("%q: got %v, want an error that says how a socket is named", s, err)
		}
	}
	if err := NewAddress(&addr, false).Set("unix:/run/x"); err == nil {
		t.Error("a socket was accepted where only HOST:PORT can be")
	}
	var far []string
	if err := NewAddresses(&far).Set("unix:/a, unix:/b"); err != nil || len(far) != 2 || far[1] != "unix:/b" {
		t.Errorf("got %q, %v", far, err)
	}
}

func TestFarAddressesMayBeBrokers(t *testing.T) {
	var far []string
	if err := NewFarAddresses(&far).Set("broker:/run/polder/broker.sock"); err != nil || len(far) != 1 {
		t.Errorf("got %q, %v", far, err)
	}
	for _, s := range []string{"broker:", "broker:relative", "/run/polder/broker.sock"} {
		if err := NewFarAddresses(&far).Set(s); err == nil || !strings.Contains(err.Error(), "broker:") {
			t.Errorf("%q: got %v, want an error that says how a broker is named", s, err)
		}
	}
	if err := NewAddresses(&far).Set("broker:/a"); err == nil {
		t.Error("a broker was accepted where only nodes can be")
	}
}
