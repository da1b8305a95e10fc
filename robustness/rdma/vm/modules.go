package vm

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// moduleSet is the modules of a kernel package, which carries no list of
// dependencies: each module says in its section .modinfo what it needs.
type moduleSet struct {
	paths   map[string]string // of loadable modules, by name
	builtin map[string]bool
}

type module struct {
	name string
	data []byte
}

func newModuleSet() *moduleSet {
	return &moduleSet{paths: map[string]string{}, builtin: map[string]bool{}}
}

// moduleName is the name of the module in a file; a file's name may have
// dashes where the module's has underscores.
func moduleName(path string) (name string, ok bool) {
	base := filepath.Base(path)
	stem, rest, ok := strings.Cut(base, ".ko")
	if !ok || rest != "" && rest[0] != '.' {
		return "", false
	}
	return strings.ReplaceAll(stem, "-", "_"), true
}

// add adds the module in a file, if it holds one.
func (s *moduleSet) add(path string) {
	if name, ok := moduleName(path); ok {
		s.paths[name] = path
	}
}

// addBuiltin adds the modules that the file modules.builtin lists.
func (s *moduleSet) addBuiltin(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if name, ok := moduleName(strings.TrimSpace(line)); ok {
			s.builtin[name] = true
		}
	}
	return nil
}

// order returns the wanted modules and what they need, each after all that it
// needs. load reads a module's file.
func (s *moduleSet) order(wanted []string, load func(path string) ([]byte, error)) ([]module, error) {
	var out []module
	visited := map[string]bool{}
	var visit func(name, by string) error
	visit = func(name, by string) error {
		name = strings.ReplaceAll(name, "-", "_")
		if visited[name] {
			return nil
		}
		visited[name] = true
		path, ok := s.paths[name]
		if !ok {
			if s.builtin[name] {
				return nil
			}
			return fmt.Errorf("cannot find the kernel module %s, which %s needs", name, by)
		}
		data, err := load(path)
		if err != nil {
			return fmt.Errorf("cannot read module %s: %w", name, err)
		}
		needs, err := dependencies(data)
		if err != nil {
			return fmt.Errorf("cannot read module %s: %w", name, err)
		}
		for _, n := range needs {
			if err := visit(n, name); err != nil {
				return err
			}
		}
		out = append(out, module{name, data})
		return nil
	}
	for _, w := range wanted {
		if err := visit(w, "the guest"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// dependencies returns the modules that a module names in .modinfo.
func dependencies(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("it has no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(entry, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
