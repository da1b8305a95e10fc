"""A small client of Maru's protocol, for tests and examples.

It was written from a description of the protocol and not from Maru's own
client, which inference engines use; it needs Debian's python3-zmq and
python3-msgpack. A Handler owns regions of shared memory, cuts them into pages,
and registers what is in them under keys:

    with Handler("tcp://127.0.0.1:5555", pool_size=64 << 20) as h:
        h.store("key", b"bytes")
        bytes(h.retrieve("key"))

Requests travel over a REQ socket, one at a time, or, with use_async_rpc, over a
DEALER socket that a thread serves, up to 64 of them at a time. All memory is
mapped writable, as Maru's clients do.
"""

import concurrent.futures
import itertools
import mmap
import os
import queue
import socket
import struct
import threading
import uuid

import msgpack
import zmq

MAGIC, VERSION = 0xCF00, 1
ALLOC, RETURN, LIST = 0x01, 0x03, 0x04
REGISTER, LOOKUP, EXISTS, DELETE, PIN, UNPIN = range(0x10, 0x16)
BATCH_REGISTER, BATCH_LOOKUP, BATCH_EXISTS, BATCH_PIN, BATCH_UNPIN = range(0x20, 0x25)
STATS, HEARTBEAT, REPORT, USAGE, HANDSHAKE = 0xF0, 0xF1, 0xF2, 0xF3, 0xFE

RM_MAGIC, RM_VERSION = 0x4D415255, 2
RM_ALLOC, RM_FREE, RM_STATS, RM_ACCESS, RM_ERROR = 1, 3, 5, 9, 255

MADV_POPULATE_WRITE = 23


class Refused(Exception):
    """The server says no, in words."""


class TimedOut(Exception):
    """The server does not answer in time."""


def _pack(kind, sequence, fields):
    payload = msgpack.packb(fields)
    return struct.pack(">HBBB3xII", MAGIC, VERSION, kind, 0, sequence, len(payload)) + payload


def _unpack(body):
    magic, version, _, _, sequence, length = struct.unpack_from(">HBBB3xII", body)
    if magic != MAGIC or version != VERSION or length > len(body) - 16:
        raise ValueError("the answer is none")
    return sequence, msgpack.unpackb(body[16:16 + length])


class SyncRPC:
    """One request at a time. After a timeout the socket, which waits for an
    answer, is of no use any more and is replaced."""

    def __init__(self, url, timeout):
        self.url, self.timeout, self.numbers, self.sock = url, timeout, itertools.count(1), None
        self._open()

    def _open(self):
        if self.sock is not None:
            self.sock.close(0)
        self.sock = zmq.Context.instance().socket(zmq.REQ)
        self.sock.linger = 0
        self.sock.rcvtimeo = self.sock.sndtimeo = int(self.timeout * 1000)
        self.sock.connect(self.url)

    def call(self, kind, fields):
        try:
            self.sock.send(_pack(kind, next(self.numbers), fields))
            return _unpack(self.sock.recv())[1]
        except zmq.Again:
            self._open()
            raise TimedOut(f"no answer to {kind:#x} in {self.timeout} s") from None

    def close(self):
        self.sock.close(0)


class AsyncRPC:
    """Many requests at a time, matched by their numbers. The socket keeps its
    identity when it reconnects, and what it has queued."""

    def __init__(self, url, timeout, inflight=64):
        self.timeout, self.numbers = timeout, itertools.count(1)
        self.slots = threading.Semaphore(inflight)
        self.identity = os.urandom(8).replace(b"\0", b"x")
        self.waiting, self.outbox, self.closed = {}, queue.SimpleQueue(), False
        context = zmq.Context.instance()
        self.sock = context.socket(zmq.DEALER)
        self.sock.linger, self.sock.identity = 0, self.identity
        self.sock.connect(url)
        name = f"inproc://{uuid.uuid4()}"
        self.woken, self.waker, self.lock = context.socket(zmq.PAIR), context.socket(zmq.PAIR), threading.Lock()
        self.woken.bind(name)
        self.waker.connect(name)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        poller = zmq.Poller()
        poller.register(self.sock, zmq.POLLIN)
        poller.register(self.woken, zmq.POLLIN)
        while not self.closed:
            for sock, _ in poller.poll():
                if sock is self.woken:
                    self.woken.recv()
                    while not self.outbox.empty():
                        self.sock.send_multipart([b"", self.outbox.get()])
                else:
                    sequence, fields = _unpack(self.sock.recv_multipart()[-1])
                    answer = self.waiting.pop(sequence, None)
                    if answer is not None:  # else its caller has given up
                        answer.set_result(fields)
        self.sock.close(0)
        self.woken.close(0)

    def _wake(self):
        with self.lock:
            self.waker.send(b"")

    def begin(self, kind, fields):
        """Sends a request and returns a future."""
        if not self.slots.acquire(timeout=self.timeout):
            raise TimedOut("too many requests are on their way")
        sequence, answer = next(self.numbers), concurrent.futures.Future()
        answer.add_done_callback(lambda _: self.slots.release())
        answer.sequence = sequence
        self.waiting[sequence] = answer
        self.outbox.put(_pack(kind, sequence, fields))
        self._wake()
        return answer

    def call(self, kind, fields):
        answer = self.begin(kind, fields)
        try:
            return answer.result(self.timeout)
        except concurrent.futures.TimeoutError:
            self.waiting.pop(answer.sequence, None)
            answer.cancel()
            raise TimedOut(f"no answer to {kind:#x} in {self.timeout} s") from None

    def close(self):
        self.closed = True
        self._wake()
        self.thread.join()
        self.waker.close(0)


class Resources:
    """A connection to the resource manager."""

    requests = itertools.count(1)

    def __init__(self, address, client_id=None):
        self.address = address
        self.client_id = (client_id or f"{socket.gethostname()}:{os.getpid()}").encode()
        self._connect()

    def _connect(self):
        host, port = self.address.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, kind, payload):
        """Sends a request and returns the answer's payload. If the connection
        breaks, the request is repeated once on another one."""
        try:
            return self._call(kind, payload)
        except OSError:
            self.sock.close()
            self._connect()
            return self._call(kind, payload)

    def _call(self, kind, payload):
        self.sock.sendall(struct.pack("<IHHI", RM_MAGIC, RM_VERSION, kind, len(payload)) + payload)
        magic, version, answered, length = struct.unpack("<IHHI", self._read(12))
        if magic != RM_MAGIC or version != RM_VERSION:
            raise ValueError("the answer is none")
        body = self._read(length)
        if answered == RM_ERROR:
            status, n = struct.unpack_from("<iI", body)
            raise Refused(f"{body[8:8 + n].decode()} ({status})")
        if answered != kind + 1:
            raise ValueError(f"the answer is of type {answered}")
        return body

    def _read(self, n):
        data = b""
        while len(data) < n:
            part = self.sock.recv(n - len(data))
            if not part:
                raise ConnectionError("the resource manager has hung up")
            data += part
        return data

    def _client(self):
        return struct.pack("<H", len(self.client_id)) + self.client_id

    def path(self, handle):
        body = self.call(RM_ACCESS, _token(handle) + self._client())
        status, n = struct.unpack_from("<iI", body)
        if status:
            raise Refused(f"the region cannot be had ({status})")
        return body[8:8 + n].decode()

    def alloc(self, size, request=None):
        body = self.call(RM_ALLOC, struct.pack("<QII", size, 0, 0) + self._client() + struct.pack("<Q", request or next(self.requests)))
        status, _, *numbers = struct.unpack_from("<iIQQQQ", body)
        if status:
            raise Refused(f"no region ({status})")
        return dict(zip(("region_id", "offset", "length", "auth_token"), numbers))

    def free(self, handle):
        return struct.unpack("<i", self.call(RM_FREE, _token(handle) + self._client() + struct.pack("<Q", next(self.requests))))[0]

    def stats(self):
        body, at, pools = self.call(RM_STATS, b""), 4, []
        for _ in range(struct.unpack_from("<I", body)[0]):
            n, kind, total, free, align = struct.unpack_from("<IIQQQ", body, at)
            at += 32
            pools.append((body[at:at + n].decode(), kind, total, free, align))
            at += n
        return pools

    def close(self):
        self.sock.close()


def _token(handle):
    return struct.pack("<QQQQ", handle["region_id"], handle["offset"], handle["length"], handle["auth_token"])


class Handler:
    """Owns regions and maps those of others. As Maru's, it may be used by many
    threads if it is asynchronous; writers wait for one another."""

    def __init__(self, url, instance_id=None, pool_size=16 << 20, chunk_size=1 << 20, timeout=2.0,
                 use_async_rpc=True, eager_map=True, auto_expand=True, rm_address=None, client_id=None):
        self.url, self.instance_id = url, instance_id or str(uuid.uuid4())
        self.pool_size, self.chunk_size, self.timeout = pool_size, chunk_size, timeout
        self.eager_map, self.auto_expand, self.rm_address, self.client_id = eager_map, auto_expand, rm_address, client_id
        self.rpc = (AsyncRPC if use_async_rpc else SyncRPC)(url, timeout)
        self.rm, self.maps, self.owned, self.free_pages, self.stored = None, {}, [], [], {}
        self.writing, self.mapping, self.closed = threading.RLock(), threading.Lock(), False

    def __enter__(self):
        self.connect()
        return self

    def __exit__(self, *_):
        self.close()

    def connect(self):
        welcome = self.rpc.call(HANDSHAKE, {})
        self.rm_address = welcome.get("rm_address") or self.rm_address
        self._expand()
        if self.eager_map:
            for handle in self.rpc.call(LIST, {"exclude_instance_id": self.instance_id}).get("allocations", []):
                try:
                    self._map(handle)
                except (OSError, Refused):
                    pass

    def _expand(self):
        answer = self.rpc.call(ALLOC, {"instance_id": self.instance_id, "size": self.pool_size})
        if not answer.get("success"):
            raise Refused(answer.get("error", "no region"))
        handle = answer["handle"]
        self._map(handle, populate=True)
        region = handle["region_id"]
        self.owned.append(region)
        self.free_pages += [(region, i * self.chunk_size) for i in range(handle["length"] // self.chunk_size)]

    def _map(self, handle, populate=False):
        region = handle["region_id"]
        with self.mapping:
            if region not in self.maps:
                if self.rm is None:
                    self.rm = Resources(self.rm_address, self.client_id)
                fd = os.open(self.rm.path(handle), os.O_RDWR | os.O_CLOEXEC)
                try:
                    self.maps[region] = mmap.mmap(fd, handle["length"], mmap.MAP_SHARED, offset=handle["offset"])
                finally:
                    os.close(fd)
            if populate:
                try:
                    self.maps[region].madvise(MADV_POPULATE_WRITE)
                except OSError:
                    sum(self.maps[region][::4096])
            return memoryview(self.maps[region])

    # Pages.

    def alloc(self):
        """Takes a page: (region, offset)."""
        with self.writing:
            if not self.free_pages:
                if not self.auto_expand:
                    raise Refused("all pages are taken")
                self._expand()
            return self.free_pages.pop()

    def free(self, page):
        with self.writing:
            self.free_pages.append(page)

    def buffer(self, page, length=None):
        region, offset = page
        return memoryview(self.maps[region])[offset:offset + (self.chunk_size if length is None else length)]

    def _fill(self, data):
        if len(data) > self.chunk_size:
            raise ValueError(f"{len(data)} bytes do not fit a page of {self.chunk_size}")
        page = self.alloc()
        self.buffer(page, len(data))[:] = data
        return page

    # Keys.

    def store(self, key, data):
        """Stores bytes; True also if somebody else was first."""
        with self.writing:
            if key in self.stored:
                return True
            try:
                if self.exists(key):
                    return True
            except TimedOut:
                pass
            page = self._fill(data)
            try:
                answer = self.register(key, page, len(data))
            except TimedOut:
                answer = {"error": "no answer"}
            if "error" in answer or not answer.get("is_new"):
                self.free(page)
                return "error" not in answer
            self.stored[key] = page
            return True

    def register(self, key, page, length):
        return self.rpc.call(REGISTER, {"key": key, "region_id": page[0], "kv_offset": page[1], "kv_length": length})

    def batch_store(self, items):
        """Stores (key, bytes) pairs; returns for each what store would."""
        with self.writing:
            keys = [key for key, _ in items]
            there = self.batch_exists(keys)
            missing = [i for i in range(len(items)) if not there[i] and keys[i] not in self.stored]
            pages = {i: self._fill(items[i][1]) for i in missing}
            entries = [{"key": keys[i], "region_id": pages[i][0], "kv_offset": pages[i][1], "kv_length": len(items[i][1])} for i in missing]
            answer = self.rpc.call(BATCH_REGISTER, {"entries": entries})
            done = [True] * len(items)
            for at, i in enumerate(missing):
                if not answer.get("success"):
                    self.free(pages[i])
                    done[i] = False
                elif answer["results"][at]:
                    self.stored[keys[i]] = pages[i]
                else:
                    done[i] = False  # and the page is lost
            return done

    def _view(self, answer):
        if not answer.get("found"):
            return None
        view = self._map(answer["handle"])
        return view[answer["kv_offset"]:answer["kv_offset"] + answer["kv_length"]]

    def retrieve(self, key):
        """Returns the bytes where they are, or None."""
        return self._view(self.rpc.call(LOOKUP, {"key": key}))

    def batch_retrieve(self, keys):
        return [self._view(answer) for answer in self.rpc.call(BATCH_LOOKUP, {"keys": keys})["entries"]]

    def exists(self, key):
        return self.rpc.call(EXISTS, {"key": key}).get("exists", False)

    def batch_exists(self, keys):
        return self.rpc.call(BATCH_EXISTS, {"keys": keys}).get("results", [])

    def pin(self, key):
        return self.rpc.call(PIN, {"key": key}).get("exists", False)

    def unpin(self, key):
        return self.rpc.call(UNPIN, {"key": key}).get("success", False)

    def batch_pin(self, keys):
        return self.rpc.call(BATCH_PIN, {"keys": keys}).get("results", [])

    def batch_unpin(self, keys):
        return self.rpc.call(BATCH_UNPIN, {"keys": keys}).get("results", [])

    def delete(self, key):
        with self.writing:
            if not self.rpc.call(DELETE, {"key": key}).get("success"):
                return False
            page = self.stored.pop(key, None)
            if page is not None:
                self.free(page)
            return True

    # The rest.

    def healthcheck(self):
        try:
            return "error" not in self.rpc.call(HEARTBEAT, {})
        except TimedOut:
            return False

    def list(self, exclude=None):
        return self.rpc.call(LIST, {"exclude_instance_id": exclude} if exclude else {})["allocations"]

    def stats(self):
        return self.rpc.call(STATS, {})

    def usage(self):
        return self.rpc.call(USAGE, {})

    def report(self, entries):
        return self.rpc.call(REPORT, {"entries": entries})

    def close(self):
        """Returns the regions. Keys in them stay. Closing twice is a no-op."""
        if self.closed:
            return
        self.closed = True
        for region in self.owned:
            try:
                self.rpc.call(RETURN, {"instance_id": self.instance_id, "region_id": region})
            except TimedOut:
                pass
        self.owned, self.free_pages = [], []
        for mapped in self.maps.values():
            try:
                mapped.close()
            except BufferError:
                pass  # a view is still used
        self.maps = {}
        self.rpc.close()
        if self.rm is not None:
            self.rm.close()
