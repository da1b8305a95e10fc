package config

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// EnvPrefix begins the names of the environment variables that count.
const EnvPrefix = "POLDER_"

// FileFlag is the flag that names the YAML file. It cannot be set in the
// file itself.
const FileFlag = "config"

// Error is a piece of configuration that cannot be used.
type Error struct {
	Source string // such as "--local", "POLDER_LOCAL", "local in polder.yaml:3"
	Value  string
	Err    error // what was expected
}

func (e *Error) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("cannot use %s: %v", e.Source, e.Err)
	}
	return fmt.Sprintf("cannot use %s = %q: %v", e.Source, e.Value, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// FlagError turns pflag's complaint about a command line into an *Error.
func FlagError(err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		why := bad.Unwrap()
		if n, ok := errors.AsType[*strconv.NumError](why); ok && n.Func == "ParseUint" {
			why = errors.New("expected a whole number, at least 0")
		}
		return &Error{Source: "--" + bad.GetFlag().Name, Value: bad.GetValue(), Err: why}
	}
	return err
}

// Load sets the flags of fs that the command line did not set from environ
// (as os.Environ gives it) and from the YAML file that the flag "config"
// names. An environment serves several commands: a variable that belongs to
// another one, listed in others by its flag's name, is passed over.
//
// Preconditions: the command line has been parsed.
func Load(fs *pflag.FlagSet, environ []string, others []string) error {
	fromEnv, err := readEnv(environ)
	if err != nil {
		return err
	}
	for _, key := range fromEnv.Keys() {
		if fs.Lookup(key) == nil && !slices.Contains(others, key) {
			return &Error{Source: envName(key), Err: unknown(fs, envName)} // its value may be a secret
		}
	}

	path := ""
	if f := fs.Lookup(FileFlag); f != nil {
		if path = f.Value.String(); path == "" {
			path = fromEnv.String(FileFlag)
		}
	}
	fromFile := &yamlFile{Koanf: koanf.New(delim)}
	if path != "" {
		if fromFile, err = readFile(path); err != nil {
			return err
		}
	}
	if err := checkKeys(fs, fromFile); err != nil {
		return err
	}

	var failed error
	fs.VisitAll(func(f *pflag.Flag) {
		// OnCommandLine and Reload go by these. There is a flag of that name.
		if f.Changed {
			_ = fs.SetAnnotation(f.Name, commandLine, nil)
		} else if !fromEnv.Exists(f.Name) {
			_ = fs.SetAnnotation(f.Name, fileText, nil)
		}
		source, from := envName(f.Name), fromEnv
		if !from.Exists(f.Name) {
			source, from = fromFile.source(f.Name), fromFile.Koanf
		}
		if failed != nil || f.Changed || !from.Exists(f.Name) {
			return
		}
		value, err := text(from.Get(f.Name))
		if err == nil {
			if err = fs.Set(f.Name, value); err != nil {
				if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
					err = bad.Unwrap()
				}
			}
		}
		if err != nil {
			failed = &Error{Source: source, Value: value, Err: err}
		}
		if _, free := f.Annotations[fileText]; free {
			f.Annotations[fileText] = []string{value}
		}
	})
	return failed
}

// delim separates levels of koanf's keys. Flags have no levels, so that a
// nested key in a file is an unknown one.
const delim = "."

func envName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

func readEnv(environ []string) (*koanf.Koanf, error) {
	k := koanf.New(delim)
	err := k.Load(env.Provider(delim, env.Opt{
		Prefix:      EnvPrefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(key, value string) (string, any) {
			key = strings.ToLower(strings.TrimPrefix(key, EnvPrefix))
			return strings.ReplaceAll(key, "_", "-"), value
		},
	}), nil)
	if err != nil {
		return nil, fmt.Errorf("cannot read the environment: %w", err)
	}
	return k, nil
}

func readFile(path string) (*yamlFile, error) {
	k := koanf.New(delim)
	err := k.Load(file.Provider(path), yaml.Parser())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Source: "--" + FileFlag, Value: path, Err: errors.New("there is no such file")}
	}
	if err != nil {
		return nil, &Error{Source: "--" + FileFlag, Value: path, Err: fmt.Errorf("expected a YAML file of keys and values: %w", err)}
	}
	return &yamlFile{Koanf: k, path: path, lines: linesOf(path)}, nil
}

// checkKeys refuses keys of the file that are no flags.
func checkKeys(fs *pflag.FlagSet, file *yamlFile) error {
	for _, key := range file.Keys() {
		if fs.Lookup(key) == nil || key == FileFlag {
			return &Error{Source: file.source(key), Err: unknown(fs, func(s string) string { return s })}
		}
	}
	return nil
}

// text gives a YAML value the form that a flag reads.
func text(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", errors.New("expected a value after the colon")
	case map[string]any:
		return "", errors.New("expected one value, not further keys")
	case []any:
		list := make([]string, len(v))
		for i, e := range v {
			s, err := text(e)
			if err != nil {
				return "", err
			}
			list[i] = s
		}
		return strings.Join(list, ","), nil
	}
	return fmt.Sprint(v), nil
}

// unknown says which keys there are, as the source spells them.
func unknown(flags *pflag.FlagSet, spell func(string) string) error {
	var known []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != FileFlag && f.Name != "help" {
			known = append(known, spell(f.Name))
		}
	})
	return fmt.Errorf("there is no such key; expected one of %s", strings.Join(known, ", "))
}
