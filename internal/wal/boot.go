package wal

import (
	"fmt"
	"os"
	"strings"
)

// BootID names the time since the machine was started; "" if that is not known.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// Restarted reports whether the machine may have restarted since remember was last called for this file, which a loss
// of power may have removed. Call remember when the log is open.
func Restarted(file string) (restarted bool, remember func() error) {
	boot := BootID()
	before, err := os.ReadFile(file)
	return err != nil || string(before) != boot, func() error {
		if err := os.WriteFile(file, []byte(boot), 0o600); err != nil {
			return fmt.Errorf("cannot remember the boot: %w", err)
		}
		return nil
	}
}
