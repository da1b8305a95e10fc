package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"polder/internal/scheme"
)

// Size is a flag value in bytes, written as a number with an optional unit:
// KiB, MiB, GiB, TiB (powers of two), kB, MB, GB, TB (powers of ten), B.
type Size struct {
	p          *int64
	min, max   int64
	powerOfTwo bool
	word       string // stands for -1, if not empty
}

var _ pflag.Value = (*Size)(nil)

// NewSize makes a flag value that stores into p, which holds the default.
// Values below min are refused, and those above max unless max is zero.
func NewSize(p *int64, min, max int64) *Size {
	if max == 0 {
		max = math.MaxInt64
	}
	return &Size{p: p, min: min, max: max}
}

// NewPowerOfTwo is NewSize for a size that must be a power of two.
func NewPowerOfTwo(p *int64, min, max int64) *Size {
	v := NewSize(p, min, max)
	v.powerOfTwo = true
	return v
}

// NewSizeOr is NewSize for a size that may also be the word, which is stored as -1
// and which p may hold as the default.
func NewSizeOr(p *int64, min, max int64, word string) *Size {
	v := NewSize(p, min, max)
	v.word = word
	return v
}

// Set parses s.
func (v *Size) Set(s string) error {
	if v.word != "" && s == v.word {
		*v.p = -1
		return nil
	}
	n, err := ParseSize(s)
	if err != nil && v.word != "" {
		return fmt.Errorf("%w, or %q", err, v.word)
	}
	if err != nil {
		return err
	}
	switch {
	case n < v.min:
		return fmt.Errorf("expected at least %s", FormatSize(v.min))
	case n > v.max:
		return fmt.Errorf("expected at most %s", FormatSize(v.max))
	case v.powerOfTwo && n&(n-1) != 0:
		return errors.New("expected a power of two such as 1MiB")
	}
	*v.p = n
	return nil
}

func (v *Size) String() string {
	switch {
	case v.p == nil:
		return ""
	case v.word != "" && *v.p == -1:
		return v.word
	}
	return FormatSize(*v.p)
}

// Type names the value in usage texts.
func (v *Size) Type() string { return "size" }

var units = []struct {
	name  string
	bytes int64
}{
	// Longest suffixes first: "B" ends all of them.
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}, {"", 1},
}

var errSize = errors.New("expected a size such as 64MiB, 1.5GiB or 4096")

// ParseSize reads a size such as "64MiB".
func ParseSize(s string) (int64, error) {
	for _, u := range units {
		num, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		num = strings.TrimSpace(num)
		if n, err := strconv.ParseInt(num, 10, 64); err == nil {
			if n < 0 || n > math.MaxInt64/u.bytes {
				break
			}
			return n * u.bytes, nil
		}
		f, err := strconv.ParseFloat(num, 64)
		f *= float64(u.bytes)
		// The comparison refuses NaN too.
		if err != nil || strings.ContainsAny(num, "eExXpP_") || !(f >= 0 && f < math.MaxInt64) || f != math.Trunc(f) {
			break
		}
		return int64(f), nil
	}
	return 0, errSize
}

// FormatSize writes n as ParseSize reads it, in the largest binary unit that
// divides it.
func FormatSize(n int64) string {
	if n == 0 {
		return "0"
	}
	for _, u := range units[:4] {
		if n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// Duration is a flag value that is not negative.
type Duration struct {
	p        *time.Duration
	min, max time.Duration // max 0: there is none
}

var _ pflag.Value = (*Duration)(nil)

// NewDuration makes a flag value that stores into p, which holds the
// default. Values below min are refused.
func NewDuration(p *time.Duration, min time.Duration) *Duration {
	return &Duration{p: p, min: min}
}

// NewDurationWithin is NewDuration, and values above max are refused, too.
func NewDurationWithin(p *time.Duration, min, max time.Duration) *Duration {
	return &Duration{p: p, min: min, max: max}
}

// Set parses s.
func (v *Duration) Set(s string) error {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return fmt.Errorf("expected a duration such as 5s, 250ms or 1m30s")
	case d < v.min:
		return fmt.Errorf("expected at least %v", v.min)
	case v.max > 0 && d > v.max:
		return fmt.Errorf("expected at most %v", v.max)
	}
	*v.p = d
	return nil
}

func (v *Duration) String() string {
	if v.p == nil {
		return ""
	}
	return v.p.String()
}

// Type names the value in usage texts.
func (v *Duration) Type() string { return "duration" }

// Durable is a flag value that says what of a server's state survives a crash: no, yes, or every:DURATION.
type Durable struct {
	on    *bool
	every *time.Duration
}

var _ pflag.Value = (*Durable)(nil)

// NewDurable makes a flag value that stores into on and every, which hold the default.
func NewDurable(on *bool, every *time.Duration) *Durable { return &Durable{on, every} }

// Set parses s.
func (v *Durable) Set(s string) error {
	text, isEvery := strings.CutPrefix(s, "every:")
	every, err := time.ParseDuration(text)
	switch {
	case s == "no" || s == "yes":
		*v.on, *v.every = s == "yes", 0
	case isEvery && err == nil && every >= time.Millisecond && every <= time.Minute:
		*v.on, *v.every = true, every
	default:
		return errors.New("expected yes, no, or every:DURATION from every:1ms to every:1m")
	}
	return nil
}

func (v *Durable) String() string {
	switch {
	case v.on == nil || !*v.on:
		return "no"
	case *v.every > 0:
		return "every:" + v.every.String()
	}
	return "yes"
}

// Type names the value in usage texts.
func (v *Durable) Type() string { return "promise" }

// Int is a flag value within bounds.
type Int struct {
	p        *int
	min, max int
}

var _ pflag.Value = (*Int)(nil)

// NewInt makes a flag value that stores into p, which holds the default.
func NewInt(p *int, min, max int) *Int { return &Int{p: p, min: min, max: max} }

// Set parses s.
func (v *Int) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < v.min || n > v.max {
		return fmt.Errorf("expected a whole number from %d to %d", v.min, v.max)
	}
	*v.p = n
	return nil
}

func (v *Int) String() string {
	if v.p == nil {
		return ""
	}
	return strconv.Itoa(*v.p)
}

// Type names the value in usage texts.
func (v *Int) Type() string { return "number" }

// Address is a flag value of the form HOST:PORT, unix:PATH, or either.
type Address struct {
	p     *string
	off   bool
	check func(string) error
}

var _ pflag.Value = (*Address)(nil)

// NewAddress makes a flag value that stores into p, which holds the default.
// If off is true, the word "off" is allowed and stored as "".
func NewAddress(p *string, off bool) *Address { return &Address{p: p, off: off, check: checkAddress} }

// NewDoor is NewAddress for an address that may also be a Unix socket, unix:PATH.
func NewDoor(p *string, off bool) *Address { return &Address{p: p, off: off, check: checkNodeAddress} }

// NewSocket makes a flag value for a socket on this machine that stores into p,
// which holds the default.
func NewSocket(p *string) *Address { return &Address{p: p, check: checkSocket} }

// Set parses s.
func (v *Address) Set(s string) error {
	if v.off && s == "off" {
		*v.p = ""
		return nil
	}
	if err := v.check(s); err != nil {
		if v.off {
			return fmt.Errorf(`%w, or "off"`, err)
		}
		return err
	}
	*v.p = s
	return nil
}

func (v *Address) String() string {
	switch {
	case v.p == nil:
		return ""
	case *v.p == "" && v.off:
		return "off"
	}
	return *v.p
}

// Type names the value in usage texts.
func (v *Address) Type() string { return "address" }

func checkAddress(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("expected HOST:PORT such as 127.0.0.1:7070")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > math.MaxUint16 {
		return fmt.Errorf("expected a port from 0 to %d after the colon", math.MaxUint16)
	}
	return nil
}

func checkFarAddress(s string) error {
	if name, ok := strings.CutPrefix(s, scheme.DNS); ok {
		return checkDNSName(name)
	}
	if strings.HasPrefix(s, scheme.Etcd) {
		_, _, err := ParseEtcd(s)
		return err
	}
	path, ok := strings.CutPrefix(s, scheme.Broker)
	if !ok {
		if err := checkNodeAddress(s); err != nil {
			return fmt.Errorf("%w, or broker:PATH, or dns://NAME:PORT, or etcd://HOST:PORT/NAME", err)
		}
		return nil
	}
	if !filepath.IsAbs(path) {
		return fmt.Errorf("expected an absolute path after broker:, such as broker:/run/polder/broker.sock")
	}
	return nil
}

// dnsName is a host, of labels.
var dnsName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

// checkDNSName checks what follows dns://: NAME:PORT for a name with addresses, NAME for one with SRV
// records, and before it SERVER/ or SERVER:PORT/ to ask that server and not the system's.
func checkDNSName(s string) error {
	server, name, ok := strings.Cut(s, "/")
	if !ok {
		server, name = "", s
	}
	if strings.Contains(server, ":") {
		if err := checkAddress(server); err != nil {
			return fmt.Errorf("%w for the server between dns:// and /", err)
		}
	} else if ok && !dnsName.MatchString(server) {
		return fmt.Errorf("expected the address of a server between dns:// and /")
	}
	if strings.Contains(name, ":") {
		if err := checkAddress(name); err != nil {
			return fmt.Errorf("%w after dns://", err)
		}
		name, _, _ = net.SplitHostPort(name)
	}
	if !dnsName.MatchString(name) {
		return fmt.Errorf("expected a name such as nodes.example.com:7070 after dns://")
	}
	return nil
}

func checkNodeAddress(s string) error {
	if !strings.HasPrefix(s, scheme.Unix) {
		if err := checkAddress(s); err != nil {
			return fmt.Errorf("%w, or unix:PATH", err)
		}
		return nil
	}
	return checkSocket(s)
}

func checkSocket(s string) error {
	path, ok := strings.CutPrefix(s, scheme.Unix)
	switch {
	case !ok:
		return fmt.Errorf("expected unix:PATH such as unix:/run/polder/node.sock")
	case !filepath.IsAbs(path):
		return fmt.Errorf("expected an absolute path after unix:, such as unix:/run/polder/node.sock")
	}
	return nil
}

// Addresses is a flag value of comma-separated addresses of memory nodes. It may
// be given several times.
type Addresses struct {
	p     *[]string
	given bool
	check func(string) error
}

var _ pflag.Value = (*Addresses)(nil)

// NewAddresses makes a flag value that stores into p, which holds the
// default.
func NewAddresses(p *[]string) *Addresses { return &Addresses{p: p, check: checkNodeAddress} }

// NewFarAddresses makes a flag value like NewAddresses, which may also be broker:PATH, the
// socket of a broker on this machine, or dns://NAME:PORT or dns://NAME, a name in the DNS that has addresses
// of nodes, or SRV records, or etcd://HOST:PORT[,HOST:PORT...]/NAME, a cluster in etcd.
func NewFarAddresses(p *[]string) *Addresses { return &Addresses{p: p, check: checkFarAddress} }

// NewHolders makes a flag value for those that keep manifests of heaps: witnesses, HOST:PORT or unix:PATH with commas
// between, or etcd://HOST:PORT[,HOST:PORT...]/NAME, a cluster in etcd.
func NewHolders(p *[]string) *Addresses { return &Addresses{p: p, check: checkHolder} }

func checkHolder(s string) error {
	if strings.HasPrefix(s, scheme.Etcd) {
		_, _, err := ParseEtcd(s)
		return err
	}
	if err := checkNodeAddress(s); err != nil {
		return fmt.Errorf("%w, or etcd://HOST:PORT/NAME", err)
	}
	return nil
}

// Set parses s and replaces the default, or adds to what was given before.
func (v *Addresses) Set(s string) error {
	list := strings.Split(s, ",")
	if strings.HasPrefix(strings.TrimSpace(s), scheme.Etcd) {
		list = []string{s} // its commas are between its hosts
	}
	for i, a := range list {
		list[i] = strings.TrimSpace(a)
		// HOST:PORT follows the scheme of RDMA.
		addr, rdma := strings.CutPrefix(list[i], scheme.RDMA)
		check := v.check
		if rdma {
			check = checkAddress
		}
		if err := check(addr); err != nil && slices.Contains([]string{scheme.DNS, scheme.Etcd}, scheme.Of(list[i])) {
			return err
		} else if err != nil {
			return fmt.Errorf("%w, several with commas between", err)
		}
	}
	if v.given {
		list = append(slices.Clone(*v.p), list...)
	}
	for i, a := range list {
		if slices.Contains(list[:i], a) {
			return fmt.Errorf("expected each address once")
		}
	}
	*v.p, v.given = list, true
	return nil
}

func (v *Addresses) String() string {
	if v.p == nil {
		return ""
	}
	return strings.Join(*v.p, ",")
}

// Type names the value in usage texts.
func (v *Addresses) Type() string { return "addresses" }

// Name is a flag value that is what something is called.
type Name struct{ p *string }

var _ pflag.Value = (*Name)(nil)

// NewName makes a flag value that stores into p, which holds the default.
func NewName(p *string) *Name { return &Name{p} }

var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// IsName reports whether something may be called s.
func IsName(s string) bool { return name.MatchString(s) }

// Set parses s.
func (v *Name) Set(s string) error {
	if !IsName(s) {
		return errors.New("expected up to 64 letters, digits, dots, dashes and underscores, of which the first is a letter or a digit")
	}
	*v.p = s
	return nil
}

func (v *Name) String() string {
	if v.p == nil {
		return ""
	}
	return *v.p
}

// Type names the value in usage texts.
func (v *Name) Type() string { return "name" }

// Choice is a flag value that is one of a few words.
type Choice struct {
	p     *string
	words []string
}

var _ pflag.Value = (*Choice)(nil)

// NewChoice makes a flag value that stores into p, which holds the default.
func NewChoice(p *string, words ...string) *Choice { return &Choice{p: p, words: words} }

// Set parses s.
func (v *Choice) Set(s string) error {
	if !slices.Contains(v.words, s) {
		return fmt.Errorf("expected one of %s", strings.Join(v.words, ", "))
	}
	*v.p = s
	return nil
}

func (v *Choice) String() string {
	if v.p == nil {
		return ""
	}
	return *v.p
}

// Type names the value in usage texts.
func (v *Choice) Type() string { return "word" }
