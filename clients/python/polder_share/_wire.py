"""The messages of "polder share", and what it refuses."""

from __future__ import annotations

import struct
from typing import Callable, Iterator, Sequence, TypeVar, Union

T = TypeVar("T")
Key = Union[str, bytes]

VERSION = 1
MAX_MESSAGE = 128 << 10
MAX_BATCH = 1024
MAX_BATCH_BYTES = 96 << 10
MAX_KEY = 512
MAX_TTL = 1 << 52  # in ms
DEFAULT_SOCKET = "/run/polder/share.sock"

(HELLO, ALLOC, _, RELEASE, PUT, LOOKUP, EXISTS, DELETE, PIN, UNPIN, MAP,
 UNMAP, UNREF, EVICT, STATS, LIST, WATCH, BYE) = range(1, 19)

HELLO_LEASE, HELLO_LANE = 1, 2
LOOKUP_REF, LOOKUP_HANDLES = 1, 2
LRU = 1
HANDLE_SIZE = 64
FREE, LIVE, DYING = 0, 1, 2
MADV_POPULATE_WRITE = 23


class Error(Exception):
    """The base of all errors of this module."""


class NotFound(Error):
    """No such key, or no longer."""


class Pinned(Error):
    """The key is pinned and stays."""


class Denied(Error):
    """The handle, the owner or the user does not allow it."""


class Full(Error):
    """No pool has room, and nothing could be evicted."""


class Quota(Error):
    """The tenant's quota is used up."""


class Invalid(Error):
    """The request makes no sense."""


class LogFull(Error):
    """The daemon's disk is full, so that it cannot promise anything new."""


class Busy(Error):
    """The daemon has as many clients as it admits."""


class Failed(Error):
    """The daemon has failed."""


class Closed(Error):
    """The client, the page or the view is closed."""


class Unavailable(Error):
    """The daemon cannot be reached."""


OK, EXISTED, NOT_FOUND, PINNED, GONE = 0, 1, 2, 3, 11
ERRORS: dict[int, type[Error]] = {2: NotFound, 3: Pinned, 4: Denied, 5: Full, 6: Quota, 7: Invalid,
          8: LogFull, 9: Busy, 10: Failed}


class Fields:
    """Takes fields from a message."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        if self.at + n > len(self.data):
            raise Failed("the daemon's answer is cut off")
        part = self.data[self.at:self.at + n]
        self.at += n
        return part

    def number(self, fmt: str) -> int:
        return int(struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))[0])

    def more(self) -> bool:
        return self.at < len(self.data)

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)


def encode_key(key: Key) -> bytes:
    if isinstance(key, str):
        key = key.encode()
    if not 1 <= len(key) <= MAX_KEY:
        raise Invalid(f"a key of {len(key)} bytes, want 1 to {MAX_KEY}")
    return struct.pack("<H", len(key)) + key


def batches(items: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Cuts items into what one message may hold."""
    part: list[T] = []
    total = 0
    for item in items:
        if part and (len(part) == MAX_BATCH or total + size(item) > MAX_BATCH_BYTES):
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part
