"""A cache in memory that this host has idle: get a value, or rebuild it.

    import polder_soft

    cache = polder_soft.Cache("127.0.0.1:11211")
    page = cache.get_or_rebuild("page:home", render_home, ttl=60)

It speaks memcached's protocol with `polder serve --tier soft --memcached ADDRESS`, or with
any other memcached. Values are bytes, unless `dumps` and `loads` say how to make bytes of
others: `Cache(address, dumps=lambda v: json.dumps(v).encode(), loads=json.loads)`. Do not
unpickle what other users can write.

What is stored may be gone at any time. The cache itself may be, too: then every value is
rebuilt, the logger `polder_soft` says so once, and once that it is back. No call waits for
the cache longer than `timeout`, and while it is away, none does for `retry` seconds.

A Cache may be used by any number of threads, and after a fork. Of those threads of a process
that ask for one key at a time, one rebuilds, and the others get what it returns or raises.
Each thread has a connection of its own, so that the server sees how long a value that was
missing took to rebuild: that is what it is worth.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import socket
import threading
import time
import weakref
from typing import Any, Callable, Generic, TypeVar

__all__ = ["Cache"]

_log = logging.getLogger("polder_soft")

V = TypeVar("V")  # a value
A = TypeVar("A")  # an answer

#: The longest key of the protocol; others are hashed.
_MAX_KEY = 250
#: From so many seconds on the protocol takes a TTL for a time since 1970.
_MAX_TTL = 30 * 24 * 3600
#: The longest line of a reply.
_MAX_LINE = 2048


class _Away(Exception):
    """The cache cannot be asked."""


class _Connection:
    """A connection of one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.until = 0.0  # when the present call must have ended; time.monotonic
        self.came = bytearray()  # what has not been read yet

    def close(self) -> None:
        self.sock.close()

    __del__ = close

    def send(self, data: bytes) -> None:
        self.sock.settimeout(_left(self.until))
        self.sock.sendall(data)

    def wait(self) -> None:
        """Wait for more to come. A reply that comes byte by byte is not given more time than another."""
        self.sock.settimeout(_left(self.until))
        data = self.sock.recv(64 << 10)
        if not data:
            raise _Away("the connection has ended")
        self.came += data

    def read(self, n: int) -> bytes:
        while len(self.came) < n:
            self.wait()
        data = bytes(self.came[:n])
        del self.came[:n]
        return data

    def line(self) -> bytes:
        while (n := self.came.find(b"\n", 0, _MAX_LINE) + 1) == 0 and len(self.came) < _MAX_LINE:
            self.wait()
        line = self.read(n or _MAX_LINE)
        if not line.endswith(b"\r\n"):
            raise _Away(f"it answers {line[:40]!r}")
        return line[:-2]

    def get(self, key: bytes) -> bytes | None:
        self.send(b"get %s\r\n" % key)
        line = self.line()
        if line == b"END":
            return None
        words = line.split()
        if len(words) != 4 or words[0] != b"VALUE" or words[1] != key or not words[3].isdigit():
            raise _Away(f"it answers {line[:40]!r}")
        value = self.read(int(words[3]) + 2)
        if value[-2:] != b"\r\n" or self.line() != b"END":
            raise _Away("a value is cut off")
        return value[:-2]

    def set(self, key: bytes, ttl: int, value: bytes) -> bool:
        self.send(b"set %s 0 %d %d\r\n%s\r\n" % (key, ttl, len(value), value))
        line = self.line()
        if line == b"STORED":
            return True
        if line.startswith(b"SERVER_ERROR"):  # too large, or no memory; it has read the value
            return False
        raise _Away(f"it answers {line[:40]!r}")

    def delete(self, key: bytes) -> bool:
        self.send(b"delete %s\r\n" % key)
        line = self.line()
        if line in (b"DELETED", b"NOT_FOUND"):
            return line == b"DELETED"
        raise _Away(f"it answers {line[:40]!r}")


def _left(until: float) -> float:
    """How many seconds are left until then."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _connect(address: str, timeout: float) -> _Connection:
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _Connection(sock)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(address[len("unix:"):])
    except BaseException:
        sock.close()
        raise
    return _Connection(sock)


class _Flight(Generic[V]):
    """A value that is being rebuilt."""

    def __init__(self) -> None:
        self.stale = False  # the key has been set or deleted meanwhile
        self.thread = threading.get_ident()
        self.done = threading.Event()
        self.value: V
        self.error: BaseException | None = None


def _same(value: Any) -> Any:
    return value


class Cache(Generic[V]):
    """A cache at ADDRESS: "HOST:PORT" or "unix:PATH". A context manager.

    ttl is for how many seconds a value may be used, None for as long as there is memory.
    timeout bounds how long a call waits for the cache; after an error nobody asks for retry seconds.
    """

    def __init__(self, address: str, ttl: float | None = None, timeout: float = 1.0, retry: float = 1.0,
                 dumps: Callable[[V], bytes] = _same, loads: Callable[[bytes], V] = _same) -> None:
        path, _, port = address.rpartition(":")
        if not path or path != "unix" and not port.isdigit() and not address.startswith("unix:"):
            raise ValueError(f"cannot use the address {address!r}: expected HOST:PORT or unix:PATH")
        _seconds(ttl)
        self._address, self._ttl, self._timeout, self._retry = address, ttl, timeout, retry
        self._dumps, self._loads = dumps, loads
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._local = threading.local()  # this thread's connection
        self._lock = threading.Lock()  # guards what follows
        self._connections: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._flights: dict[bytes, _Flight[V]] = {}
        self._away = False  # and the log has said so
        self._ask_again = 0.0  # when somebody may ask again; time.monotonic

    def get_or_rebuild(self, key: str | bytes, rebuild: Callable[[], V], ttl: float | None = None) -> V:
        """Return the value of a key, from the cache or else from rebuild(), which is then
        stored for ttl seconds, or as long as the cache's ttl says."""
        name, seconds = _name(key), _seconds(self._ttl if ttl is None else ttl)
        self._check()
        with self._lock:
            flight = self._flights.get(name)
            if flight is None:
                mine = self._flights[name] = _Flight()
        if flight is not None:
            if flight.thread == threading.get_ident():
                raise RuntimeError(f"cannot rebuild {key!r}: its own rebuild() asks for it")
            flight.done.wait()
            if flight.error is not None:
                raise flight.error
            return flight.value
        try:
            data = self._ask(lambda c: c.get(name), None)
            mine.value = self._loads(data) if data is not None else self._rebuild(mine, name, rebuild, seconds)
        except BaseException as e:
            mine.error = e
            raise
        finally:
            with self._lock:
                if self._flights.get(name) is mine:
                    del self._flights[name]
            mine.done.set()
        return mine.value

    def _rebuild(self, mine: _Flight[V], name: bytes, rebuild: Callable[[], V], seconds: int) -> V:
        value = rebuild()
        data = self._dumps(value)
        if not mine.stale:
            self._ask(lambda c: c.set(name, seconds, data), False)
            if mine.stale:  # it may have come in between
                self._ask(lambda c: c.delete(name), False)
        return value

    def _overtake(self, name: bytes) -> None:
        """What is being rebuilt is older than what the caller knows: it is not stored, and
        whoever asks from now on does not get it."""
        self._check()
        with self._lock:
            flight = self._flights.pop(name, None)
            if flight is not None:
                flight.stale = True

    def get(self, key: str | bytes) -> V | None:
        """Return the value of a key, or None if it is not there."""
        name = _name(key)
        data = self._ask(lambda c: c.get(name), None)
        return None if data is None else self._loads(data)

    def set(self, key: str | bytes, value: V, ttl: float | None = None) -> bool:
        """Store a value, and return whether it is stored."""
        name, seconds, data = _name(key), _seconds(self._ttl if ttl is None else ttl), self._dumps(value)
        self._overtake(name)
        return self._ask(lambda c: c.set(name, seconds, data), False)

    def delete(self, key: str | bytes) -> bool:
        """Remove a value, and return whether it was there and is gone. While the cache is
        away it can not be removed, and False is returned."""
        name = _name(key)
        self._overtake(name)
        return self._ask(lambda c: c.delete(name), False)

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        self._closed = True
        with self._lock:
            for c in list(self._connections):
                c.close()

    def __enter__(self) -> Cache[V]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise ValueError("the cache is closed")
        if self._pid != os.getpid():  # the parent's connections and threads are not ours
            self._begin()

    def _ask(self, question: Callable[[_Connection], A], otherwise: A) -> A:
        """Ask over this thread's connection. A connection that has been idle may have ended
        meanwhile, as when the server was started again: then a new one is tried once."""
        self._check()
        if time.monotonic() < self._ask_again:
            return otherwise
        until = time.monotonic() + self._timeout
        connection: _Connection | None = getattr(self._local, "connection", None)
        while True:
            fresh = connection is None
            try:
                if connection is None:
                    connection = _connect(self._address, _left(until))
                    with self._lock:
                        self._connections.add(connection)
                    self._local.connection = connection
                connection.until = until
                answer = question(connection)
            except (OSError, ValueError, _Away) as e:
                self._drop()
                connection = None
                if fresh:
                    self._gone(e)
                    return otherwise
                continue
            except BaseException:  # such as KeyboardInterrupt: a reply may be on its way
                self._drop()
                raise
            if self._away:
                self._back()
            return answer

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            connection.close()

    def _gone(self, why: Exception) -> None:
        with self._lock:
            self._ask_again = time.monotonic() + self._retry
            if self._away:
                return
            self._away = True
        _log.warning("the cache at %s is away, so that all values are rebuilt: %s", self._address, why)

    def _back(self) -> None:
        with self._lock:
            if not self._away:
                return
            self._away = False
        _log.info("the cache at %s is back", self._address)


def _name(key: str | bytes) -> bytes:
    """A key as the protocol takes it: one that it does not is hashed."""
    name = key.encode() if isinstance(key, str) else key
    if not name or len(name) > _MAX_KEY or any(b <= 0x20 or b == 0x7F for b in name):
        return b"sha256:" + hashlib.sha256(name).hexdigest().encode()
    return name


def _seconds(ttl: float | None) -> int:
    """A TTL as the protocol takes it: whole seconds, at least one."""
    if ttl is None:
        return 0
    if not 0 < ttl < 1 << 62:
        raise ValueError(f"cannot keep a value for {ttl} seconds: expected more than 0 and less than 2**62, or None")
    seconds = math.ceil(ttl)
    return seconds if seconds <= _MAX_TTL else int(time.time()) + seconds
