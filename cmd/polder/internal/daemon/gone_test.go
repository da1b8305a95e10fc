package daemon

import (
	"net"
	"net/netip"
	"testing"
)

// outward is an address of this machine that others may know, "" if there is none.
func outward(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			return p.Addr().String()
		}
	}
	return ""
}

// TestWhoseAddressRefusesConnectionsIsGone, if it is one that means the same everywhere.
func TestWhoseAddressRefusesConnectionsIsGone(t *testing.T) {
	listen := func(host string) (string, func()) {
		lis, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		return lis.Addr().String(), func() { lis.Close() }
	}
	local, end := listen("127.0.0.1")
	end()
	type owner struct {
		name, addr string
		want       bool
	}
	owners := []owner{
		{"a tool", "polder heap rm at host, process 7", false},
		{"one at every address", "0.0.0.0:6379", false},
		{"one that may be on another machine", local, false},
		{"this one, which may be", "127.0.0.1:6379", false},
		{"this one", "10.0.0.1:6379", true},
	}
	if host := outward(t); host != "" {
		lives, end := listen(host)
		defer end()
		ended, end := listen(host)
		end()
		owners = append(owners, owner{"one that listens", lives, false}, owner{"one that does not", ended, true})
	}
	for _, o := range owners {
		me := "10.0.0.1:6379"
		if o.addr == "127.0.0.1:6379" {
			me = o.addr
		}
		if got := ownerGone(me)(t.Context(), o.addr); got != o.want {
			t.Errorf("%s (%s) is gone: %v, want %v", o.name, o.addr, got, o.want)
		}
	}
}
