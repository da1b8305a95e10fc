package config

import (
	"os"
	"strconv"

	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// yamlFile is a configuration file, and where its keys stand in it.
type yamlFile struct {
	*koanf.Koanf
	path  string
	lines map[string]int
}

// source is what errors call a key of the file: its name, the file and the line.
func (f *yamlFile) source(key string) string {
	if line := f.lines[key]; line > 0 {
		return key + " in " + f.path + ":" + strconv.Itoa(line)
	}
	return key + " in " + f.path
}

// linesOf finds the lines of a YAML file's keys, as far as it can.
func linesOf(path string) map[string]int {
	lines := map[string]int{}
	b, err := os.ReadFile(path)
	var doc yaml.Node
	if err != nil || yaml.Unmarshal(b, &doc) != nil || len(doc.Content) == 0 {
		return lines // reading the file reports the error
	}
	addLines(lines, "", doc.Content[0])
	return lines
}

func addLines(lines map[string]int, prefix string, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := prefix + n.Content[i].Value
		lines[key] = n.Content[i].Line
		addLines(lines, key+delim, n.Content[i+1])
	}
}

// Origin says where the value of a flag comes from: the flag, the name of an
// environment variable, the file, or default.
//
// Preconditions: Load has returned nil.
func Origin(fs *pflag.FlagSet, f *pflag.Flag) string {
	if OnCommandLine(f) {
		return "flag"
	}
	text, free := f.Annotations[fileText]
	switch {
	case !free:
		return envName(f.Name)
	case len(text) > 0:
		return fs.Lookup(FileFlag).Value.String()
	}
	return "default"
}
