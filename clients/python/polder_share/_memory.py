"""Memory that the daemon holds, as a client has it: to fill, and to look at."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import os
import weakref
from typing import TYPE_CHECKING

from ._wire import Closed, Failed

if TYPE_CHECKING:
    from ._client import Client

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MAP_FAILED = ctypes.c_void_p(-1).value


class Lease:
    """The list of open views that the daemon reads: see package shm of the
    library in Go, whose layout this is. Guarded by Client._lock."""

    MAGIC = 0x504C44524C454153
    SLOTS_AT, SLOTS, RING = 8, 4096, 504
    RING_AT = SLOTS_AT + SLOTS
    SIZE = ((RING_AT + RING) * 8 + 4095) & ~4095
    F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4
    FUTEX, FUTEX_WAKE = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine), 1

    def __init__(self) -> None:
        self.fd = os.memfd_create("polder-share-lease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.SIZE)
        fcntl.fcntl(self.fd, self.F_ADD_SEALS, self.F_SEAL_SHRINK | self.F_SEAL_GROW)
        self.mem = mmap.mmap(self.fd, self.SIZE)
        self.words = memoryview(self.mem).cast("Q")
        self.words[0] = self.MAGIC
        self.free: list[int] = list(range(self.SLOTS - 1, -1, -1))
        self.word = ctypes.c_uint32()
        self.fence_args = [ctypes.c_long(self.FUTEX or 0), ctypes.byref(self.word), ctypes.c_int(self.FUTEX_WAKE),
                           ctypes.c_int(1), None, None, ctypes.c_int(0)]

    def fence(self) -> None:
        """Orders what was written before it and what is read after it: waking
        the sleepers of a futex, of which there are none, does so in the kernel,
        and nothing in Python is sure to."""
        libc.syscall(*self.fence_args)

    def hold(self, page: int) -> int | None:
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

    def drop(self, slot: int) -> None:
        self.fence()
        self.words[self.SLOTS_AT + slot] = 0
        self.free.append(slot)

    def touch(self, page: int) -> None:
        """Tells the daemon's LRU that page was looked at."""
        n = self.words[2]
        self.words[self.RING_AT + n % self.RING] = page
        self.words[2] = n + 1

    def close(self) -> None:
        self.words.release()
        self.mem.close()
        os.close(self.fd)


class Region:
    """Memory that the client owns."""

    def __init__(self, ident: int, length: int, page_size: int, base: int, durable: bool,
                 handle: bytes, mem: mmap.mmap) -> None:
        self.id, self.page_size, self.base = ident, page_size, base
        self.durable, self.handle, self.mem = durable, handle, mem
        self.view = memoryview(mem)
        pages = length // page_size
        self.free: list[int] = list(range(pages - 1, -1, -1))
        self.put: set[int] = set()  # pages that hold, or held, a key
        self.recalled = False  # the daemon wants it back


class Mapping:
    """A region mapped read-only."""

    def __init__(self, region: int, fd: int, offset: int, length: int, shared: bool) -> None:
        self.region = region
        self.shared = shared  # the daemon waits to be told that it is unmapped
        self.address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
        if self.address == MAP_FAILED:
            raise Failed(f"cannot map region {region}: {os.strerror(ctypes.get_errno())}")
        self.unmap = weakref.finalize(self, libc.munmap, self.address, length)
        self.unmap.atexit = False  # other threads may still read
        self.views = 0
        self.freed = False

    def close_if_unused(self) -> None:
        if self.freed and self.views == 0:
            self.unmap()


class Page:
    """Memory to fill and put under a key."""

    def __init__(self, region: Region, index: int) -> None:
        self._region: Region | None = region
        self._index = index
        at = index * region.page_size
        self._buffer: memoryview | None = region.view[at:at + region.page_size]
        # Some that wrap a buffer, torch among them, keep the memoryview alive
        # and not its memory: that is then mapped as long as the memoryview is there.
        weakref.finalize(self._buffer, _ignore, region.mem).atexit = False

    @property
    def buffer(self) -> memoryview:
        """A writable memoryview of the page. It is released by put and free;
        what wraps it must not be written to any more then."""
        if self._buffer is None:
            raise Closed("the page was put or freed")
        return self._buffer

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.buffer)

    def __len__(self) -> int:
        return len(self.buffer)

    def _take(self) -> Region:
        if self._region is None:
            raise Closed("the page was put or freed")
        region, self._region = self._region, None
        return region

    def _release(self) -> None:
        if self._buffer is not None:
            try:
                self._buffer.release()
            except BufferError:
                pass  # an array wraps it: that must not be written to any more
        self._buffer = None


def _ignore(_: object) -> None:
    pass


class Hold:
    """Keeps a page as it is until nothing wraps its bytes any more."""

    def __init__(self, client: Client, mapping: Mapping, page: int, slot: int | None) -> None:
        self.client, self.mapping, self.page, self.slot = client, mapping, page, slot
        self.closing = False
        self.ref: weakref.ref[object] | None = None

    def buffer(self, offset: int, length: int) -> memoryview:
        """Returns a read-only memoryview. It, and all that is made of it, hold
        on to an object that can be watched for its end."""
        exporter = (ctypes.c_char * max(length, 1)).from_address(self.mapping.address + offset)
        self.ref = weakref.ref(exporter, functools.partial(Hold.ended, self))
        holds.add(self)
        return memoryview(exporter).cast("B").toreadonly()[:length]

    def ended(self, _: object) -> None:
        # In whatever thread, at whatever moment: nothing is locked here.
        holds.discard(self)
        self.client._ended.append(self)
        if not self.closing:
            self.client._poke()


holds: set[Hold] = set()  # an array may be all that is left of a client


class View:
    """The bytes of a key, where they are. A context manager."""

    def __init__(self, hold: Hold | None, buffer: memoryview) -> None:
        self._hold = hold
        self._buffer: memoryview | None = buffer
        self._blocks = True  # whether close may wait for the daemon

    @property
    def buffer(self) -> memoryview:
        """A read-only memoryview of the bytes, a new one each time. It, and
        what wraps it, keep the page as it is, also when the view is closed."""
        if self._buffer is None:
            raise Closed("the view is closed")
        return memoryview(self._buffer)

    def __buffer__(self, flags: int) -> memoryview:
        return self.buffer

    def __len__(self) -> int:
        return len(self.buffer)

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the view. Closing twice is a no-op. While a memoryview of its
        bytes is there, or an array that wraps one, the page stays as it is."""
        buffer, self._buffer = self._buffer, None
        hold, self._hold = self._hold, None
        if buffer is None:
            return
        if hold is None:  # of a copy
            buffer.release()
            return
        hold.closing = self._blocks  # what ends now is seen to below
        buffer.release()
        hold.closing = False
        if self._blocks:
            hold.client._drop_ended()
