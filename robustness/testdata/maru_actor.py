"""A client of Maru's in a process of its own, which does what it is told: each line
of standard input is an expression about the handler h, whose value it prints."""

import sys
import time

import maru_client

h = maru_client.Handler(sys.argv[1], use_async_rpc=sys.argv[2] == "async", timeout=float(sys.argv[3]),
                        pool_size=1 << 20, chunk_size=64 << 10, instance_id=sys.argv[4])
h.connect()
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except Exception as e:
        print(type(e).__name__, flush=True)
