// Package table has tables of commands: their names, how many arguments they have, which of these are keys, and what they may do. It
// knows no handlers. What COMMAND and HELP reply is here, too.
package table
