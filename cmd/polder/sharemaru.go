package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/share/maru"
	"polder/share/resource"
	"polder/share/server"
)

// maruFlags are the flags of share's daemon about Maru's clients.
type maruFlags struct {
	directory []string
	resources string
	dir       string
	late      time.Duration
}

func (f *maruFlags) add(fs *pflag.FlagSet) {
	f.resources, f.late = "127.0.0.1:9850", time.Second
	fs.StringSliceVar(&f.directory, "maru", nil, "where clients of Maru's protocol reach its directory: tcp://`HOST:PORT` or ipc:///PATH; may be repeated")
	fs.Var(config.NewAddress(&f.resources, false), "maru-resources", "where they reach its resource manager")
	fs.StringVar(&f.dir, "maru-dir", "", "`directory`, on tmpfs, of their regions in memfd pools; the default is one of --dir's own in /dev/shm")
	fs.Var(config.NewDuration(&f.late, 10*time.Millisecond), "maru-late", "how long a registration may have waited until it is refused: less than the clients' own timeout, timeout_ms")
}

// check refuses pools and addresses with which Maru's clients cannot be served.
func (f *maruFlags) check(pools []resource.Spec, insecure bool) error {
	if len(f.directory) == 0 {
		return nil
	}
	if !slices.ContainsFunc(pools, func(s resource.Spec) bool { return s.Kind == resource.Memfd || s.Kind == resource.File }) {
		return errors.New("cannot serve --maru from these pools: its clients open memory by its path, and map all of it writable: " +
			"give --pool memfd:SIZE or file:DIRECTORY")
	}
	addrs := map[string]string{"maru-resources": f.resources}
	for _, addr := range f.directory {
		network, at, err := maru.ParseAddr(addr)
		if err != nil {
			return fmt.Errorf("cannot use --maru: %w", err)
		}
		if network == "tcp" {
			addrs["maru"] = at
		}
		for flag, at := range addrs {
			local, err := listen.Loopback(at)
			if err != nil {
				return fmt.Errorf("cannot listen on --%s %s: %w", flag, at, err)
			}
			if !local && !insecure {
				return fmt.Errorf("cannot listen on --%s %s: it can be reached from other machines, and Maru's protocol "+
					"has no way to prove who a client is: say --insecure", flag, at)
			}
		}
	}
	return nil
}

// options sets the daemon's options that concern Maru's clients.
func (f *maruFlags) options(opt *server.Options) error {
	opt.Late, opt.MaruDir = f.late, f.dir
	if f.dir != "" {
		return nil
	}
	dir, err := filepath.Abs(opt.Dir)
	if err != nil {
		return fmt.Errorf("cannot find --dir: %w", err)
	}
	opt.MaruDir = fmt.Sprintf("/dev/shm/polder-share-%x", sha256.Sum256([]byte(dir)))[:len("/dev/shm/polder-share-")+16]
	if len(f.directory) > 0 {
		return nil
	}
	for end := time.Now().Add(lockTime); ; time.Sleep(lockPause) {
		there, err := os.Open(opt.MaruDir)
		if err == nil {
			err = resource.LockPool(there)
		}
		// The directory is missing if there never was a client of Maru's. It is locked while another daemon ends, whose
		// regions are ours from then on. It stays locked if two daemons in containers have only /dev/shm in common, and
		// the other one has the clients.
		locked := errors.Is(err, unix.EWOULDBLOCK)
		switch {
		case locked && time.Now().Before(end):
			continue
		case locked, errors.Is(err, fs.ErrNotExist):
			opt.MaruDir = ""
			return nil
		case err != nil: // the regions may be ours, and would count as lost
			return fmt.Errorf("cannot look whether regions of Maru's clients are there: %w", err)
		}
		return there.Close()
	}
}

// lockTime is how long another daemon that ends may still have the directory locked, and lockPause the time between
// two looks.
const (
	lockTime  = time.Second
	lockPause = 10 * time.Millisecond
)

// start serves Maru's clients, if --maru is given; otherwise it returns nil.
func (f *maruFlags) start(s *server.Server, opt server.Options, op *operator.Control) (*maru.Door, error) {
	if len(f.directory) == 0 {
		return nil, nil
	}
	d, err := maru.Start(s, maru.Options{
		Directory: f.directory, Resources: f.resources, SocketMode: opt.SocketMode, Late: f.late, Log: op.Logger,
	})
	if err != nil {
		return nil, err
	}
	directory, resources := d.Addrs()
	fmt.Fprintf(op.Out, "maru    %s, resources %s; what holds there is what Maru promises: all its clients can write all its regions\n",
		strings.Join(directory, " "), resources)
	return d, nil
}
