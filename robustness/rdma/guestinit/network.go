package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"polder/robustness/rdma/plan"
)

// network brings up lo, and eth0 if the guest is on a wire, and creates the
// Soft-RoCE device over one of them.
func network(p *plan.Plan) error {
	if err := setUp("lo", netip.MustParsePrefix("127.0.0.1/8")); err != nil {
		return err
	}
	under := "lo"
	if p.Address != "" {
		addr, err := netip.ParsePrefix(p.Address)
		if err != nil {
			return fmt.Errorf("cannot use the guest's address: %w", err)
		}
		under = "eth0"
		if err := setUp(under, addr); err != nil {
			return err
		}
	}
	if p.Device == "" {
		return nil
	}
	if err := addRXE(p.Device, under); err != nil {
		return fmt.Errorf("cannot create Soft-RoCE device %s over %s: %w", p.Device, under, err)
	}
	return nil
}

// setUp gives a network interface its address and brings it up.
func setUp(name string, addr netip.Prefix) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot set up %s: %w", name, err)
	}
	defer unix.Close(fd)
	set := func(what string, request uint, fill func(*unix.Ifreq) error) error {
		ifr, err := unix.NewIfreq(name)
		if err == nil {
			err = fill(ifr)
		}
		if err == nil {
			err = unix.IoctlIfreq(fd, request, ifr)
		}
		if err != nil {
			return fmt.Errorf("cannot set the %s of %s: %w", what, name, err)
		}
		return nil
	}
	ip := addr.Addr().As4()
	mask := net.CIDRMask(addr.Bits(), 32)
	return errors.Join(
		set("address", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(ip[:]) }),
		set("network mask", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask) }),
		set("flags", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error {
			r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
			return nil
		}))
}

// The kernel's interface for RDMA devices (rdma/rdma_netlink.h).
const (
	nldevNewLink  = 5<<10 | 3 // RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK
	attrDevName   = 2
	attrNdevName  = 51
	attrLinkType  = 65
	netlinkHeader = 16
)

// addRXE does what "rdma link add DEVICE type rxe netdev UNDER" does.
func addRXE(device, under string) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	msg := make([]byte, netlinkHeader)
	for _, a := range []struct {
		kind  uint16
		value string
	}{{attrDevName, device}, {attrLinkType, "rxe"}, {attrNdevName, under}} {
		msg = binary.NativeEndian.AppendUint16(msg, uint16(4+len(a.value)+1))
		msg = binary.NativeEndian.AppendUint16(msg, a.kind)
		msg = append(append(msg, a.value...), 0)
		for len(msg)%4 != 0 {
			msg = append(msg, 0)
		}
	}
	binary.NativeEndian.PutUint32(msg[0:], uint32(len(msg)))
	binary.NativeEndian.PutUint16(msg[4:], nldevNewLink)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < netlinkHeader+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("the kernel answered with %x", answer[:n])
	}
	if errno := int32(binary.NativeEndian.Uint32(answer[netlinkHeader:])); errno != 0 {
		return unix.Errno(-errno)
	}
	return nil
}
