"""k-means with numpy on an array that is larger than its local memory, which polder pager serves:

    polder node --lend 1GiB
    polder pager --far 127.0.0.1:7070
    PYTHONPATH=clients/python python3 examples/pagekmeans/kmeans.py

numpy knows nothing of far memory: the array lies in the memory that polder_pages maps.
"""

import argparse
import sys
import time

import numpy

import polder_pages

DIMENSIONS, CLUSTERS, PIECE = 16, 8, 1 << 14


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pager", default="unix:/run/polder/pager.sock", help="where polder pager listens")
    parser.add_argument("--size", type=int, default=256, help="MiB of points")
    parser.add_argument("--local", type=int, default=64, help="MiB of them that may be in local memory at a time")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    begin = time.monotonic()
    view = polder_pages.map(args.pager, args.size << 20, local=args.local << 20)
    points = numpy.frombuffer(view, dtype=numpy.float32).reshape(-1, DIMENSIONS)
    random = numpy.random.default_rng(1)
    true = random.uniform(-100, 100, (CLUSTERS, DIMENSIONS)).astype(numpy.float32)
    for at in range(0, len(points), PIECE):
        piece = points[at:at + PIECE]
        piece[:] = true[numpy.arange(at, at + len(piece)) % CLUSTERS] + random.standard_normal(piece.shape, dtype=numpy.float32)
    print(f"{time.monotonic() - begin:6.1f} s  {len(points)} points, {args.size} MiB, {args.local} MiB local", flush=True)

    centers = points[:CLUSTERS].copy()  # one of each cluster
    for turn in range(args.rounds):
        sums, counts = numpy.zeros((CLUSTERS, DIMENSIONS)), numpy.zeros(CLUSTERS, dtype=numpy.int64)
        for at in range(0, len(points), PIECE):
            piece = points[at:at + PIECE]
            nearest = ((piece[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
            numpy.add.at(sums, nearest, piece)
            counts += numpy.bincount(nearest, minlength=CLUSTERS)
        centers = (sums / numpy.maximum(counts, 1)[:, None]).astype(numpy.float32)
        print(f"{time.monotonic() - begin:6.1f} s  round {turn + 1} of {args.rounds}", flush=True)

    error = float(numpy.abs(centers - true).max())
    if error > 0.2 or counts.max() - counts.min() > 1:
        print(f"a center is {error:.3f} from where it should be; the clusters have {counts.tolist()} points", file=sys.stderr)
        return 1
    print(f"{time.monotonic() - begin:6.1f} s  all centers found, within {error:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
