"""The connection to the daemon."""

from __future__ import annotations

import array
import collections
import ctypes
import errno
import json
import math
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
import weakref
from typing import Any, Sequence, Tuple, cast

from ._memory import Hold, Lease, Mapping, Page, Region, View, libc
from ._wire import (
    ALLOC, BYE, Closed, DEFAULT_SOCKET, DELETE, ERRORS, EVICT, EXISTS, Error, FREE, Failed,
    Fields, Full, GONE, HANDLE_SIZE, HELLO, HELLO_LANE, HELLO_LEASE, Invalid, Key, LOOKUP,
    LOOKUP_HANDLES, LOOKUP_REF, LRU, MADV_POPULATE_WRITE, MAP, MAX_MESSAGE, MAX_TTL, NotFound, OK,
    PIN, PUT, Quota, RELEASE, STATS, UNMAP, UNPIN, UNREF, Unavailable, VERSION, WATCH, batches,
    encode_key,
)

#: A key, the page with its bytes, and how many they are.
Item = Tuple[Key, Page, int]
# Where a key lies: region, offset, length, page, word of the page, and when it
# expires in ms since 1970, or 0.
Found = Tuple[int, int, int, int, int, int]
Place = Tuple[Mapping, int, int, int, int, int]


clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forked() -> None:
    for c in clients:
        c._fork()


os.register_at_fork(after_in_child=_forked)


class Client:
    """A connection to the daemon. A context manager."""

    def __init__(self, path: str = DEFAULT_SOCKET, page_size: int = 1 << 20, region_size: int | None = None,
                 pool: str = "", name: str | None = None, patience: float = 10.0, cache_keys: int = 65536) -> None:
        self.page_size = page_size
        self.region_size = region_size or max(64 << 20, 64 * page_size)
        if not 1 <= self.page_size <= self.region_size < 1 << 63:
            raise Invalid(f"pages of {page_size} bytes in regions of {self.region_size}: want at least 1, and no more than a region has")
        self._path, self._pool, self._patience = path, pool, patience
        self._name = (name or sys.argv[0] or "python").encode()[-128:]
        self._lock = threading.RLock()  # guards everything below
        self._token = bytes(16)
        self._sock: socket.socket
        self._watch: socket.socket
        self._table: mmap.mmap | None = None
        self._table_view: memoryview
        self._lru = self._leaving = self._closed = self._forked = False
        self._regions: list[Region] = []  # the active one first
        self._maps: dict[int, Mapping] = {}
        self._handles: dict[int, bytes] = {}
        self._refs: dict[int, int] = {}  # page -> open views that hold no slot of the lease
        self._views = 0      # open views, and closed ones that arrays still wrap
        self._ended: collections.deque[Hold] = collections.deque()  # holds to be dropped; not guarded
        self._places: dict[bytes, Place] = {}  # key -> where it lay, and the word of its page then
        self._cache_keys = cache_keys
        self._lease = Lease() if Lease.FUTEX else None
        self._freed = -1
        with self._lock:
            self._attach()
        self._waker, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._watcher, daemon=True, name="polder_share")
        self._thread.start()
        clients.add(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What a client can do.

    def alloc(self) -> Page:
        """Returns a Page to fill."""
        with self._lock:
            while True:
                self._check()
                for region in self._regions:
                    if region.free:
                        self._regions.remove(region)
                        self._regions.insert(0, region)
                        return Page(region, region.free.pop())
                if self._collect():
                    continue
                try:
                    self._expand()
                except (Full, Quota):
                    if not self._lru or not self._evict(8):
                        raise

    def free(self, page: Page) -> None:
        """Gives a page back unused."""
        with self._lock:
            region = page._take()
            page._release()
            region.free.append(page._index)
            self._give_back(region)

    def put(self, key: Key, page: Page, length: int | None = None, ttl: float = 0.0) -> bool:
        """Registers the first length bytes of a page under key, for ttl seconds, or for ever if that is 0. Returns False
        if the key was there already; the page is free again then."""
        length = self.page_size if length is None else length
        return self.put_all([(key, page, length)], ttl)[0]

    def put_all(self, items: Sequence[Item], ttl: float = 0.0) -> list[bool]:
        """Registers (key, page, length) triples; returns what put would."""
        if not 0 <= ttl * 1000 <= MAX_TTL:
            raise Invalid(f"a key that lives for {ttl} seconds, want 0, which is for ever, to {MAX_TTL // 1000}")
        stored: list[bool] = []
        with self._lock:
            at = 0
            while at < len(items):
                region = items[at][1]._region
                if region is None:
                    raise Closed("the page was put or freed")
                run = at
                while run < len(items) and items[run][1]._region is region:
                    run += 1
                for part in batches(items[at:run], lambda it: 22 + len(it[0]) * 4):
                    stored += self._put_region(region, part, ttl)
                at = run
        return stored

    def get(self, key: Key) -> View:
        """Returns a View of the key's bytes, or raises NotFound."""
        view = self.get_all([key])[0]
        if view is None:
            raise NotFound(f"the key {key!r} is not there")
        return view

    def get_all(self, keys: Sequence[Key]) -> list[View | None]:
        """Returns a View for each key, None for those that are not there."""
        views: list[View | None] = [None] * len(keys)
        try:
            with self._lock:
                self._check()
                ask = []
                for i, key in enumerate(keys):
                    views[i] = self._remembered(encode_key(key))
                    if views[i] is None:
                        ask.append(i)
                for part in batches(ask, lambda i: 45 + HANDLE_SIZE):
                    for i, view in zip(part, self._get_part([keys[i] for i in part])):
                        views[i] = view
        except BaseException:
            for view in views:
                if view is not None:
                    view.close()
            raise
        return views

    def exists(self, key: Key) -> bool:
        """Reports whether the key is there."""
        return self.exists_all([key])[0]

    def exists_all(self, keys: Sequence[Key]) -> list[bool]:
        """Reports for each key whether it is there."""
        found = []
        for part in batches(keys, lambda k: 2 + len(k) * 4):
            answer, _ = self._call(bytes([EXISTS]) + b"".join(map(encode_key, part)), again=True)
            found += [b != 0 for b in answer.take(len(part))]
        return found

    def delete(self, key: Key) -> None:
        """Deletes a key. Raises NotFound or Pinned."""
        error = self.delete_all([key])[0]
        if error is not None:
            raise error

    def delete_all(self, keys: Sequence[Key]) -> list[Error | None]:
        """Deletes keys; returns None or the error of each."""
        return self._statuses(DELETE, keys)

    def pin(self, key: Key) -> None:
        """Keeps a key from being deleted and evicted until unpin."""
        if self.pin_all([key]) == 0:
            raise NotFound(f"the key {key!r} is not there")

    def pin_all(self, keys: Sequence[Key]) -> int:
        """Pins the longest prefix of keys that are all there; returns its
        length."""
        total = 0
        for part in batches(keys, lambda k: 2 + len(k) * 4):
            answer, _ = self._call(bytes([PIN]) + b"".join(map(encode_key, part)))
            n = answer.number("I")
            total += n
            if n < len(part):
                break
        return total

    def unpin(self, key: Key) -> None:
        """Takes one pin back."""
        error = self.unpin_all([key])[0]
        if error is not None:
            raise error

    def unpin_all(self, keys: Sequence[Key]) -> list[Error | None]:
        """Takes one pin of each key back; returns None or the error of each."""
        return self._statuses(UNPIN, keys)

    def stats(self) -> dict[str, Any]:
        """Returns what the daemon says about itself, a dict."""
        answer, _ = self._call(bytes([STATS]), again=True)
        info: dict[str, Any] = json.loads(answer.rest())
        return info

    def close(self) -> None:
        """Ends the client. Keys stay. Views that are open stay valid, and the
        client's session with the daemon lasts until the last is closed."""
        with self._lock:
            self._leaving = True
        self._drop_ended()

    def _tear_down(self) -> None:
        with self._lock:
            if self._closed or not self._leaving or self._views:
                return
            self._closed = True
            try:
                self._sock.send(bytes([BYE]))
                self._sock.recv(MAX_MESSAGE)
            except OSError:
                pass  # the daemon finds out by itself
            self._sock.close()
            self._watch.close()
        os.write(self._wake, b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        os.close(self._wake)
        os.close(self._waker)
        for mapping in self._maps.values():
            mapping.freed = True
            mapping.close_if_unused()
        self._regions.clear()  # each is unmapped when nothing holds a page of it
        self._table_view.release()
        if self._table is not None:
            self._table.close()
        if self._lease is not None:
            self._lease.close()

    # How it is done. Methods below are called with self._lock held, or take it.

    def _fork(self) -> None:
        """Has a child of the client's process leave alone what belongs to its parent: the
        session, and the list of open views."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._forked = True
        self._sock.close()
        self._watch.close()

    def _check(self) -> None:
        if self._forked:
            raise Closed("the client is one of the parent process: a child has to open its own")
        if self._leaving:
            raise Closed("the client is closed")

    def _hello(self, sock: socket.socket, flags: int) -> tuple[bytes, int, set[int], list[int]]:
        message = struct.pack("<BHB", HELLO, VERSION, flags) + self._token + struct.pack("<H", len(self._name)) + self._name
        refs: list[int] = []
        maps: list[int] = []
        owned: list[int] = []
        if not flags & HELLO_LANE:
            refs = [page for page, n in self._refs.items() for _ in range(n)]
            owned = [r.id for r in self._regions]
            maps = [i for i in self._maps if i not in owned]
        message += struct.pack(f"<I{len(refs)}I", len(refs), *refs)
        message += struct.pack(f"<I{len(maps)}Q", len(maps), *maps)
        message += struct.pack(f"<I{len(owned)}Q", len(owned), *owned)
        rights: list[tuple[int, int, array.array[int]]] = []
        if flags & HELLO_LEASE and self._lease is not None:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self._lease.fd]))]
        sock.sendmsg([message], rights)
        answer, fds = self._receive(sock)
        answer.number("Q")
        token, flags = answer.take(16), answer.number("B")
        known = {answer.number("Q") for _ in range(answer.number("I"))}
        return token, flags, known, fds

    def _connect(self) -> socket.socket:
        sock: socket.socket | None = None
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.settimeout(self._patience)
            sock.connect(self._path)
            return sock
        except OSError as e:
            if sock is not None:
                sock.close()
            raise Unavailable(f"cannot connect to {self._path}: {e}") from e

    def _attach(self) -> None:
        sock = self._connect()
        watch = None
        fds: list[int] = []
        try:
            try:
                self._token, flags, owned, fds = self._hello(sock, HELLO_LEASE if self._lease else 0)
            except NotFound:
                if self._regions or self._maps or self._views:
                    raise
                # The daemon died before it had to remember this client.
                self._token = bytes(16)
                raise Unavailable("the daemon has restarted") from None
            watch = self._connect()
            _, _, _, more = self._hello(watch, HELLO_LANE)
            for fd in more:
                os.close(fd)
            watch.send(bytes([WATCH]))
            self._receive(watch)
            table = mmap.mmap(fds[0], 0, prot=mmap.PROT_READ)
        except BaseException as e:
            sock.close()
            if watch is not None:
                watch.close()
            if isinstance(e, (OSError, Unavailable)):
                raise Unavailable(f"the daemon at {self._path} does not answer: {e}") from e
            raise
        finally:
            for fd in fds:
                os.close(fd)
        self._sock, self._watch = sock, watch
        self._lru = bool(flags & LRU)
        if self._table is not None:
            self._table_view.release()
            self._table.close()
        self._table, self._table_view = table, memoryview(table).cast("Q")
        self._freed = -1
        self._places.clear()  # the words are of the former table
        # Regions that the daemon does not know any more are of no use.
        self._regions = [r for r in self._regions if r.id in owned]

    def _reattach(self) -> None:
        self._sock.close()
        self._watch.close()
        deadline = time.monotonic() + self._patience
        pause = 0.002
        while True:
            try:
                return self._attach()
            except Unavailable:
                if self._closed or time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.25)

    def _receive(self, sock: socket.socket) -> tuple[Fields, list[int]]:
        space = socket.CMSG_SPACE(8 * array.array("i").itemsize)
        data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
        fds: array.array[int] = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[:len(payload) - len(payload) % fds.itemsize])
        if not data:
            raise ConnectionResetError("the daemon has closed the connection")
        if data[0] != OK or flags & socket.MSG_CTRUNC:
            for fd in fds:
                os.close(fd)
        if flags & socket.MSG_CTRUNC:
            # What the daemon has handed out is lost. It takes that back when the client attaches anew.
            raise OSError(errno.EMFILE, "no descriptor is free for what the daemon hands out")
        if data[0] != OK:
            raise ERRORS.get(data[0], Failed)(data[1:].decode(errors="replace"))
        return Fields(data[1:]), list(fds)

    def _call(self, message: bytes, again: bool = False) -> tuple[Fields, list[int]]:
        """Sends a message and returns the answer. If the daemon restarts
        meanwhile, the message is sent anew if that does no harm."""
        with self._lock:
            if message[0] not in (UNREF, UNMAP):  # which views do that outlive the client
                self._check()
            cause: OSError | None = None
            while True:
                try:
                    self._sock.send(message)
                    sent = True
                    return self._receive(self._sock)
                except BrokenPipeError:
                    sent = False
                except OSError as e:
                    sent, cause = True, e
                self._reattach()
                if sent and not again:
                    raise Unavailable(f"the request may have been carried out: {cause}")

    def _statuses(self, op: int, keys: Sequence[Key]) -> list[Error | None]:
        errors: list[Error | None] = []
        for part in batches(keys, lambda k: 2 + len(k) * 4):
            answer, _ = self._call(bytes([op]) + b"".join(map(encode_key, part)))
            for key in part:
                status = answer.number("B")
                errors.append(None if status == OK else ERRORS.get(status, Failed)(f"the key {key!r}"))
        return errors

    def _collect(self) -> bool:
        """Finds pages whose keys are gone and that nobody looks at."""
        freed = self._table_view[0]
        if freed == self._freed:
            return False
        self._freed = freed
        found = False
        for region in self._regions:
            for i in [i for i in region.put if self._table_view[region.base + i] & 3 == FREE]:
                region.put.discard(i)
                region.free.append(i)
                found = True
        return found

    def _expand(self) -> None:
        pool = self._pool.encode()
        answer, fds = self._call(struct.pack("<BQQH", ALLOC, self.region_size, self.page_size, len(pool)) + pool, again=True)
        ident, length, page_size, base, offset, durable = struct.unpack("<QQQIQB", answer.take(37))
        handle = answer.rest()
        try:
            mem = mmap.mmap(fds[0], length, offset=offset)
        finally:
            for fd in fds:
                os.close(fd)
        at = (ctypes.c_char * length).from_buffer(mem)
        address = ctypes.addressof(at)
        del at
        if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), MADV_POPULATE_WRITE) != 0:
            if ctypes.get_errno() in (errno.ENOMEM, errno.EFAULT):  # the pool has no memory left
                mem.close()
                self._call(bytes([RELEASE]) + handle, again=True)
                raise Full("the region cannot be populated")
        self._regions.insert(0, Region(ident, length, page_size, base, durable, handle, mem))

    def _evict(self, pages: int) -> int:
        answer, _ = self._call(struct.pack("<BI", EVICT, pages))
        return answer.number("I")

    def _put_region(self, region: Region, part: Sequence[tuple[Key, Page, int]], ttl: float) -> list[bool]:
        message = struct.pack("<BQ", PUT, region.id)
        for key, page, length in part:
            if not 0 <= length <= region.page_size:
                raise Invalid(f"{length} bytes in a page of {region.page_size}")
            if region.durable:
                start = page._index * region.page_size // mmap.PAGESIZE * mmap.PAGESIZE
                region.mem.flush(start, page._index * region.page_size + region.page_size - start)
            message += struct.pack("<IQQ", page._index, length, math.ceil(ttl * 1000)) + encode_key(key)
        answer, _ = self._call(message, again=True)
        stored = []
        for _, page, _ in part:
            ok = answer.number("B") in (OK, GONE)
            page._take()
            page._release()
            if ok:
                region.put.add(page._index)
            else:
                region.free.append(page._index)
            stored.append(ok)
        self._give_back(region)
        return stored

    def _remembered(self, key: bytes) -> View | None:
        """Opens a view where the key lay, if it still lies there."""
        place = self._places.get(key)
        if place is None:
            return None
        view = None
        if not place[5] or place[5] > time.time() * 1000:
            view = self._open(place)
        if view is None:
            del self._places[key]
        elif self._lru and self._lease is not None:
            self._lease.touch(place[3])
        return view

    def _get_at_once(self, key: Key) -> View | None:
        """Opens a view of a key whose place is remembered; None if it is not,
        or if another thread would have to be waited for."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._check()
            return self._remembered(encode_key(key))
        finally:
            self._lock.release()

    def _open(self, place: Place) -> View | None:
        """Opens a view of a place by the lease: it first says that it looks at
        the page, and then makes sure that the page is still what it was."""
        mapping, offset, length, page, word, _ = place
        if mapping.freed or self._lease is None:
            return None
        slot = self._lease.hold(page)
        if slot is None:
            return None
        if self._table_view[page] != word:
            self._lease.drop(slot)
            return None
        return self._view(mapping, page, slot, offset, length)

    def _view(self, mapping: Mapping, page: int, slot: int | None, offset: int, length: int) -> View:
        mapping.views += 1
        self._views += 1
        hold = Hold(self, mapping, page, slot)
        return View(hold, hold.buffer(offset, length))

    def _get_part(self, keys: Sequence[Key]) -> list[View | None]:
        views: list[View | None] = []
        for key, found in zip(keys, self._lookup(0, keys)):
            view = None
            if found is not None and found[3] == 0:
                views.append(self._get_copy(key, found))
                continue
            if found is not None:
                try:
                    place = (self._mapping(found[0], [key]),) + found[1:]
                except NotFound:
                    pass  # gone meanwhile
                else:
                    view = self._open(place)
                    if view is not None and self._cache_keys > 0:
                        if len(self._places) >= self._cache_keys:
                            del self._places[next(iter(self._places))]  # any will do
                        self._places[encode_key(key)] = place
            views.append(view)
            if found is not None and view is None:
                # The key has gone, or no slot is free: let the daemon count a
                # reference as it looks the key up.
                views[-1] = self._get_ref(key)
        return views

    def _get_ref(self, key: Key) -> View | None:
        found = self._lookup(LOOKUP_REF, [key])[0]
        if found is None:
            return None
        region, offset, length, page = found[:4]
        if page == 0:
            return self._get_copy(key, found)
        self._refs[page] = self._refs.get(page, 0) + 1
        try:
            mapping = self._mapping(region, [key])
        except BaseException:
            self._unref(page)
            raise
        return self._view(mapping, page, None, offset, length)

    def _get_copy(self, key: Key, found: Found) -> View | None:
        """Returns a View of a copy of what a client of Maru's has registered:
        those write where they like, so the bytes count if the key is the same
        one before and after they were copied."""
        for _ in range(16):
            try:
                address = self._mapping(found[0], [key]).address + found[1]
                data = ctypes.string_at(address, found[2])
            except NotFound:
                data = None  # gone meanwhile
            now = self._lookup(0, [key])[0]
            if now is None:
                return None
            if now[3] != 0:
                return self._get_part([key])[0]
            if now == found and data is not None:
                return View(None, memoryview(data))
            found = now
        raise Failed("the key is registered anew again and again")

    def _lookup(self, flags: int, keys: Sequence[Key]) -> list[Found | None]:
        """Returns (region, offset, length, page, word, expires) for each key,
        or None, and keeps the handles that come with the answer. The page of
        what a client of Maru's has registered is 0."""
        answer, _ = self._call(bytes([LOOKUP, flags]) + b"".join(map(encode_key, keys)), again=True)
        found: list[Found | None] = []
        for _ in keys:
            there = answer.number("B")
            found.append(cast(Found, struct.unpack("<QQQIQQ", answer.take(44))) if there else None)
        while answer.more():
            handle = answer.take(HANDLE_SIZE)
            self._handles[struct.unpack("<Q", handle[:8])[0]] = handle
        return found

    def _mapping(self, region: int, keys: Sequence[Key]) -> Mapping:
        mapping = self._maps.get(region)
        if mapping is not None:
            return mapping
        if region not in self._handles:
            # The answer that it came with was lost: ask for it again.
            self._lookup(LOOKUP_HANDLES, keys)
        if region not in self._handles:
            raise NotFound("the region is freed")
        answer, fds = self._call(bytes([MAP]) + self._handles[region], again=True)
        try:
            length, _, offset, shared = struct.unpack("<QQQB", answer.take(25))
            mapping = Mapping(region, fds[0], offset, length, shared)
        finally:
            for fd in fds:
                os.close(fd)
        self._maps[region] = mapping
        return mapping

    def _poke(self) -> None:
        """Makes the client's thread look for what has ended."""
        try:
            os.write(self._wake, b"x")
        except OSError:
            pass  # it will look anyway: the pipe is full

    def _drop_ended(self) -> None:
        if self._forked:
            return
        with self._lock:
            while self._ended:
                hold = self._ended.popleft()
                hold.mapping.views -= 1
                self._views -= 1
                if hold.slot is not None and self._lease is not None:
                    self._lease.drop(hold.slot)
                hold.mapping.close_if_unused()
                self._tell_unmapped(hold.mapping)
                if hold.slot is None:
                    self._unref(hold.page)
        self._tear_down()

    def _unref(self, page: int) -> None:
        self._refs[page] -= 1
        if self._refs[page] == 0:
            del self._refs[page]
        try:
            self._call(struct.pack("<BI", UNREF, page))
        except (NotFound, Unavailable):
            pass  # the daemon has restarted, and was not told of this view

    def _tell_unmapped(self, mapping: Mapping) -> None:
        if mapping.shared and not mapping.unmap.alive:
            mapping.shared = False
            self._call(struct.pack("<BQ", UNMAP, mapping.region), again=True)

    def _region_freed(self, region: int) -> None:
        with self._lock:
            self._handles.pop(region, None)
            mapping = self._maps.pop(region, None)
            if mapping is None:
                return
            mapping.freed = True
            mapping.close_if_unused()
            self._tell_unmapped(mapping)

    def _region_recalled(self, ident: int) -> None:
        with self._lock:
            for region in self._regions:
                if region.id == ident:
                    self._regions.remove(region)
                    region.recalled = True
                    self._give_back(region)
                    return

    def _give_back(self, region: Region) -> None:
        """Returns a region that was recalled, once no page is being filled."""
        pages = len(region.mem) // region.page_size
        if not region.recalled or len(region.free) + len(region.put) < pages:
            return
        region.recalled = False
        # It is unmapped when nothing wraps a page that was put.
        self._call(bytes([RELEASE]) + region.handle, again=True)

    def _watcher(self) -> None:
        """Reads notices, and attaches anew when the daemon restarts."""
        while not self._closed:
            watch = self._watch
            try:
                poll = select.poll()  # a process may have more descriptors than select takes
                poll.register(watch, select.POLLIN)
                poll.register(self._waker, select.POLLIN)
                if any(fd == self._waker for fd, _ in poll.poll()):
                    os.read(self._waker, 4096)
                    try:
                        self._drop_ended()
                    except Error:
                        pass  # the daemon finds out when the client ends
                    continue
                notice = watch.recv(64)
                if len(notice) == 9:
                    region, what = struct.unpack("<QB", notice)
                    (self._region_freed, self._region_recalled)[what](region)
                    continue
            except (OSError, ValueError):
                pass
            with self._lock:
                if self._closed:
                    return
                if watch is not self._watch:
                    continue  # another thread was faster
                try:
                    self._reattach()
                except Error:
                    time.sleep(0.05)
