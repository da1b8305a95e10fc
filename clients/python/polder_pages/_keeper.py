"""The process that speaks with the pager for another one, which has the memory.

It is started with the path of the pager's socket, the timeout, the process, the descriptors of
the memory, the table and the userfaultfd, the sizes and the address of the memory, and its name. It ends
with that process, or when something comes by its standard input, or that ends. The protocol is that of Polder's Go package
pages/internal/wire.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time

_MAGIC = 0x32524750
_WAKE = 0x8010AA02
_WRITE_PROTECT = 0xC018AA06
_POISON = 0xC020AA08
_PAGE = 4096


#: How long a name may be, in bytes.
MAX_NAME = 200
_RESUME, _REMOVE, _NAMED = 1, 2, 4


def _attach(path: str, timeout: float, files: list[int], size: int, local: int, base: int, flags: int, name: str) -> socket.socket:
    """Have a pager serve the memory, or remove what has the name."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    flags |= _NAMED if name else 0
    try:
        sock.settimeout(timeout)
        sock.connect(path)
        message = struct.pack("<2I4Q", _MAGIC, flags, size, min(local, max(size, 256 << 10)), base, 0) + os.fsencode(name)
        if files:
            socket.send_fds(sock, [message], files)
        else:
            sock.send(message)
        reply = sock.recv(64 << 10)
        if len(reply) < 16:
            raise ConnectionError("the pager has ended the connection")
        if struct.unpack_from("<Q", reply, 8)[0] != 0:
            raise ConnectionError(reply[16:].decode(errors="replace"))
        return sock
    except BaseException:
        sock.close()
        raise


def remove(path: str, name: str) -> None:
    """Have a pager remove what has the name."""
    _attach(path, 10.0, [], 0, 0, 0, _REMOVE, name).close()


def _poison(fd: int, memory: int, base: int, size: int) -> None:
    """Have every access fail to what is not there, instead of waiting for ever."""
    fcntl.ioctl(fd, _WRITE_PROTECT, bytearray(struct.pack("=3Q", base, size, 0)))
    at = 0
    while at < size:
        start = os.lseek(memory, at, os.SEEK_HOLE)
        if start >= size:
            break
        try:
            at = os.lseek(memory, start, os.SEEK_DATA)
        except OSError:
            at = size
        while start < at:
            request = bytearray(struct.pack("=3Qq", base + start, at - start, 0, 0))
            try:
                fcntl.ioctl(fd, _POISON, request)
            except OSError:
                pass  # it says how far it came
            done: int = struct.unpack_from("=q", request, 24)[0]
            start += done if done > 0 else _PAGE
    fcntl.ioctl(fd, _WAKE, bytearray(struct.pack("=2Q", base, size)))


def main() -> None:
    path, timeout = sys.argv[1], float(sys.argv[2])
    pid, memory, table, fd, size, local, base = (int(s) for s in sys.argv[3:10])
    name = sys.argv[10]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the other process
    process = os.pidfd_open(pid)
    gone = {process, sys.stdin.fileno()}
    files = [memory, table, fd]
    try:
        sock = _attach(path, timeout, files, size, local, base, 0, name)
    except OSError as e:
        print(str(e).replace("\n", " "), flush=True)
        return
    print("ok", flush=True)
    os.close(1)
    while True:
        sock.settimeout(None)
        ready = select.select([sock, *gone], [], [])[0]
        if gone.intersection(ready):
            return
        if sock.recv(64 << 10):
            continue
        sock.close()
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                sock = _attach(path, max(left, 0.01), files, size, local, base, _RESUME, name)
                break
            except OSError:
                if left <= 0:
                    _poison(fd, memory, base, size)
                    select.select(list(gone), [], [])
                    return
            if select.select(list(gone), [], [], 0.02)[0]:
                return


if __name__ == "__main__":
    main()
