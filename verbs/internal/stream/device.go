package stream

import (
	"fmt"

	"polder/verbs"
	"polder/verbs/internal/endpoint"
	"polder/verbs/internal/softdev"
	"polder/verbs/softnic"
)

// A Device is a software RNIC with its listeners and connections.
type Device struct {
	*softdev.Device
	Ends endpoint.Ends
}

// NewDevice opens a software RNIC whose packets travel over sockets of a kind, which
// errors name.
func NewDevice(kind string, cfg softnic.Config) (*Device, error) {
	d, err := softdev.New(cfg, nil)
	if err == nil {
		err = d.ParkInPoller()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open a %s device: %w", kind, err)
	}
	return &Device{Device: d}, nil
}

// Close implements verbs.Device. It waits for the connections' goroutines,
// and so must not be called from a completion handler.
func (d *Device) Close() error {
	d.Ends.Close()
	return d.Device.Close()
}

// Of returns dev as a Device.
func Of(dev verbs.Device) (*Device, error) {
	d, ok := dev.(*Device)
	if !ok {
		return nil, fmt.Errorf("%T is not a device of this driver: %w", dev, verbs.ErrInvalid)
	}
	return d, nil
}
