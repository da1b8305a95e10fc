package config

import (
	"slices"

	"github.com/spf13/pflag"
)

// commandLine annotates the flags that the command line has set. fileText annotates the flags that the YAML file may
// set, because neither the command line nor the environment has; its value is what the file says: one string, or
// none.
const (
	commandLine = "polder: on the command line"
	fileText    = "polder: text in the file"
)

// OnCommandLine reports whether the command line has set f.
//
// Preconditions: Load has returned nil.
func OnCommandLine(f *pflag.Flag) bool {
	_, ok := f.Annotations[commandLine]
	return ok
}

// Reload reads the YAML file again that Load has read. It sets those of the named flags for which the file has a new
// value; flags that the file no longer mentions get their defaults. Flags that the command line or the environment
// has set stay. Reload returns the other flags whose value in the file has changed: they would change with a restart.
// After an error, nothing has changed.
//
// Preconditions: Load has returned nil. The named flags hold one value, not a
// list to which Set adds.
func Reload(fs *pflag.FlagSet, names ...string) (later []string, err error) {
	path := ""
	if f := fs.Lookup(FileFlag); f != nil {
		path = f.Value.String()
	}
	if path == "" {
		return nil, nil
	}
	file, err := readFile(path)
	if err != nil {
		return nil, err
	}
	if err := checkKeys(fs, file); err != nil {
		return nil, err
	}
	type change struct {
		flag     *pflag.Flag
		text     []string // of the file
		now, was string   // the flag's value
	}
	var changes []change
	fs.VisitAll(func(f *pflag.Flag) {
		before, free := f.Annotations[fileText]
		if !free || f.Name == FileFlag || err != nil {
			return
		}
		c := change{flag: f, now: f.DefValue}
		if file.Exists(f.Name) {
			var s string
			if s, err = text(file.Get(f.Name)); err != nil {
				err = &Error{Source: file.source(f.Name), Err: err}
				return
			}
			c.text, c.now = []string{s}, s
		}
		switch {
		case slices.Equal(before, c.text):
		case slices.Contains(names, f.Name):
			c.was = f.Value.String()
			changes = append(changes, c)
		default:
			later = append(later, f.Name)
		}
	})
	if err != nil {
		return nil, err
	}
	for i, c := range changes {
		if err := c.flag.Value.Set(c.now); err != nil {
			for _, c := range changes[:i] {
				_ = c.flag.Value.Set(c.was) // it was there before
			}
			return nil, &Error{Source: file.source(c.flag.Name), Value: c.now, Err: err}
		}
	}
	for _, c := range changes {
		c.flag.Annotations[fileText] = c.text
	}
	return later, nil
}
