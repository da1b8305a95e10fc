// Package testpython finds a Python for the tests of clients in that language.
package testpython

import (
	"fmt"
	"os/exec"
	"strings"
)

// Find returns an interpreter that can import the modules: the first in the path,
// or the system's. The tests' dependencies (make deps) include one.
func Find(modules ...string) (string, error) {
	list := strings.Join(modules, ", ")
	for _, path := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(path, "-c", "import "+list).Run() == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no python3 with %s: run make deps", list)
}
