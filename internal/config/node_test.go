package config

import (
	"strings"
	"testing"
	"time"
)

func TestNodeAddressesMayBeSockets(t *testing.T) {
	var addr string
	for _, a := range []string{"127.0.0.1:7070", "unix:/run/polder/node.sock"} {
		var list []string
		if err := NewAddresses(&list).Set(a); err != nil || len(list) != 1 || list[0] != a {
			t.Errorf("%s: got %q, %v", a, list, err)
		}
	}
	for _, s := range []string{"", "unix:", "unix:relative", "/run/polder/node.sock"} {
		if err := NewAddresses(new([]string)).Set(s); err == nil || !strings.Contains(err.Error(), "unix:") {
			t.Errorf("%q: got %v, want an error that says how a socket is named", s, err)
		}
	}
	if err := NewAddress(&addr, false).Set("unix:/run/x"); err == nil {
		t.Error("a socket was accepted where only HOST:PORT can be")
	}
	far := []string{"127.0.0.1:1"} // the default
	v := NewAddresses(&far)
	for _, more := range []string{"unix:/a, unix:/b", "127.0.0.1:2"} {
		if err := v.Set(more); err != nil {
			t.Fatal(err)
		}
	}
	if got := v.String(); got != "unix:/a,unix:/b,127.0.0.1:2" {
		t.Errorf("given twice, it is %s", got)
	}
	if err := v.Set("unix:/b"); err == nil {
		t.Error("an address was accepted twice")
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

func TestDurationsMayHaveAnUpperBound(t *testing.T) {
	d := time.Second
	v := NewDurationWithin(&d, time.Millisecond, time.Hour)
	for s, want := range map[string]string{"1us": "at least 1ms", "61m": "at most 1h0m0s", "1": "such as 5s"} {
		if err := v.Set(s); err == nil || !strings.Contains(err.Error(), want) || d != time.Second {
			t.Errorf("%s: got %v and %v, want an error with %q", s, d, err, want)
		}
	}
	if err := v.Set("1h"); err != nil || d != time.Hour {
		t.Errorf("1h: got %v, %v", d, err)
	}
}

func TestSockets(t *testing.T) {
	var path string
	v := NewSocket(&path)
	for _, s := range []string{"", "unix:", "unix:relative", "/run/x", "127.0.0.1:1"} {
		if err := v.Set(s); err == nil || !strings.Contains(err.Error(), "unix:") {
			t.Errorf("%q: got %v, want an error that says how a socket is named", s, err)
		}
	}
	if err := v.Set("unix:/run/x"); err != nil || path != "unix:/run/x" {
		t.Errorf("got %q, %v", path, err)
	}
}

func TestASizeMayBeAWord(t *testing.T) {
	n := int64(-1)
	v := NewSizeOr(&n, 0, 0, "half")
	if v.String() != "half" {
		t.Errorf("the default reads %q", v.String())
	}
	for s, want := range map[string]int64{"64MiB": 64 << 20, "0": 0, "half": -1} {
		if err := v.Set(s); err != nil || n != want {
			t.Errorf("%s: got %d, %v, want %d", s, n, err, want)
		}
	}
	if err := v.Set("all"); err == nil || !strings.Contains(err.Error(), `or "half"`) {
		t.Errorf("got %v, want an error that says what may be", err)
	}
}

func TestNamesInTheDNSAreChecked(t *testing.T) {
	for _, s := range []string{"nodes.test:7070", "nodes", "_polder._tcp.nodes.test.", "127.0.0.1:53/nodes.test", "[::1]:53/nodes:1", "ns.test/nodes:1"} {
		var far []string
		if err := NewFarAddresses(&far).Set("dns://" + s); err != nil || len(far) != 1 {
			t.Errorf("%s: %v", s, err)
		}
	}
	for s, want := range map[string]string{
		"": "a name", "a b": "a name", ":7070": "a name", "-a": "a name", "a..b": "a name",
		"nodes:": "a port", "nodes:x": "a port", "nodes:70000": "a port", "/nodes": "a server", "ns:x/nodes": "the server", "a/b/c": "a name",
	} {
		var far []string
		if err := NewFarAddresses(&far).Set("dns://" + s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error that names %s", s, err, want)
		}
	}
	var far []string
	if err := NewAddresses(&far).Set("dns://nodes:1"); err == nil {
		t.Error("a name in the DNS was taken where addresses are wanted")
	}
}

func TestClustersInEtcdAreChecked(t *testing.T) {
	for s, want := range map[string]int{"127.0.0.1:2379/a": 1, "h1:2379,h2:2379, [::1]:1/prod.1_x-y": 3} {
		var far []string
		if err := NewFarAddresses(&far).Set("etcd://" + s); err != nil || len(far) != 1 || far[0] != "etcd://"+s {
			t.Errorf("%s: got %q, %v", s, far, err)
		}
		var one string
		if err := NewEtcd(&one).Set("etcd://" + s); err != nil || one != "etcd://"+s {
			t.Errorf("%s: got %q, %v", s, one, err)
		}
		endpoints, cluster, err := ParseEtcd(one)
		if _, name, _ := strings.Cut(s, "/"); err != nil || len(endpoints) != want || cluster != name {
			t.Errorf("%s: got %q, %q, %v", s, endpoints, cluster, err)
		}
	}
	for s, want := range map[string]string{
		"": "etcd://HOST:PORT/NAME", "h:1": "etcd://HOST:PORT/NAME", "h:1,/a": "HOST:PORT", "h/a": "HOST:PORT", "h:x/a": "a port",
		":1/a": "a host", "h:1/": "a cluster", "h:1/a/b": "a cluster", "h:1/-a": "a cluster", "h:1/a,127.0.0.1:7070": "a cluster",
	} {
		var far []string
		if err := NewFarAddresses(&far).Set("etcd://" + s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error that names %s", s, err, want)
		}
		if err := NewEtcd(new(string)).Set("etcd://" + s); err == nil {
			t.Errorf("%s: it was taken", s)
		}
	}
	if err := NewAddresses(new([]string)).Set("etcd://h:1/a"); err == nil {
		t.Error("etcd was taken where addresses are wanted")
	}
	if err := NewEtcd(new(string)).Set("dns://h:1"); err == nil {
		t.Error("the DNS was taken for etcd")
	}
}
