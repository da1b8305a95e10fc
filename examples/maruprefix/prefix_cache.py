"""A prefix cache over shared memory, as inference engines have one, without a GPU.

Several processes play engines. A request's prompt is a list of blocks, each named
by all that comes before it; conversations share beginnings. An engine looks up how
much of a prompt's beginning somebody has computed, pins that, reads it where it
lies, computes the rest (here: some hashing), and stores it for everybody.

    polder share --maru tcp://127.0.0.1:5555 &
    PYTHONPATH=clients/python python3 examples/maruprefix/prefix_cache.py

With --trace FILE the requests are those of a trace: JSON lines with hash_ids.
It needs Debian's python3-zmq and python3-msgpack.
"""

import argparse
import concurrent.futures
import hashlib
import json
import random

from maru_client import Handler


def conversations(n, seed=1):
    """Requests of people who talk in turns, and begin with one of few prompts."""
    rng, block, talks, requests = random.Random(seed), iter(range(1 << 60)), [], []
    systems = [[next(block) for _ in range(4)] for _ in range(3)]
    while len(requests) < n:
        if not talks or rng.random() < 0.2:
            talks.append(list(rng.choice(systems)))
        talk = rng.choice(talks[-8:])
        talk += [next(block) for _ in range(rng.randint(1, 3))]
        requests.append(list(talk))
    return requests


def compute(block, size):
    """What attention would compute of a block: always the same."""
    seed = hashlib.sha256(str(block).encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def engine(number, engines, url, requests, size):
    found = computed = wrong = 0
    with Handler(url, instance_id=f"engine-{number}", pool_size=64 * size, chunk_size=size, timeout=20) as h:
        for blocks in requests[number::engines]:
            keys = [f"toy@1@0@{b:016x}@uint8" for b in blocks]
            hits = h.batch_pin(keys)
            n = hits.index(False) if False in hits else len(hits)
            for block, view in zip(blocks, h.batch_retrieve(keys[:n])):
                found += 1
                wrong += view is None or view != compute(block, size)
            h.batch_unpin(keys[:n])
            h.batch_store([(key, compute(block, size)) for key, block in zip(keys[n:], blocks[n:])])
            computed += len(blocks) - n
    return found, computed, wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="tcp://127.0.0.1:5555")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--block", type=int, default=64 << 10, help="bytes of a block")
    parser.add_argument("--trace", help="JSON lines with hash_ids")
    args = parser.parse_args()
    if args.trace:
        with open(args.trace) as lines:
            requests = [json.loads(line)["hash_ids"] for _, line in zip(range(args.requests), lines)]
    else:
        requests = conversations(args.requests)
    with concurrent.futures.ProcessPoolExecutor(args.engines) as pool:
        engines = [pool.submit(engine, i, args.engines, args.url, requests, args.block) for i in range(args.engines)]
        found, computed, wrong = (sum(numbers) for numbers in zip(*(e.result() for e in engines)))
    print(f"{len(requests)} requests, {found + computed} blocks: {found} found ({100 * found // (found + computed)}%), "
          f"{computed} computed, {wrong} wrong, {found * args.block >> 20} MiB not computed again")
    return wrong != 0


if __name__ == "__main__":
    raise SystemExit(main())
