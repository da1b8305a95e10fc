"""Shared memory of one host: the Python client of "polder share".

One file, the standard library only. A client takes pages of memory that the
daemon holds, fills them, and puts them under a key; any process on the host
then reads the bytes where they are:

    import polder_share

    with polder_share.Client("/run/polder/share.sock", page_size=1 << 20) as c:
        page = c.alloc()
        page.buffer[:5] = b"hello"          # a writable memoryview
        c.put("greeting", page, 5)

        with c.get("greeting") as view:     # a read-only memoryview, no copy
            print(bytes(view.buffer))
            # numpy.frombuffer(view.buffer, dtype="u1") wraps it, too

Keys are str or bytes and name content: the first writer of a key wins. The
bytes of a view are right until it is closed, whatever becomes of the key, the
writer and the daemon; and as long as arrays wrap its buffer, which therefore
keep the page from being used again.

The first get of a key asks the daemon; later ones find in memory shared with
it whether the key is still where it was, and ask nobody.

A Client may be used by any number of threads; one at a time of them talks to
the daemon. It has one thread of its own, which attaches it anew when the
daemon restarts. After a fork, only the parent may use it.
"""

import array
import collections
import ctypes
import fcntl
import functools
import json
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
import weakref

__all__ = [
    "Client", "Page", "View", "Error", "NotFound", "Pinned", "Denied", "Full",
    "Quota", "Invalid", "LogFull", "Busy", "Failed", "Closed", "Unavailable",
]

VERSION = 1
MAX_MESSAGE = 128 << 10
MAX_BATCH = 1024
MAX_BATCH_BYTES = 96 << 10
MAX_KEY = 512
DEFAULT_SOCKET = "/run/polder/share.sock"

(HELLO, ALLOC, ACTIVATE, RELEASE, PUT, LOOKUP, EXISTS, DELETE, PIN, UNPIN, MAP,
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
ERRORS = {2: NotFound, 3: Pinned, 4: Denied, 5: Full, 6: Quota, 7: Invalid,
          8: LogFull, 9: Busy, 10: Failed}


class _Fields:
    """Takes fields from a message."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        if self.at + n > len(self.data):
            raise Failed("the daemon's answer is cut off")
        part = self.data[self.at:self.at + n]
        self.at += n
        return part

    def number(self, fmt):
        return struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))[0]

    def more(self):
        return self.at < len(self.data)

    def rest(self):
        return self.take(len(self.data) - self.at)


def _key(key):
    if isinstance(key, str):
        key = key.encode()
    if not 1 <= len(key) <= MAX_KEY:
        raise Invalid(f"a key of {len(key)} bytes, want 1 to {MAX_KEY}")
    return struct.pack("<H", len(key)) + key


def _batches(items, size):
    """Cuts items into what one message may hold."""
    part, total = [], 0
    for item in items:
        if part and (len(part) == MAX_BATCH or total + size(item) > MAX_BATCH_BYTES):
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MAP_FAILED = ctypes.c_void_p(-1).value


class _Lease:
    """The list of open views that the daemon reads: see package shm of the
    library in Go, whose layout this is. Guarded by Client._lock."""

    MAGIC = 0x504C44524C454153
    SLOTS_AT, SLOTS, RING = 8, 4096, 504
    RING_AT = SLOTS_AT + SLOTS
    SIZE = ((RING_AT + RING) * 8 + 4095) & ~4095
    F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4
    FUTEX, FUTEX_WAKE = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine), 1

    def __init__(self):
        self.fd = os.memfd_create("polder-share-lease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.SIZE)
        fcntl.fcntl(self.fd, self.F_ADD_SEALS, self.F_SEAL_SHRINK | self.F_SEAL_GROW)
        self.mem = mmap.mmap(self.fd, self.SIZE)
        self.words = memoryview(self.mem).cast("Q")
        self.words[0] = self.MAGIC
        self.free = list(range(self.SLOTS - 1, -1, -1))
        self.word = ctypes.c_uint32()
        self.fence_args = [ctypes.c_long(self.FUTEX or 0), ctypes.byref(self.word), ctypes.c_int(self.FUTEX_WAKE),
                           ctypes.c_int(1), None, None, ctypes.c_int(0)]

    def fence(self):
        """Orders what was written before it and what is read after it: waking
        the sleepers of a futex, of which there are none, does so in the kernel,
        and nothing in Python is sure to."""
        _libc.syscall(*self.fence_args)

    def hold(self, page):
        """Writes page into a free slot, and returns the slot, or None. The
        caller must look at the page's word afterwards."""
        if not self.free:
            return None
        slot = self.free.pop()
        if self.words[1] <= slot:
            self.words[1] = slot + 1
        self.words[self.SLOTS_AT + slot] = page
        self.fence()
        return slot

    def drop(self, slot):
        self.fence()
        self.words[self.SLOTS_AT + slot] = 0
        self.free.append(slot)

    def touch(self, page):
        """Tells the daemon's LRU that page was looked at."""
        n = self.words[2]
        self.words[self.RING_AT + n % self.RING] = page
        self.words[2] = n + 1

    def close(self):
        self.words.release()
        self.mem.close()
        os.close(self.fd)


class _Region:
    """Memory that the client owns."""

    def __init__(self, ident, length, page_size, base, durable, handle, mem):
        self.id, self.page_size, self.base = ident, page_size, base
        self.durable, self.handle, self.mem = durable, handle, mem
        self.view = memoryview(mem)
        pages = length // page_size
        self.free = list(range(pages - 1, -1, -1))
        self.put = set()  # pages that hold, or held, a key
        self.recalled = False  # the daemon wants it back


class _Mapping:
    """A region mapped read-only."""

    def __init__(self, region, fd, offset, length, shared):
        self.region = region
        self.shared = shared  # the daemon waits to be told that it is unmapped
        self.address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
        if self.address == MAP_FAILED:
            raise Failed(f"cannot map region {region}: {os.strerror(ctypes.get_errno())}")
        self.unmap = weakref.finalize(self, _libc.munmap, self.address, length)
        self.unmap.atexit = False  # other threads may still read
        self.views = 0
        self.freed = False

    def close_if_unused(self):
        if self.freed and self.views == 0:
            self.unmap()


class Page:
    """Memory to fill and put under a key."""

    def __init__(self, region, index):
        self._region, self._index = region, index
        at = index * region.page_size
        #: A writable memoryview of the page. It is released by put and free.
        self.buffer = region.view[at:at + region.page_size]

    def _take(self):
        if self._region is None:
            raise Closed("the page was put or freed")
        region, self._region = self._region, None
        return region

    def _release(self):
        try:
            self.buffer.release()
        except BufferError:
            pass  # an array wraps it: that must not be written to any more
        self.buffer = None


class _Hold:
    """Keeps a page as it is until nothing wraps its bytes any more."""

    def __init__(self, client, mapping, page, slot):
        self.client, self.mapping, self.page, self.slot = client, mapping, page, slot
        self.closing = False
        self.ref = None

    def buffer(self, offset, length):
        """Returns a read-only memoryview. It, and all that is made of it, hold
        on to an object that can be watched for its end."""
        exporter = (ctypes.c_char * max(length, 1)).from_address(self.mapping.address + offset)
        self.ref = weakref.ref(exporter, functools.partial(_Hold.ended, self))
        _holds.add(self)
        return memoryview(exporter).cast("B").toreadonly()[:length]

    def ended(self, _):
        # In whatever thread, at whatever moment: nothing is locked here.
        _holds.discard(self)
        self.client._ended.append(self)
        if not self.closing:
            self.client._poke()


_holds = set()  # an array may be all that is left of a client


class View:
    """The bytes of a key, where they are. A context manager."""

    def __init__(self, hold, buffer):
        self._hold = hold
        #: A read-only memoryview of the bytes, which numpy can wrap.
        self.buffer = buffer

    def __len__(self):
        return len(self.buffer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the view. Closing twice is a no-op. While an array still wraps
        the buffer, the page stays as it is."""
        if self._hold is None:
            return
        hold = self._hold
        hold.closing = True  # what ends now is seen to below
        self.buffer.release()
        self._hold = None
        hold.closing = False
        hold.client._drop_ended()


class Client:
    """A connection to the daemon. A context manager."""

    def __init__(self, path=DEFAULT_SOCKET, page_size=1 << 20, region_size=None,
                 pool="", name=None, patience=10.0, cache_keys=65536):
        self.page_size = page_size
        self.region_size = region_size or max(64 << 20, 64 * page_size)
        self._path, self._pool, self._patience = path, pool, patience
        self._name = (name or sys.argv[0] or "python").encode()[-128:]
        self._lock = threading.RLock()  # guards everything below
        self._token = bytes(16)
        self._sock = self._watch = self._table = None
        self._lru = self._leaving = self._closed = False
        self._regions = []   # the active one first
        self._maps = {}
        self._handles = {}
        self._refs = {}      # page -> open views that hold no slot of the lease
        self._views = 0      # open views, and closed ones that arrays still wrap
        self._ended = collections.deque()  # holds to be dropped; not guarded
        self._places = {}    # key -> where it lay, and the word of its page then
        self._cache_keys = cache_keys
        self._lease = _Lease() if _Lease.FUTEX else None
        self._freed = -1
        with self._lock:
            self._attach()
        self._waker, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._watcher, daemon=True, name="polder_share")
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # What a client can do.

    def alloc(self):
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

    def free(self, page):
        """Gives a page back unused."""
        with self._lock:
            region = page._take()
            page._release()
            region.free.append(page._index)
            self._give_back(region)

    def put(self, key, page, length=None, ttl=0.0):
        """Registers the first length bytes of a page under key. Returns False
        if the key was there already; the page is free again then."""
        length = self.page_size if length is None else length
        return self.put_all([(key, page, length)], ttl)[0]

    def put_all(self, items, ttl=0.0):
        """Registers (key, page, length) triples; returns what put would."""
        stored = []
        with self._lock:
            at = 0
            while at < len(items):
                region = items[at][1]._region
                if region is None:
                    raise Closed("the page was put or freed")
                run = at
                while run < len(items) and items[run][1]._region is region:
                    run += 1
                for part in _batches(items[at:run], lambda it: 22 + len(it[0]) * 4):
                    stored += self._put_region(region, part, ttl)
                at = run
        return stored

    def get(self, key):
        """Returns a View of the key's bytes, or raises NotFound."""
        view = self.get_all([key])[0]
        if view is None:
            raise NotFound(f"the key {key!r} is not there")
        return view

    def get_all(self, keys):
        """Returns a View for each key, None for those that are not there."""
        views = [None] * len(keys)
        try:
            with self._lock:
                self._check()
                ask = []
                for i, key in enumerate(keys):
                    views[i] = self._remembered(_key(key))
                    if views[i] is None:
                        ask.append(i)
                for part in _batches(ask, lambda i: 45 + HANDLE_SIZE):
                    for i, view in zip(part, self._get_part([keys[i] for i in part])):
                        views[i] = view
        except BaseException:
            for view in views:
                if view is not None:
                    view.close()
            raise
        return views

    def exists(self, key):
        """Reports whether the key is there."""
        return self.exists_all([key])[0]

    def exists_all(self, keys):
        """Reports for each key whether it is there."""
        found = []
        for part in _batches(keys, lambda k: 2 + len(k) * 4):
            answer, _ = self._call(bytes([EXISTS]) + b"".join(map(_key, part)), again=True)
            found += [b != 0 for b in answer.take(len(part))]
        return found

    def delete(self, key):
        """Deletes a key. Raises NotFound or Pinned."""
        error = self.delete_all([key])[0]
        if error is not None:
            raise error

    def delete_all(self, keys):
        """Deletes keys; returns None or the error of each."""
        return self._statuses(DELETE, keys)

    def pin(self, key):
        """Keeps a key from being deleted and evicted until unpin."""
        if self.pin_all([key]) == 0:
            raise NotFound(f"the key {key!r} is not there")

    def pin_all(self, keys):
        """Pins the longest prefix of keys that are all there; returns its
        length."""
        total = 0
        for part in _batches(keys, lambda k: 2 + len(k) * 4):
            answer, _ = self._call(bytes([PIN]) + b"".join(map(_key, part)))
            n = answer.number("I")
            total += n
            if n < len(part):
                break
        return total

    def unpin(self, key):
        """Takes one pin back."""
        error = self.unpin_all([key])[0]
        if error is not None:
            raise error

    def unpin_all(self, keys):
        """Takes one pin of each key back; returns None or the error of each."""
        return self._statuses(UNPIN, keys)

    def stats(self):
        """Returns what the daemon says about itself, a dict."""
        answer, _ = self._call(bytes([STATS]), again=True)
        return json.loads(answer.rest())

    def close(self):
        """Ends the client. Keys stay. Views that are open stay valid, and the
        client's session with the daemon lasts until the last is closed."""
        with self._lock:
            self._leaving = True
        self._drop_ended()

    def _tear_down(self):
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
        for region in self._regions:
            try:
                region.view.release()
                region.mem.close()
            except BufferError:
                pass  # a page was never put nor freed
        self._table_view.release()
        self._table.close()
        if self._lease is not None:
            self._lease.close()

    # How it is done. Methods below are called with self._lock held, or take it.

    def _check(self):
        if self._leaving:
            raise Closed("the client is closed")

    def _hello(self, sock, flags):
        message = struct.pack("<BHB", HELLO, VERSION, flags) + self._token + struct.pack("<H", len(self._name)) + self._name
        refs, maps, owned = [], [], []
        if not flags & HELLO_LANE:
            refs = [page for page, n in self._refs.items() for _ in range(n)]
            owned = [r.id for r in self._regions]
            maps = [i for i in self._maps if i not in owned]
        message += struct.pack(f"<I{len(refs)}I", len(refs), *refs)
        message += struct.pack(f"<I{len(maps)}Q", len(maps), *maps)
        message += struct.pack(f"<I{len(owned)}Q", len(owned), *owned)
        fds = []
        if flags & HELLO_LEASE:
            fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self._lease.fd]))]
        sock.sendmsg([message], fds)
        answer, fds = self._receive(sock)
        answer.number("Q")
        token, flags = answer.take(16), answer.number("B")
        owned = {answer.number("Q") for _ in range(answer.number("I"))}
        return token, flags, owned, fds

    def _connect(self):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(self._patience)
            sock.connect(self._path)
        except OSError as e:
            sock.close()
            raise Unavailable(f"cannot connect to {self._path}: {e}") from e
        return sock

    def _attach(self):
        sock = self._connect()
        watch = None
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
        except (OSError, Unavailable) as e:
            sock.close()
            if watch is not None:
                watch.close()
            raise Unavailable(f"the daemon at {self._path} does not answer: {e}") from e
        self._sock, self._watch = sock, watch
        self._lru = bool(flags & LRU)
        if self._table is not None:
            self._table_view.release()
            self._table.close()
        self._table = mmap.mmap(fds[0], 0, prot=mmap.PROT_READ)
        self._table_view = memoryview(self._table).cast("Q")
        for fd in fds:
            os.close(fd)
        self._freed = -1
        self._places.clear()  # the words are of the former table
        # Regions that the daemon does not know any more are of no use.
        self._regions = [r for r in self._regions if r.id in owned]

    def _reattach(self):
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

    def _receive(self, sock):
        space = socket.CMSG_SPACE(8 * array.array("i").itemsize)
        data, ancillary, _, _ = sock.recvmsg(MAX_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[:len(payload) - len(payload) % fds.itemsize])
        if not data:
            raise ConnectionResetError("the daemon has closed the connection")
        if data[0] != OK:
            for fd in fds:
                os.close(fd)
            raise ERRORS.get(data[0], Failed)(data[1:].decode(errors="replace"))
        return _Fields(data[1:]), list(fds)

    def _call(self, message, again=False):
        """Sends a message and returns the answer. If the daemon restarts
        meanwhile, the message is sent anew if that does no harm."""
        with self._lock:
            if message[0] not in (UNREF, UNMAP):  # which views do that outlive the client
                self._check()
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

    def _statuses(self, op, keys):
        errors = []
        for part in _batches(keys, lambda k: 2 + len(k) * 4):
            answer, _ = self._call(bytes([op]) + b"".join(map(_key, part)))
            for key in part:
                status = answer.number("B")
                errors.append(None if status == OK else ERRORS.get(status, Failed)(f"the key {key!r}"))
        return errors

    def _collect(self):
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

    def _expand(self):
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
        if _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), MADV_POPULATE_WRITE) != 0:
            errno = ctypes.get_errno()
            if errno in (12, 14):  # ENOMEM, EFAULT: the pool has no memory left
                mem.close()
                self._call(bytes([RELEASE]) + handle, again=True)
                raise Full("the region cannot be populated")
        self._regions.insert(0, _Region(ident, length, page_size, base, durable, handle, mem))

    def _evict(self, pages):
        answer, _ = self._call(struct.pack("<BI", EVICT, pages))
        return answer.number("I")

    def _put_region(self, region, part, ttl):
        message = struct.pack("<BQ", PUT, region.id)
        for key, page, length in part:
            if not 0 <= length <= region.page_size:
                raise Invalid(f"{length} bytes in a page of {region.page_size}")
            if region.durable:
                start = page._index * region.page_size // mmap.PAGESIZE * mmap.PAGESIZE
                region.mem.flush(start, page._index * region.page_size + region.page_size - start)
            message += struct.pack("<IQQ", page._index, length, int(ttl * 1000 + 0.999)) + _key(key)
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

    def _remembered(self, key):
        """Opens a view where the key lay, if it still lies there."""
        place = self._places.get(key)
        if place is None:
            return None
        view = None
        if not place[5] or place[5] > time.time() * 1000:
            view = self._open(place)
        if view is None:
            del self._places[key]
        elif self._lru:
            self._lease.touch(place[3])
        return view

    def _open(self, place):
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

    def _view(self, mapping, page, slot, offset, length):
        mapping.views += 1
        self._views += 1
        hold = _Hold(self, mapping, page, slot)
        return View(hold, hold.buffer(offset, length))

    def _get_part(self, keys):
        views = []
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
                        self._places[_key(key)] = place
            views.append(view)
            if found is not None and view is None:
                # The key has gone, or no slot is free: let the daemon count a
                # reference as it looks the key up.
                views[-1] = self._get_ref(key)
        return views

    def _get_ref(self, key):
        found = self._lookup(LOOKUP_REF, [key])[0]
        if found is None:
            return None
        region, offset, length, page = found[:4]
        if page == 0:
            return self._get_copy(key, found)
        self._refs[page] = self._refs.get(page, 0) + 1
        return self._view(self._mapping(region, [key]), page, None, offset, length)

    def _get_copy(self, key, found):
        """Returns a View of a copy of what a client of Maru's has registered:
        those write where they like, so the bytes count if the key is the same
        one before and after they were copied."""
        for _ in range(16):
            try:
                address = self._mapping(found[0], [key]).address + found[1]
                data = ctypes.string_at(address, found[2])
            except NotFound:
                data = None  # gone meanwhile
            before, found = found, self._lookup(0, [key])[0]
            if found is None:
                return None
            if found[3] != 0:
                return self._get_part([key])[0]
            if found == before and data is not None:
                return View(None, memoryview(data))
        raise Failed("the key is registered anew again and again")

    def _lookup(self, flags, keys):
        """Returns (region, offset, length, page, word, expires) for each key,
        or None, and keeps the handles that come with the answer. The page of
        what a client of Maru's has registered is 0."""
        answer, _ = self._call(bytes([LOOKUP, flags]) + b"".join(map(_key, keys)), again=True)
        found = []
        for _ in keys:
            there = answer.number("B")
            found.append(struct.unpack("<QQQIQQ", answer.take(44)) if there else None)
        while answer.more():
            handle = answer.take(HANDLE_SIZE)
            self._handles[struct.unpack("<Q", handle[:8])[0]] = handle
        return found

    def _mapping(self, region, keys):
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
            mapping = _Mapping(region, fds[0], offset, length, shared)
        finally:
            for fd in fds:
                os.close(fd)
        self._maps[region] = mapping
        return mapping

    def _poke(self):
        """Makes the client's thread look for what has ended."""
        try:
            os.write(self._wake, b"x")
        except OSError:
            pass  # it will look anyway: the pipe is full

    def _drop_ended(self):
        with self._lock:
            while self._ended:
                hold = self._ended.popleft()
                hold.mapping.views -= 1
                self._views -= 1
                if hold.slot is not None:
                    self._lease.drop(hold.slot)
                    hold.mapping.close_if_unused()
                    self._tell_unmapped(hold.mapping)
                else:
                    self._unref(hold.page, hold.mapping)
        self._tear_down()

    def _unref(self, page, mapping):
        self._refs[page] -= 1
        if self._refs[page] == 0:
            del self._refs[page]
        mapping.close_if_unused()
        self._tell_unmapped(mapping)
        try:
            self._call(struct.pack("<BI", UNREF, page))
        except (NotFound, Unavailable):
            pass  # the daemon has restarted, and was not told of this view

    def _tell_unmapped(self, mapping):
        if mapping.shared and not mapping.unmap.alive:
            mapping.shared = False
            self._call(struct.pack("<BQ", UNMAP, mapping.region), again=True)

    def _region_freed(self, region):
        with self._lock:
            self._handles.pop(region, None)
            mapping = self._maps.pop(region, None)
            if mapping is None:
                return
            mapping.freed = True
            mapping.close_if_unused()
            self._tell_unmapped(mapping)

    def _region_recalled(self, ident):
        with self._lock:
            for region in self._regions:
                if region.id == ident:
                    self._regions.remove(region)
                    region.recalled = True
                    self._give_back(region)
                    return

    def _give_back(self, region):
        """Returns a region that was recalled, once no page is being filled."""
        pages = len(region.mem) // region.page_size
        if not region.recalled or len(region.free) + len(region.put) < pages:
            return
        region.recalled = False
        self._call(bytes([RELEASE]) + region.handle, again=True)
        try:
            region.view.release()
            region.mem.close()
        except BufferError:
            pass  # an array wraps a page that was put; the collector unmaps it

    def _watcher(self):
        """Reads notices, and attaches anew when the daemon restarts."""
        while not self._closed:
            watch = self._watch
            try:
                ready, _, _ = select.select([watch, self._waker], [], [])
                if self._waker in ready:
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
