"""Memory that is larger than its local part: a memoryview whose pages come from far memory.

    import numpy, polder_pages

    view = polder_pages.map("unix:/run/polder/pager.sock", 16 << 30, local=1 << 30)
    a = numpy.frombuffer(view, dtype=numpy.float64)

A page is brought by `polder pager` when it is touched, and goes to memory of other machines
when it was not used for long. The view is plain memory: slices of it, arrays over it, and
system calls such as file.readinto work. It lasts as long as somebody refers to it, and no
longer than the process. With a name, what is in it stays with the pager, and is there for whoever
maps the name next, until `remove`.

An access that waits does so in the kernel, and holds Python's lock if the code that makes it
does. A page that is lost, or does not come within the pager's --op-timeout, is SIGBUS. When the
pager ends, a small process that `map` starts waits for another one, for timeout seconds, and
what only the old one had is lost; after that, all that is not local is.

A child that is forked does not have the memory: it must not touch the view. System calls on
the memory need root, CAP_SYS_PTRACE, or the right to open /dev/userfaultfd; without them they
fail with EFAULT where it is not local. Linux 6.6 or later is needed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import subprocess
import sys

from . import _keeper

__all__ = ["map", "remove"]

PAGE = 4096
#: The least local memory, in bytes.
MIN_LOCAL = 256 << 10

_SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = 1
_NEW = 0xAA00
_API = 0xC018AA3F
_REGISTER = 0xC020AA00
_MISSING_AND_PROTECTED = 3
#: Pages of shared memory that are missing, protected and poisoned.
_FEATURES = 1 << 0 | 1 << 5 | 1 << 12 | 1 << 14
_SEALED = 1 | 2 | 4  # its seals, against shrinking, against growing
_NORESERVE = 0x4000


class _Memory(mmap.mmap):
    """The mapping. It has what has to last as long."""

    owner: int  # the process that it belongs to, and not to children of that
    userfaultfd: int
    keeper: subprocess.Popen[bytes]

    def __del__(self) -> None:
        keeper = getattr(self, "keeper", None)
        if keeper is not None and self.owner == os.getpid():
            # Closing its input would not end it: children of this process may hold that open.
            keeper.communicate(b"end")
        if hasattr(self, "userfaultfd"):
            os.close(self.userfaultfd)


def map(pager: str, size: int, local: int | None = None, timeout: float = 10.0, name: str = "") -> memoryview:
    """Map size bytes, which read as zeros, and return them. Pager is where `polder pager`
    listens, unix:PATH. Local is how many bytes may be in local memory at a time, an eighth of
    the size by default. Both are multiples of 4096. With a name, of at most 200 bytes, they read as what
    was left in the memory that had the name, which had to be as large; one process at a time has a
    name. If the pager's heap is kept (polder pager --heap), what was left is there after the pager
    has died, too. It raises OSError if the pager refuses, or is not there."""
    if local is None:
        local = max(size // 8 // PAGE * PAGE, MIN_LOCAL)
    if size <= 0 or size % PAGE or local < MIN_LOCAL or local % PAGE:
        raise ValueError(f"cannot map {size} bytes with {local} local: expected multiples of {PAGE}, and at least {MIN_LOCAL} local")
    path = _path(pager)
    if len(os.fsencode(name)) > _keeper.MAX_NAME or "\0" in name:
        raise ValueError(f"cannot map memory with a name of {len(os.fsencode(name))} bytes: expected at most {_keeper.MAX_NAME}, and no zeros")
    table_size = (2 * ((size // PAGE + (1 << 15) - 1) >> 15) + 1) * PAGE
    files: list[int] = []
    try:
        for title, length in (("polder-pages", size), ("polder-pages-table", table_size)):
            fd = os.memfd_create(title, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            files.append(fd)
            os.ftruncate(fd, length)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALED)
        files.append(_userfaultfd())
        memory = _Memory(files[0], size, mmap.MAP_SHARED | _NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE)
        memory.madvise(mmap.MADV_DONTFORK)  # a child would see zeros, and have this process see them
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        fcntl.ioctl(files[2], _REGISTER, bytearray(struct.pack("=4Q", base, size, _MISSING_AND_PROTECTED, 0)))
        memory.owner = os.getpid()
        memory.userfaultfd = os.dup(files[2])
        memory.keeper = _keep(files, path, size, local, base, timeout, name)
    finally:
        for fd in files:
            os.close(fd)
    return memoryview(memory)


def remove(pager: str, name: str) -> None:
    """Give back what the pager has under a name, which no process may have mapped. It raises OSError if one
    has, or if there is no such name."""
    try:
        _keeper.remove(_path(pager), name)
    except OSError as e:
        raise OSError(errno.EIO, f"cannot remove region {name!r} of the pager at {pager}: {e}") from e


def _path(pager: str) -> str:
    if not pager.startswith("unix:/"):
        raise ValueError(f"cannot use the pager's address {pager!r}: expected unix:PATH")
    return pager[len("unix:"):]


def _userfaultfd() -> int:
    """A userfaultfd that serves the accesses of system calls, too, if this process may have
    such a one."""
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    call = ctypes.CDLL(None, use_errno=True).syscall
    number = _SYS_USERFAULTFD.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"nothing is known of userfaultfd on {platform.machine()}")
    fd: int = call(number, flags)
    if fd < 0:
        try:
            device = os.open("/dev/userfaultfd", os.O_RDWR | os.O_CLOEXEC)
            try:
                fd = fcntl.ioctl(device, _NEW, flags)
            finally:
                os.close(device)
        except OSError:
            fd = call(number, flags | _USER_MODE_ONLY)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "cannot make a userfaultfd")
    try:
        fcntl.ioctl(fd, _API, bytearray(struct.pack("=3Q", 0xAA, _FEATURES, 0)))
    except OSError as e:
        os.close(fd)
        raise OSError(e.errno, "cannot use userfaultfd: Linux 6.6 or later is needed") from e
    return fd


def _keep(files: list[int], path: str, size: int, local: int, base: int, timeout: float, name: str) -> subprocess.Popen[bytes]:
    """Start the process that speaks with the pager: a thread of this one could not, while
    another waits for a page and holds Python's lock."""
    numbers = [os.getpid(), *files, size, local, base]
    keeper = subprocess.Popen([sys.executable, "-I", _keeper.__file__, path, str(timeout), *(str(n) for n in numbers), name],
                              pass_fds=files, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert keeper.stdout is not None and keeper.stdin is not None
    with keeper.stdout as answers:
        answer = answers.readline().decode(errors="replace").strip()
    if answer != "ok":
        keeper.stdin.close()
        keeper.wait()
        raise OSError(errno.EIO, f"cannot map memory of the pager at {path}: {answer or 'the process that speaks with it has ended'}")
    return keeper
