package resp

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// at is a command's key positions.
type at struct{ first, last, step int }

var (
	noKey    = at{0, 0, 0}
	oneKey   = at{1, 1, 1}
	twoKeys  = at{1, 2, 1}
	allKeys  = at{1, -1, 1}
	keyPairs = at{1, -1, 2}
	subKey   = at{2, 2, 1}
)

// commandTable is the table of all servers.
var commandTable = sync.OnceValue(func() *table {
	t := &table{by: make(map[string]*command)}
	group := ""
	def := func(name string, arity int, f flags, k at, run handler) *command {
		c := &command{id: t.n, name: name, arity: arity, flags: f, first: k.first, last: k.last, step: k.step, run: run, group: group}
		t.n++
		parent, sub, nested := strings.Cut(name, "|")
		if !nested {
			t.by[name] = c
			return c
		}
		p := t.by[parent]
		if p.subs == nil {
			p.subs = make(map[string]*command)
		}
		p.subs[sub] = c
		return c
	}
	const w, r, fast, blind = flagWrite, flagRead, flagFast, flagBlind

	group = "string"
	def("get", 2, r|fast, oneKey, cmdGet)
	def("set", -3, w|blind, oneKey, cmdSet)
	def("setnx", 3, w|fast|blind, oneKey, cmdSetNX)
	def("setex", 4, w|blind, oneKey, cmdSetEX)
	def("psetex", 4, w|blind, oneKey, cmdPSetEX)
	def("getset", 3, w|fast, oneKey, cmdGetSet)
	def("getdel", 2, w|fast, oneKey, cmdGetDel)
	def("getex", -2, w|fast, oneKey, cmdGetEx)
	def("mget", -2, r|fast, allKeys, cmdMGet)
	def("mset", -3, w|blind, keyPairs, cmdMSet)
	def("msetnx", -3, w|blind, keyPairs, cmdMSetNX)
	def("append", 3, w|fast, oneKey, cmdAppend)
	def("strlen", 2, r|fast, oneKey, cmdStrLen)
	def("getrange", 4, r, oneKey, cmdGetRange)
	def("substr", 4, r, oneKey, cmdGetRange)
	def("setrange", 4, w, oneKey, cmdSetRange)
	def("incr", 2, w|fast, oneKey, cmdIncr)
	def("decr", 2, w|fast, oneKey, cmdDecr)
	def("incrby", 3, w|fast, oneKey, cmdIncrBy)
	def("decrby", 3, w|fast, oneKey, cmdDecrBy)
	def("incrbyfloat", 3, w|fast, oneKey, cmdIncrByFloat)

	group = "generic"
	def("del", -2, w|blind, allKeys, cmdDel)
	def("unlink", -2, w|fast|blind, allKeys, cmdDel)
	def("exists", -2, r|fast|blind, allKeys, cmdExists)
	def("touch", -2, r|fast|blind, allKeys, cmdExists)
	def("expire", -3, w|fast, oneKey, cmdExpire)
	def("pexpire", -3, w|fast, oneKey, cmdPExpire)
	def("expireat", -3, w|fast, oneKey, cmdExpireAt)
	def("pexpireat", -3, w|fast, oneKey, cmdPExpireAt)
	def("ttl", 2, r|fast|blind, oneKey, cmdTTL)
	def("pttl", 2, r|fast|blind, oneKey, cmdPTTL)
	def("expiretime", 2, r|fast|blind, oneKey, cmdExpireTime)
	def("pexpiretime", 2, r|fast|blind, oneKey, cmdPExpireTime)
	def("persist", 2, w|fast, oneKey, cmdPersist)
	def("type", 2, r|fast|blind, oneKey, cmdType)
	def("rename", 3, w, twoKeys, cmdRename)
	def("renamenx", 3, w|fast, twoKeys, cmdRenameNX)
	def("copy", -3, w, twoKeys, cmdCopy)
	def("randomkey", 1, r, noKey, cmdRandomKey)
	def("scan", -2, r, noKey, cmdScan)
	def("keys", 2, r, noKey, cmdKeys)
	def("wait", 3, 0, noKey, cmdWait)
	def("waitaof", 4, 0, noKey, cmdWaitAOF)
	def("object", -2, r, noKey, cmdHelp)
	def("object|encoding", 3, r, subKey, cmdObjectEncoding)
	def("object|refcount", 3, r, subKey, cmdObjectRefcount)
	def("object|idletime", 3, r, subKey, cmdObjectIdletime)
	def("object|freq", 3, r, subKey, cmdObjectFreq)
	def("object|help", 2, r, noKey, cmdHelp)

	group = "hash"
	def("hset", -4, w|fast, oneKey, cmdHSet)
	def("hmset", -4, w|fast, oneKey, cmdHMSet)
	def("hsetnx", 4, w|fast, oneKey, cmdHSetNX)
	def("hget", 3, r|fast, oneKey, cmdHGet)
	def("hmget", -3, r|fast, oneKey, cmdHMGet)
	def("hgetall", 2, r, oneKey, cmdHGetAll)
	def("hkeys", 2, r, oneKey, cmdHKeys)
	def("hvals", 2, r, oneKey, cmdHVals)
	def("hdel", -3, w|fast, oneKey, cmdHDel)
	def("hexists", 3, r|fast, oneKey, cmdHExists)
	def("hlen", 2, r|fast, oneKey, cmdHLen)
	def("hstrlen", 3, r|fast, oneKey, cmdHStrLen)
	def("hincrby", 4, w|fast, oneKey, cmdHIncrBy)
	def("hincrbyfloat", 4, w|fast, oneKey, cmdHIncrByFloat)
	def("hscan", -3, r, oneKey, cmdHScan)
	def("hrandfield", -2, r, oneKey, cmdHRandField)

	group = "transactions"
	def("multi", 1, fast|flagImmediate, noKey, cmdMulti)
	exec := def("exec", 1, flagImmediate, noKey, cmdExec)
	exec.lockKeys, exec.lockAll = lockExec, lockExecAll
	def("discard", 1, fast|flagImmediate, noKey, cmdDiscard)
	def("watch", -2, r|fast|flagImmediate, allKeys, cmdWatch)
	def("unwatch", 1, fast, noKey, cmdUnwatch)

	group = "connection"
	def("ping", -1, fast|flagStandby, noKey, cmdPing)
	def("echo", 2, fast, noKey, cmdEcho)
	def("select", 2, fast, noKey, cmdSelect)
	def("quit", -1, fast|flagNoAuth|flagImmediate, noKey, cmdQuit)
	def("reset", 1, fast|flagNoAuth|flagImmediate, noKey, cmdReset)
	def("auth", -2, fast|flagNoAuth, noKey, cmdAuth)
	def("hello", -1, fast|flagNoAuth, noKey, cmdHello)
	def("client", -2, 0, noKey, cmdHelp)
	def("client|id", 2, 0, noKey, cmdClientID)
	def("client|getname", 2, 0, noKey, cmdClientGetName)
	def("client|setname", 3, 0, noKey, cmdClientSetName)
	def("client|setinfo", 4, 0, noKey, cmdClientSetInfo)
	def("client|info", 2, 0, noKey, cmdClientInfo)
	def("client|list", -2, flagAdmin, noKey, cmdClientList)
	def("client|no-evict", 3, flagAdmin, noKey, cmdClientNoEvict)
	def("client|kill", -3, flagAdmin, noKey, cmdClientKill)
	def("client|pause", -3, flagAdmin, noKey, cmdClientPause)
	def("client|unpause", 2, flagAdmin, noKey, cmdClientUnpause)
	def("client|reply", 3, 0, noKey, cmdClientReply)
	def("client|help", 2, 0, noKey, cmdHelp)
	for _, sub := range t.by["client"].subs {
		sub.flags |= flagUnpaused
	}

	group = "pubsub"
	def("subscribe", -2, flagNoMulti, noKey, cmdSubscribe)
	def("psubscribe", -2, flagNoMulti, noKey, cmdPSubscribe)
	def("unsubscribe", -1, flagNoMulti, noKey, cmdUnsubscribe)
	def("punsubscribe", -1, flagNoMulti, noKey, cmdPUnsubscribe)
	def("publish", 3, fast, noKey, cmdPublish)
	def("pubsub", -2, 0, noKey, cmdHelp)
	def("pubsub|channels", -2, 0, noKey, cmdPubsubChannels)
	def("pubsub|numsub", -2, 0, noKey, cmdPubsubNumSub)
	def("pubsub|numpat", 2, 0, noKey, cmdPubsubNumPat)
	def("pubsub|help", 2, 0, noKey, cmdHelp)

	group = "cluster"
	def("cluster", -2, 0, noKey, cmdHelp)
	def("cluster|countkeysinslot", 3, 0, noKey, clustered(cmdClusterCountKeys))
	def("cluster|info", 2, 0, noKey, clustered(cmdClusterInfo))
	def("cluster|keyslot", 3, 0, noKey, clustered(cmdClusterKeySlot))
	def("cluster|myid", 2, 0, noKey, clustered(cmdClusterMyID))
	def("cluster|nodes", 2, 0, noKey, clustered(cmdClusterNodes))
	def("cluster|shards", 2, 0, noKey, clustered(cmdClusterShards))
	def("cluster|slots", 2, 0, noKey, clustered(cmdClusterSlots))
	def("cluster|help", 2, 0, noKey, cmdHelp)
	def("asking", 1, fast, noKey, clustered(cmdAsking))
	def("readonly", 1, fast, noKey, clustered(cmdReadOnly))
	def("readwrite", 1, fast, noKey, clustered(cmdReadWrite))

	group = "server"
	def("dbsize", 1, r|fast, noKey, cmdDBSize)
	def("flushdb", -1, w, noKey, cmdFlush).lockAll = lockEverything
	def("flushall", -1, w, noKey, cmdFlush).lockAll = lockEverything
	def("info", -1, 0, noKey, cmdInfo)
	def("time", 1, fast, noKey, cmdTime)
	def("save", 1, flagAdmin|flagNoMulti, noKey, cmdSave)
	def("bgsave", -1, flagAdmin|flagNoMulti, noKey, cmdBGSave)
	def("bgrewriteaof", 1, flagAdmin|flagNoMulti, noKey, cmdBGRewriteAOF)
	def("lastsave", 1, fast, noKey, cmdLastSave)
	def("role", 1, fast, noKey, cmdRole)
	def("sentinel", -2, 0, noKey, cmdHelp)
	def("sentinel|get-master-addr-by-name", 3, 0, noKey, cmdSentinelGetMaster)
	def("sentinel|master", 3, 0, noKey, cmdSentinelMaster)
	def("sentinel|masters", 2, 0, noKey, cmdSentinelMasters)
	def("sentinel|replicas", 3, 0, noKey, cmdSentinelReplicas)
	def("sentinel|sentinels", 3, 0, noKey, cmdSentinelSentinels)
	def("sentinel|slaves", 3, 0, noKey, cmdSentinelReplicas)
	def("sentinel|help", 2, 0, noKey, cmdHelp)
	def("sync", 1, flagAdmin|flagNoMulti, noKey, cmdSync)
	def("replconf", -1, flagAdmin, noKey, cmdReplConf)
	def("debug", -2, flagAdmin|flagRefused, noKey, nil)
	def("memory", -2, r, noKey, cmdHelp)
	def("memory|usage", -3, r, subKey, cmdMemoryUsage)
	def("memory|help", 2, r, noKey, cmdHelp)
	def("config", -2, flagAdmin, noKey, cmdHelp)
	def("config|get", -3, flagAdmin, noKey, cmdConfigGet)
	def("config|set", -4, flagAdmin, noKey, cmdConfigSet)
	def("config|rewrite", 2, flagAdmin, noKey, cmdConfigRewrite)
	def("config|resetstat", 2, flagAdmin, noKey, cmdConfigResetStat)
	def("config|help", 2, flagAdmin, noKey, cmdHelp)
	def("monitor", 1, flagAdmin, noKey, cmdMonitor)
	def("slowlog", -2, flagAdmin, noKey, cmdHelp)
	def("slowlog|get", -2, flagAdmin, noKey, cmdSlowlogGet)
	def("slowlog|len", 2, flagAdmin, noKey, cmdSlowlogLen)
	def("slowlog|reset", 2, flagAdmin, noKey, cmdSlowlogReset)
	def("slowlog|help", 2, flagAdmin, noKey, cmdHelp)
	def("latency", -2, flagAdmin, noKey, cmdHelp)
	def("latency|latest", 2, flagAdmin, noKey, cmdLatencyLatest)
	def("latency|history", 3, flagAdmin, noKey, cmdLatencyHistory)
	def("latency|reset", -2, flagAdmin, noKey, cmdLatencyReset)
	def("latency|histogram", -2, flagAdmin, noKey, cmdLatencyHistogram)
	def("latency|doctor", 2, flagAdmin, noKey, cmdLatencyDoctor)
	def("latency|help", 2, flagAdmin, noKey, cmdHelp)
	def("command", -1, 0, noKey, cmdCommand)
	def("command|count", 2, 0, noKey, cmdCommandCount)
	def("command|info", -2, 0, noKey, cmdCommandInfo)
	def("command|docs", -2, 0, noKey, cmdCommandDocs)
	def("command|list", 2, 0, noKey, cmdCommandList)
	def("command|getkeys", -4, 0, noKey, cmdCommandGetKeys)
	def("command|help", 2, 0, noKey, cmdHelp)
	def("polder", -2, 0, noKey, cmdHelp)
	def("polder|stats", 2, 0, noKey, cmdPolderStats)
	def("polder|snapshot", -2, flagAdmin|flagNoMulti, noKey, cmdPolderSnapshot)
	def("polder|part", 2, flagAdmin|flagNoMulti, noKey, cmdPolderPart)
	def("polder|publish", 4, 0, noKey, cmdPolderPublish)
	def("polder|help", 2, 0, noKey, cmdHelp)
	for _, name := range []string{"keys", "scan", "dbsize", "randomkey", "lastsave", "wait", "waitaof"} {
		t.by[name].flags |= flagEach | flagMerge
	}
	for _, name := range []string{"flushall", "flushdb", "save", "bgsave", "bgrewriteaof"} {
		t.by[name].flags |= flagEach
	}
	for _, name := range []string{"subscribe", "psubscribe", "unsubscribe", "punsubscribe", "ping", "quit", "reset"} {
		t.by[name].flags |= flagSubscribed
	}
	// The same as in Redis, where PING is refused.
	for _, name := range []string{"multi", "exec", "discard", "unwatch", "subscribe", "psubscribe", "unsubscribe", "punsubscribe", "publish", "pubsub", "echo", "select", "quit", "reset", "auth", "hello",
		"client", "info", "cluster", "asking", "readonly", "readwrite", "role", "sentinel", "time", "config", "command", "polder", "monitor", "slowlog", "latency"} {
		c := t.by[name]
		c.flags |= flagLoading
		for _, sub := range c.subs {
			sub.flags |= flagLoading
		}
	}
	return t
})

func sortedNames(m map[string]*command) []string {
	return slices.Sorted(maps.Keys(m))
}
