package pooltest

import (
	"context"
	"net"
	"testing"

	"polder/internal/testaddr"
	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// TCP is the suite's set-up over verbs/tcp on the loopback interface.
var TCP = Setup{
	Name:   "tcp",
	Fabric: func(testing.TB) Fabric { return tcpFabric{} },
}

// InPlace is TCP with nodes that pass their memory to pools, which read it in place.
var InPlace = Setup{Name: "tcp, in place", Fabric: TCP.Fabric, InPlace: true}

type tcpFabric struct{}

func (tcpFabric) NewDevice() (verbs.Device, error) { return tcp.NewDevice(softnic.Config{}) }

func (tcpFabric) Listen(dev verbs.Device, addr string) (verbs.Listener, error) {
	if addr == "" {
		addr = net.JoinHostPort(testaddr.Host(), "0")
	}
	return tcp.Listen(dev, addr, tcp.Config{})
}

func (tcpFabric) Dial(ctx context.Context, dev verbs.Device, addr string) (verbs.Conn, error) {
	return tcp.Dial(ctx, dev, addr, tcp.Config{})
}
