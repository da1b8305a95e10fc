package resp

import (
	"maps"
	"polder/resp/commands"
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
	def("get", 2, r|fast, oneKey, data(commands.Get))
	def("set", -3, w|blind, oneKey, data(commands.Set))
	def("setnx", 3, w|fast|blind, oneKey, data(commands.SetNX))
	def("setex", 4, w|blind, oneKey, data(commands.SetEX))
	def("psetex", 4, w|blind, oneKey, data(commands.PSetEX))
	def("getset", 3, w|fast, oneKey, data(commands.GetSet))
	def("getdel", 2, w|fast, oneKey, data(commands.GetDel))
	def("getex", -2, w|fast, oneKey, data(commands.GetEx))
	def("mget", -2, r|fast, allKeys, data(commands.MGet))
	def("mset", -3, w|blind, keyPairs, data(commands.MSet))
	def("msetnx", -3, w|blind, keyPairs, data(commands.MSetNX))
	def("append", 3, w|fast, oneKey, data(commands.Append))
	def("strlen", 2, r|fast, oneKey, data(commands.StrLen))
	def("getrange", 4, r, oneKey, data(commands.GetRange))
	def("substr", 4, r, oneKey, data(commands.GetRange))
	def("setrange", 4, w, oneKey, data(commands.SetRange))
	def("incr", 2, w|fast, oneKey, data(commands.Incr))
	def("decr", 2, w|fast, oneKey, data(commands.Decr))
	def("incrby", 3, w|fast, oneKey, data(commands.IncrBy))
	def("decrby", 3, w|fast, oneKey, data(commands.DecrBy))
	def("incrbyfloat", 3, w|fast, oneKey, data(commands.IncrByFloat))

	group = "generic"
	def("del", -2, w|blind, allKeys, data(commands.Del))
	def("unlink", -2, w|fast|blind, allKeys, data(commands.Del))
	def("exists", -2, r|fast|blind, allKeys, data(commands.Exists))
	def("touch", -2, r|fast|blind, allKeys, data(commands.Exists))
	def("expire", -3, w|fast, oneKey, data(commands.Expire))
	def("pexpire", -3, w|fast, oneKey, data(commands.PExpire))
	def("expireat", -3, w|fast, oneKey, data(commands.ExpireAt))
	def("pexpireat", -3, w|fast, oneKey, data(commands.PExpireAt))
	def("ttl", 2, r|fast|blind, oneKey, data(commands.TTL))
	def("pttl", 2, r|fast|blind, oneKey, data(commands.PTTL))
	def("expiretime", 2, r|fast|blind, oneKey, data(commands.ExpireTime))
	def("pexpiretime", 2, r|fast|blind, oneKey, data(commands.PExpireTime))
	def("persist", 2, w|fast, oneKey, data(commands.Persist))
	def("type", 2, r|fast|blind, oneKey, data(commands.Type))
	def("rename", 3, w, twoKeys, data(commands.Rename))
	def("renamenx", 3, w|fast, twoKeys, data(commands.RenameNX))
	def("copy", -3, w, twoKeys, data(commands.Copy))
	def("randomkey", 1, r, noKey, data(commands.RandomKey))
	def("scan", -2, r, noKey, data(commands.Scan))
	def("keys", 2, r, noKey, data(commands.Keys))
	def("wait", 3, 0, noKey, cmdWait)
	def("waitaof", 4, 0, noKey, cmdWaitAOF)
	def("object", -2, r, noKey, cmdHelp)
	def("object|encoding", 3, r, subKey, data(commands.ObjectEncoding))
	def("object|refcount", 3, r, subKey, data(commands.ObjectRefcount))
	def("object|idletime", 3, r, subKey, data(commands.ObjectIdletime))
	def("object|freq", 3, r, subKey, data(commands.ObjectFreq))
	def("object|help", 2, r, noKey, cmdHelp)

	group = "hash"
	def("hset", -4, w|fast, oneKey, data(commands.HSet))
	def("hmset", -4, w|fast, oneKey, data(commands.HMSet))
	def("hsetnx", 4, w|fast, oneKey, data(commands.HSetNX))
	def("hget", 3, r|fast, oneKey, data(commands.HGet))
	def("hmget", -3, r|fast, oneKey, data(commands.HMGet))
	def("hgetall", 2, r, oneKey, data(commands.HGetAll))
	def("hkeys", 2, r, oneKey, data(commands.HKeys))
	def("hvals", 2, r, oneKey, data(commands.HVals))
	def("hdel", -3, w|fast, oneKey, data(commands.HDel))
	def("hexists", 3, r|fast, oneKey, data(commands.HExists))
	def("hlen", 2, r|fast, oneKey, data(commands.HLen))
	def("hstrlen", 3, r|fast, oneKey, data(commands.HStrLen))
	def("hincrby", 4, w|fast, oneKey, data(commands.HIncrBy))
	def("hincrbyfloat", 4, w|fast, oneKey, data(commands.HIncrByFloat))
	def("hscan", -3, r, oneKey, data(commands.HScan))
	def("hrandfield", -2, r, oneKey, data(commands.HRandField))

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
	def("dbsize", 1, r|fast, noKey, data(commands.DBSize))
	def("flushdb", -1, w, noKey, data(commands.Flush)).lockAll = lockEverything
	def("flushall", -1, w, noKey, data(commands.Flush)).lockAll = lockEverything
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
	def("memory|usage", -3, r, subKey, data(commands.MemoryUsage))
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

// data is the handler of a command about data, which needs no session.
func data(run func(c *commands.Client, a [][]byte) error) handler {
	return func(s *session, a [][]byte) error { return run(&s.Client, a) }
}

func sortedNames(m map[string]*command) []string {
	return slices.Sorted(maps.Keys(m))
}

func lockEverything(*session) bool { return true }
