// Package config fills a command's flags from the environment and a YAML
// file, and refuses what it does not understand.
//
// A value comes from the first of: the flag, the environment variable
// POLDER_ followed by the flag's name in capitals with underscores
// (--client-budget is POLDER_CLIENT_BUDGET), the key of the flag's name in
// the YAML file that --config names, the default. Sizes read "64MiB",
// durations "5s". Whatever the source, a wrong value is an error that names
// the key, the value and what was expected, and in a file the line; so is an
// unknown key. Origin says where a value has come from.
//
// Nothing here is for concurrent use: configuration happens at the start, and what
// Reload may change is then read by its caller alone.
package config
