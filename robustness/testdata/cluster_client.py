"""A client of a heap that servers share, redis-py's RedisCluster, which checks what it reads.

It writes to keys of its own, again and again, and reads each at once. After each round it prints "round" and how many commands
have succeeded in it. What is wrong it prints, too: "lost", "stale" or "wrong", and what. A key at which an attempt failed has either value from then on, perhaps late, and is not written to again. When
the standard input ends it reads all keys that it ever had, and prints "end".

arguments: name, keys, HOST:PORT...
"""
import logging, sys, threading, time
import redis
from redis.cluster import ClusterNode, RedisCluster


class Attempts(logging.Handler):
    """Notes that an attempt failed, which redis-py logs, and makes up for by another one. MOVED is not a failure."""

    failed = False

    def emit(self, record):
        self.failed = self.failed or record.getMessage() != "MovedError"


attempts = Attempts()
log = logging.getLogger("redis.cluster")
log.addHandler(attempts)
log.propagate = False
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()


def say(*words):
    print(*words, flush=True)


def try_(what, f):
    """What f returns, and whether it may have happened more than once, or not at all."""
    global c
    attempts.failed = False
    try:
        if c is None:
            # It tries a server that does not answer five times before it asks another one who has the key.
            c = RedisCluster(startup_nodes=nodes, decode_responses=True, socket_timeout=2)
        return f(), attempts.failed
    except Exception as e:
        say("error", what, repr(e))
        c = None  # redis-py 4.3 has been seen to ask a dead server for ever after that, and never who has the key
        return None, True


name, count = sys.argv[1], int(sys.argv[2])
nodes = [ClusterNode(h, int(p)) for h, p in (a.rsplit(":", 1) for a in sys.argv[3:])]
c = None
keys = [[f"{name}:{i}:0", 0, 0] for i in range(count)]  # key, what was acknowledged, what was tried
left = []


def check(key, got, low, high, last=False):
    n = 0
    if got is not None:
        n = int(got.split(" ")[1]) if got.startswith(key + " ") else -1
    if not low <= n <= high:
        kind = "wrong" if n < 0 or n > high else "lost" if last else "stale"
        say(kind, key, "is", repr(got), "want", low, "to", high)


while not ended.is_set():
    acked = 0
    for i, k in enumerate(keys):
        time.sleep(0.001)
        k[2] += 1
        _, unsure = try_("SET", lambda: c.set(k[0], f"{k[0]} {k[2]}"))
        if not unsure:
            k[1] = k[2]
            got, failed = try_("GET", lambda: c.get(k[0]))
            acked += 2 - failed
            if not failed or got is not None:
                check(k[0], got, k[1], k[2])
        else:
            left.append(k)
            keys[i] = [f"{name}:{i}:{len(left)}", 0, 0]
    say("round", acked)
for key, low, high in left + keys:
    for _ in range(600):
        got, failed = try_("GET", lambda: c.get(key))
        if not failed:
            check(key, got, low, high, last=True)
            break
        time.sleep(0.1)
    else:
        say("lost", key, "cannot be read")
say("end")
