// Package table has tables of commands: their names, how many arguments they have, which of these are keys, and what
// the commands may do. It knows no handlers. It also has what COMMAND and HELP reply.
package table
