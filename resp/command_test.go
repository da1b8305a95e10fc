package resp

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// runScript checks the lines of a script, "command -> reply" each.
func runScript(t *testing.T, c *client, script string) {
	t.Helper()
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		cmd, want, _ := strings.Cut(line, " -> ")
		args := strings.Fields(cmd)
		for i, a := range args {
			if u, err := strconv.Unquote(a); err == nil {
				args[i] = u
			}
		}
		if got := strings.TrimSpace(c.do(args...).String()); got != want {
			t.Errorf("%s: got %s, want %s", cmd, got, want)
		}
	}
}

// TestCommands checks what the differential test cannot: it has no Redis that
// would say the same, or the order in its replies is free.
func TestCommands(t *testing.T) {
	for name, script := range map[string]string{
		"strings": `
			SET k v -> +OK
			GET k -> "v"
			SET k w NX -> nil
			SET k w XX GET -> "v"
			SET k v EXAT 9999999999 -> +OK
			EXPIRETIME k -> :9999999999
			SET k v KEEPTTL -> +OK
			EXPIRETIME k -> :9999999999
			SET k v EX 0 -> -ERR invalid expire time in 'set' command
			SET k v EX -> -ERR syntax error
			GETRANGE k -100 100 -> "v"
			SETRANGE k 5 x -> :6
			GET k -> "v\x00\x00\x00\x00x"
			MSETNX k 1 l 2 -> :0
			MGET k nosuch -> ["v\x00\x00\x00\x00x" nil]
			SET n 9223372036854775807 -> +OK
			INCR n -> -ERR increment or decrement would overflow
			DECRBY n -9223372036854775808 -> -ERR decrement would overflow
			SET f 5.0e3 -> +OK
			INCRBYFLOAT f 200 -> "5200"
			INCRBYFLOAT f inf -> -ERR increment would produce NaN or Infinity
			GETDEL f -> "5200"
			GETEX f -> nil
		`,
		"keys": `
			MSET a 1 b 2 -> +OK
			EXISTS a b c a -> :3
			TOUCH a b c -> :2
			RENAME c d -> -ERR no such key
			RENAMENX a b -> :0
			RENAME a c -> +OK
			COPY c c -> -ERR source and destination objects are the same
			COPY c b -> :0
			COPY c b REPLACE -> :1
			COPY c b DB 1 -> -ERR DB index is out of range
			GET b -> "1"
			TYPE b -> +string
			TYPE nosuch -> +none
			EXPIRE b 100 GT -> :0
			EXPIRE b 100 NX -> :1
			EXPIRE b 50 GT -> :0
			EXPIRE b 200 GT -> :1
			EXPIRE b 100 NX XX -> -ERR NX and XX, GT or LT options at the same time are not compatible
			EXPIRE b 100 FOO -> -ERR Unsupported option FOO
			PERSIST b -> :1
			PERSIST b -> :0
			EXPIRETIME b -> :-1
			PEXPIRETIME nosuch -> :-2
			UNLINK b c -> :2
			RANDOMKEY -> nil
			SET only 1 -> +OK
			RANDOMKEY -> "only"
			DBSIZE -> :1
			SCAN 0 TYPE hash COUNT 1000000 -> ["0" []]
			SCAN 0 COUNT 0 -> -ERR syntax error
			SCAN x -> -ERR invalid cursor
			FLUSHDB ASYNC -> +OK
			FLUSHALL now -> -ERR syntax error
			DBSIZE -> :0
		`,
		"encodings": `
			SET i 12 -> +OK
			OBJECT ENCODING i -> "int"
			APPEND i 3 -> :3
			OBJECT ENCODING i -> "raw"
			SET s hello -> +OK
			OBJECT ENCODING s -> "embstr"
			OBJECT ENCODING nosuch -> nil
			HSET h f v -> :1
			OBJECT ENCODING h -> "listpack"
			HSET h f 01234567890123456789012345678901234567890123456789012345678901234 -> :0
			OBJECT ENCODING h -> "hashtable"
			OBJECT FOO h -> -ERR unknown subcommand 'FOO'. Try OBJECT HELP.
			OBJECT -> -ERR wrong number of arguments for 'object' command
			OBJECT ENCODING -> -ERR wrong number of arguments for 'object|encoding' command
			MEMORY USAGE nosuch -> nil
		`,
		"hashes": `
			HSET h a 1 b 2 -> :2
			HSET h a -> -ERR wrong number of arguments for 'hset' command
			HMSET h c 3 -> +OK
			HGETALL h -> ["a" "1" "b" "2" "c" "3"]
			HMGET h a nosuch -> ["1" nil]
			HINCRBY h a 5 -> :6
			HINCRBYFLOAT h a 0.5 -> "6.5"
			HINCRBY h a 1 -> -ERR hash value is not an integer
			HSETNX h a 9 -> :0
			HSTRLEN h a -> :3
			HKEYS h -> ["a" "b" "c"]
			HVALS h -> ["6.5" "2" "3"]
			HDEL h a b nosuch -> :2
			HRANDFIELD h -> "c"
			HRANDFIELD h -3 -> ["c" "c" "c"]
			HRANDFIELD h 2 WITHVALUES -> ["c" "3"]
			HRANDFIELD h -9223372036854775808 foo -> -ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807
			HRANDFIELD h -4611686018427387905 WITHVALUES -> -ERR value is out of range
			HSCAN h 0 -> ["0" ["c" "3"]]
			HDEL h c -> :1
			EXISTS h -> :0
			SET s v -> +OK
			HGET s f -> -WRONGTYPE Operation against a key holding the wrong kind of value
		`,
		"connection": `
			PING -> +PONG
			PING hi -> "hi"
			ECHO hi -> "hi"
			SELECT 0 -> +OK
			SELECT 1 -> -ERR DB index is out of range
			SELECT x -> -ERR value is not an integer or out of range
			CLIENT GETNAME -> nil
			CLIENT SETNAME me -> +OK
			CLIENT GETNAME -> "me"
			CLIENT SETNAME "a\nb" -> -ERR Client names cannot contain spaces, newlines or special characters.
			CLIENT SETINFO lib-name go -> +OK
			CLIENT SETINFO foo go -> -ERR Unrecognized option 'foo'
			CLIENT NO-EVICT on -> +OK
			CLIENT LIST TYPE pubsub -> ""
			CLIENT LIST TYPE foo -> -ERR Unknown client type 'foo'
			CLIENT FOO -> -ERR unknown subcommand 'FOO'. Try CLIENT HELP.
			AUTH x -> -ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?
			AUTH default x -> +OK
			HELLO 4 -> -NOPROTO unsupported protocol version
			HELLO 3 FOO -> -ERR Syntax error in HELLO option 'FOO'
			WAIT 0 0 -> :0
			FOO a "b\r\nc" -> -ERR unknown command 'FOO', with args beginning with: 'a' 'b  c'
			RESET -> +RESET
			CLIENT GETNAME -> nil
		`,
		"server": `
			CONFIG GET save appendonly -> ["appendonly" "no" "save" ""]
			CONFIG GET nosuch -> []
			CONFIG SET databases 2 -> -ERR CONFIG SET failed (possibly related to argument 'databases') - can't set immutable config: polder is given it when it starts, by flags, environment or file
			CONFIG SET requirepass secret -> -ERR CONFIG SET failed (possibly related to argument 'requirepass') - the password is in the file of --password-file, in POLDER_PASSWORD or the configuration file: change it there and send SIGHUP
			CLIENT PAUSE 3600001 -> -ERR timeout is out of range: a pause is 3600000 milliseconds at most
			CLIENT PAUSE 9223372036854775807 WRITE -> -ERR timeout is out of range: a pause is 3600000 milliseconds at most
			LATENCY DOCTOR -> "No events are recorded. CONFIG SET latency-monitor-threshold MILLISECONDS records what takes longer.\n"
			COMMAND INFO get nosuch -> [["get" :2 [+readonly +fast] :1 :1 :1 [+@string] [] [] []] *nil]
			COMMAND DOCS get -> ["get" ["summary" "As in Redis 7.0.15" "group" "string"]]
			COMMAND GETKEYS MSET a 1 b 2 -> ["a" "b"]
			COMMAND GETKEYS PING x -> -ERR The command has no key arguments
			DEBUG SLEEP 1 -> -ERR DEBUG command not allowed. If the enable-debug-command option is set to "local", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.
			POLDER -> -ERR wrong number of arguments for 'polder' command
			POLDER FOO -> -ERR unknown subcommand 'FOO'. Try POLDER HELP.
			POLDER HELP -> [+POLDER <subcommand> [<arg> [value] [opt] ...]. Subcommands are: +HELP +PART +PUBLISH +SNAPSHOT +STATS]
		`,
		"RESP3": `
			HELLO 2 -> ["server" "redis" "version" "7.0.15" "proto" :2 "id" :1 "mode" "standalone" "role" "master" "modules" []]
			HELLO 3 SETNAME me -> %["server" "redis" "version" "7.0.15" "proto" :3 "id" :1 "mode" "standalone" "role" "master" "modules" []]
			HSET h a 1 -> :1
			HGETALL h -> %["a" "1"]
			HGETALL nosuch -> %[]
			GET nosuch -> _
			HRANDFIELD h 1 WITHVALUES -> [["a" "1"]]
			CONFIG GET save -> %["save" ""]
			COMMAND INFO get -> [["get" :2 ~[+readonly +fast] :1 :1 :1 ~[+@string] [] [] []]]
			WATCH h -> +OK
			HSET h a 2 -> :0
			MULTI -> +OK
			EXEC -> _
			CLIENT LIST TYPE pubsub -> ="txt:"
		`,
	} {
		t.Run(name, func(t *testing.T) {
			_, addr := startServer(t, roomy, Config{})
			runScript(t, dial(t, addr), script)
		})
	}
}

// TestEveryCommandChecksItsArguments calls every command with too few.
func TestEveryCommandChecksItsArguments(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	c := dial(t, addr)
	for name, cmd := range commandTable().By {
		need := cmd.Arity
		if need < 0 {
			need = -need
		}
		if need == 1 {
			continue
		}
		want := "-ERR wrong number of arguments for '" + name + "' command"
		if got := c.do(strings.ToUpper(name)).String(); got != want {
			t.Errorf("%s without arguments: got %s, want %s", name, got, want)
		}
	}
}

func TestExpiry(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	c := dial(t, addr)
	for _, line := range []string{"SET a v PX 20", "PSETEX b 20 v", "HSET c f v", "PEXPIRE c 20", "GETEX a PX 25"} {
		c.words(line)
	}
	eventually(t, "the expiry of all keys", func() bool { return c.words("EXISTS a b c") == ":0" })
	for _, line := range []string{"GET a -> nil", "TTL a -> :-2", "HGETALL c -> []", "TYPE c -> +none", "KEYS * -> []", "SCAN 0 COUNT 1000000 -> [\"0\" []]", "INCR a -> :1", "TTL a -> :-1"} {
		runScript(t, c, line)
	}
}

// TestScanMissesNothing scans while keys come and go.
func TestScanMissesNothing(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	c := dial(t, addr)
	const n = 3000
	for i := range n {
		c.do("SET", fmt.Sprint("stay", i), "v")
	}
	seen := map[string]bool{}
	for cursor, round := "0", 0; ; round++ {
		r := c.do("SCAN", cursor, "MATCH", "stay*", "COUNT", "30")
		for _, e := range r.elems[1].elems {
			seen[e.bulk] = true
		}
		if cursor = r.elems[0].bulk; cursor == "0" {
			break
		}
		for i := range 20 {
			c.do("SET", fmt.Sprint("come", round*20+i), "v")
			c.do("DEL", fmt.Sprint("come", round*10+i))
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d keys came", len(seen), n)
	}
}
