package resp

import (
	"sync"

	"polder/resp/commands"
	"polder/resp/feed"
	"polder/resp/latency"
	"polder/resp/reply"
	"polder/resp/table"
	"polder/resp/topology"
)

// handler runs a command. It appends the reply to s.Out, or returns an error, which becomes the reply. If it returns
// far.ErrWouldBlock, its changes are undone, and it may be run again.
type handler func(s *session, a [][]byte) error

// commandSet is the table of commands, and their handlers by table.Command.ID.
type commandSet struct {
	*table.Table
	run []handler
}

var (
	noKey    = table.At{}
	oneKey   = table.At{First: 1, Last: 1, Step: 1}
	twoKeys  = table.At{First: 1, Last: 2, Step: 1}
	allKeys  = table.At{First: 1, Last: -1, Step: 1}
	keyPairs = table.At{First: 1, Last: -1, Step: 2}
	subKey   = table.At{First: 2, Last: 2, Step: 1}
)

// commandTable is the table of all servers.
var commandTable = sync.OnceValue(func() *commandSet {
	t := &commandSet{Table: table.New()}
	group := t.Group
	def := func(name string, arity int, f table.Flags, k table.At, run handler) {
		t.Define(name, arity, f, k)
		t.run = append(t.run, run)
	}
	const w, r, fast, blind = table.Write, table.Read, table.Fast, table.Blind

	group("string")
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

	group("generic")
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
	def("object", -2, r, noKey, about((*table.Table).Help))
	def("object|encoding", 3, r, subKey, data(commands.ObjectEncoding))
	def("object|refcount", 3, r, subKey, data(commands.ObjectRefcount))
	def("object|idletime", 3, r, subKey, data(commands.ObjectIdletime))
	def("object|freq", 3, r, subKey, data(commands.ObjectFreq))
	def("object|help", 2, r, noKey, about((*table.Table).Help))

	group("hash")
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

	group("transactions")
	def("multi", 1, fast|table.Immediate, noKey, cmdMulti)
	def("exec", 1, table.Immediate, noKey, cmdExec)
	def("discard", 1, fast|table.Immediate, noKey, cmdDiscard)
	def("watch", -2, r|fast|table.Immediate, allKeys, cmdWatch)
	def("unwatch", 1, fast, noKey, cmdUnwatch)

	group("connection")
	def("ping", -1, fast|table.Standby, noKey, cmdPing)
	def("echo", 2, fast, noKey, cmdEcho)
	def("select", 2, fast, noKey, cmdSelect)
	def("quit", -1, fast|table.NoAuth|table.Immediate, noKey, cmdQuit)
	def("reset", 1, fast|table.NoAuth|table.Immediate, noKey, cmdReset)
	def("auth", -2, fast|table.NoAuth|table.Conn, noKey, cmdAuth)
	def("hello", -1, fast|table.NoAuth|table.Conn, noKey, cmdHello)
	def("client", -2, 0, noKey, about((*table.Table).Help))
	def("client|id", 2, 0, noKey, cmdClientID)
	def("client|getname", 2, 0, noKey, cmdClientGetName)
	def("client|setname", 3, 0, noKey, cmdClientSetName)
	def("client|setinfo", 4, 0, noKey, cmdClientSetInfo)
	def("client|info", 2, 0, noKey, cmdClientInfo)
	def("client|list", -2, table.Admin, noKey, cmdClientList)
	def("client|no-evict", 3, table.Admin, noKey, cmdClientNoEvict)
	def("client|kill", -3, table.Admin, noKey, cmdClientKill)
	def("client|pause", -3, table.Admin, noKey, cmdClientPause)
	def("client|unpause", 2, table.Admin, noKey, cmdClientUnpause)
	def("client|reply", 3, 0, noKey, cmdClientReply)
	def("client|help", 2, 0, noKey, about((*table.Table).Help))
	for _, sub := range t.By["client"].Subs {
		sub.Flags |= table.Unpaused | table.Conn
	}

	group("pubsub")
	def("subscribe", -2, table.NoMulti, noKey, subscribe(feed.Channel))
	def("psubscribe", -2, table.NoMulti, noKey, subscribe(feed.Pattern))
	def("ssubscribe", -2, table.NoMulti|table.Names, allKeys, subscribe(feed.Shard))
	def("unsubscribe", -1, table.NoMulti, noKey, unsubscribe(feed.Channel))
	def("punsubscribe", -1, table.NoMulti, noKey, unsubscribe(feed.Pattern))
	def("sunsubscribe", -1, table.NoMulti|table.Names, allKeys, unsubscribe(feed.Shard))
	def("publish", 3, fast, noKey, cmdPublish)
	def("spublish", 3, fast|table.Names, oneKey, cmdSPublish)
	def("pubsub", -2, 0, noKey, about((*table.Table).Help))
	def("pubsub|channels", -2, 0, noKey, pubsubNames(feed.Channel))
	def("pubsub|numsub", -2, 0, noKey, pubsubNumSub(feed.Channel))
	def("pubsub|numpat", 2, 0, noKey, cmdPubsubNumPat)
	def("pubsub|shardchannels", -2, 0, noKey, pubsubNames(feed.Shard))
	def("pubsub|shardnumsub", -2, 0, noKey, pubsubNumSub(feed.Shard))
	def("pubsub|help", 2, 0, noKey, about((*table.Table).Help))

	group("cluster")
	def("cluster", -2, 0, noKey, about((*table.Table).Help))
	def("cluster|countkeysinslot", 3, 0, noKey, clustered(cmdClusterCountKeys))
	def("cluster|info", 2, 0, noKey, clustered(cmdClusterInfo))
	def("cluster|keyslot", 3, 0, noKey, clustered(cmdClusterKeySlot))
	def("cluster|myid", 2, 0, noKey, clustered(cmdClusterMyID))
	def("cluster|nodes", 2, 0, noKey, mapped(topology.Nodes))
	def("cluster|shards", 2, 0, noKey, mapped(topology.Shards))
	def("cluster|slots", 2, 0, noKey, mapped(topology.Slots))
	def("cluster|help", 2, 0, noKey, about((*table.Table).Help))
	def("asking", 1, fast|table.Conn, noKey, clustered(cmdAsking))
	def("readonly", 1, fast|table.Conn, noKey, clustered(cmdReadOnly))
	def("readwrite", 1, fast|table.Conn, noKey, clustered(cmdReadWrite))

	group("server")
	def("dbsize", 1, r|fast, noKey, data(commands.DBSize))
	def("flushdb", -1, w|table.All, noKey, data(commands.Flush))
	def("flushall", -1, w|table.All, noKey, data(commands.Flush))
	def("info", -1, 0, noKey, cmdInfo)
	def("time", 1, fast, noKey, cmdTime)
	def("save", 1, table.Admin|table.NoMulti, noKey, cmdSave)
	def("bgsave", -1, table.Admin|table.NoMulti, noKey, cmdBGSave)
	def("bgrewriteaof", 1, table.Admin|table.NoMulti, noKey, cmdBGRewriteAOF)
	def("lastsave", 1, fast, noKey, cmdLastSave)
	def("role", 1, fast, noKey, cmdRole)
	def("sentinel", -2, 0, noKey, about((*table.Table).Help))
	def("sentinel|get-master-addr-by-name", 3, 0, noKey, cmdSentinelGetMaster)
	def("sentinel|master", 3, 0, noKey, ofMaster(topology.Describe))
	def("sentinel|masters", 2, 0, noKey, cmdSentinelMasters)
	def("sentinel|replicas", 3, 0, noKey, ofMaster(topology.Replicas))
	def("sentinel|sentinels", 3, 0, noKey, ofMaster(topology.Sentinels))
	def("sentinel|slaves", 3, 0, noKey, ofMaster(topology.Replicas))
	def("sentinel|help", 2, 0, noKey, about((*table.Table).Help))
	def("sync", 1, table.Admin|table.NoMulti, noKey, cmdSync)
	def("replconf", -1, table.Admin|table.Conn, noKey, cmdReplConf)
	def("debug", -2, table.Admin|table.Refused, noKey, nil)
	def("memory", -2, r, noKey, about((*table.Table).Help))
	def("memory|usage", -3, r, subKey, data(commands.MemoryUsage))
	def("memory|help", 2, r, noKey, about((*table.Table).Help))
	def("config", -2, table.Admin, noKey, about((*table.Table).Help))
	def("config|get", -3, table.Admin, noKey, cmdConfigGet)
	def("config|set", -4, table.Admin, noKey, cmdConfigSet)
	def("config|rewrite", 2, table.Admin, noKey, cmdConfigRewrite)
	def("config|resetstat", 2, table.Admin, noKey, cmdConfigResetStat)
	def("config|help", 2, table.Admin, noKey, about((*table.Table).Help))
	def("monitor", 1, table.Admin, noKey, cmdMonitor)
	def("slowlog", -2, table.Admin, noKey, about((*table.Table).Help))
	def("slowlog|get", -2, table.Admin, noKey, slow((*latency.SlowLog).Get))
	def("slowlog|len", 2, table.Admin, noKey, slow((*latency.SlowLog).Len))
	def("slowlog|reset", 2, table.Admin, noKey, slow((*latency.SlowLog).Reset))
	def("slowlog|help", 2, table.Admin, noKey, about((*table.Table).Help))
	def("latency", -2, table.Admin, noKey, about((*table.Table).Help))
	def("latency|latest", 2, table.Admin, noKey, timed((*latency.Monitor).Latest))
	def("latency|history", 3, table.Admin, noKey, timed((*latency.Monitor).History))
	def("latency|reset", -2, table.Admin, noKey, timed((*latency.Monitor).Reset))
	def("latency|histogram", -2, table.Admin, noKey, cmdLatencyHistogram)
	def("latency|doctor", 2, table.Admin, noKey, timed((*latency.Monitor).Doctor))
	def("latency|help", 2, table.Admin, noKey, about((*table.Table).Help))
	def("command", -1, 0, noKey, about((*table.Table).List))
	def("command|count", 2, 0, noKey, about((*table.Table).Count))
	def("command|info", -2, 0, noKey, about((*table.Table).Info))
	def("command|docs", -2, 0, noKey, about((*table.Table).Docs))
	def("command|list", 2, 0, noKey, about((*table.Table).Names))
	def("command|getkeys", -4, 0, noKey, about((*table.Table).GetKeys))
	def("command|help", 2, 0, noKey, about((*table.Table).Help))
	def("polder", -2, 0, noKey, about((*table.Table).Help))
	def("polder|stats", 2, 0, noKey, cmdPolderStats)
	def("polder|snapshot", -2, table.Admin|table.NoMulti, noKey, cmdPolderSnapshot)
	def("polder|part", 2, table.Admin|table.NoMulti, noKey, cmdPolderPart)
	def("polder|publish", 4, 0, noKey, cmdPolderPublish)
	def("polder|help", 2, 0, noKey, about((*table.Table).Help))
	for _, name := range []string{"keys", "scan", "dbsize", "randomkey", "lastsave", "wait", "waitaof"} {
		t.By[name].Flags |= table.Each | table.Merge
	}
	for _, name := range []string{"flushall", "flushdb", "save", "bgsave", "bgrewriteaof"} {
		t.By[name].Flags |= table.Each
	}
	for _, name := range []string{"subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe", "ping", "quit", "reset"} {
		t.By[name].Flags |= table.Subscribed
	}
	// These are allowed while loading, as in Redis, where PING is refused.
	for _, name := range []string{"multi", "exec", "discard", "unwatch", "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe", "publish", "spublish", "pubsub", "echo", "select", "quit", "reset", "auth", "hello",
		"client", "info", "cluster", "asking", "readonly", "readwrite", "role", "sentinel", "time", "config", "command", "polder", "monitor", "slowlog", "latency"} {
		c := t.By[name]
		c.Flags |= table.Loading
		for _, sub := range c.Subs {
			sub.Flags |= table.Loading
		}
	}
	return t
})

// data is the handler of a command about keys and values, which needs no session.
func data(run func(c *commands.Client, a [][]byte) error) handler {
	return func(s *session, a [][]byte) error { return run(&s.Client, a) }
}

// about is the handler of a command about commands.
func about(run func(t *table.Table, w *reply.Writer, a [][]byte) error) handler {
	return func(s *session, a [][]byte) error { return run(s.srv.table.Table, &s.Writer, a) }
}

// slow is the handler of a command about the slow log.
func slow(run func(l *latency.SlowLog, w *reply.Writer, a [][]byte) error) handler {
	return func(s *session, a [][]byte) error { return run(s.srv.slow, &s.Writer, a) }
}

// timed is the handler of a command about latency.
func timed(run func(l *latency.Monitor, w *reply.Writer, a [][]byte) error) handler {
	return func(s *session, a [][]byte) error { return run(s.srv.latency, &s.Writer, a) }
}

func cmdLatencyHistogram(s *session, a [][]byte) error {
	return s.srv.latency.Histogram(s.srv.table.Table, &s.Writer, a)
}
