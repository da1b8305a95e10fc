package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// Lend is a flag value that says how much memory to lend: a size, or idle: and a size, for at most that much of what
// the host does not need.
type Lend struct {
	size *Size
	idle *bool
}

var _ pflag.Value = (*Lend)(nil)

// idlePrefix begins a size of which only the part that the host does not need is lent.
const idlePrefix = "idle:"

// NewLend makes a flag value that stores into p and idle, which hold the default. Sizes below min are refused.
func NewLend(p *int64, idle *bool, min int64) *Lend { return &Lend{NewSize(p, min, 0), idle} }

// Set parses s.
func (v *Lend) Set(s string) error {
	size, idle := strings.CutPrefix(s, idlePrefix)
	if err := v.size.Set(size); err != nil {
		if idle || strings.HasPrefix(s, strings.TrimSuffix(idlePrefix, ":")) {
			return fmt.Errorf("%w behind %q, which is at most so much of what this host does not need", err, idlePrefix)
		}
		return err
	}
	*v.idle = idle
	return nil
}

func (v *Lend) String() string {
	if v.idle != nil && *v.idle {
		return idlePrefix + v.size.String()
	}
	if v.size == nil {
		return ""
	}
	return v.size.String()
}

// Type names the value in usage texts.
func (v *Lend) Type() string { return "[idle:]size" }
