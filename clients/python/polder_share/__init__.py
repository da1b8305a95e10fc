"""Shared memory of one host: the Python client of "polder share".

The standard library only. A client takes pages of memory that the daemon
holds, fills them, and puts them under a key; any process on the host then
reads the bytes where they are:

    import polder_share

    with polder_share.Client("/run/polder/share.sock", page_size=1 << 20) as c:
        page = c.alloc()
        page.buffer[:5] = b"hello"          # a writable memoryview
        c.put("greeting", page, 5)

        with c.get("greeting") as view:     # a read-only memoryview, no copy
            print(bytes(view.buffer))
            # numpy.frombuffer(view.buffer, dtype="u1") wraps it, too, and so
            # does torch.frombuffer(view.buffer, dtype=torch.uint8)

Keys are str or bytes and name content: the first writer of a key wins. The
bytes of a view are right until it is closed, whatever becomes of the key, the
writer and the daemon; and as long as memoryviews, arrays and tensors wrap its
buffer, which therefore keep the page from being used again.

The first get of a key asks the daemon; later ones find in memory shared with
it whether the key is still where it was, and ask nobody.

A Client may be used by any number of threads; one at a time of them talks to
the daemon. It has one thread of its own, which attaches it anew when the
daemon restarts. After a fork, only the parent may use it: a child that does gets
Closed, and may close it and the views without harm to the parent.
polder_share.aio has the client for asyncio.
"""

from ._client import Client, Item
from ._memory import Page, View
from ._wire import (
    DEFAULT_SOCKET, Busy, Closed, Denied, Error, Failed, Full, Invalid, Key, LogFull, NotFound,
    Pinned, Quota, Unavailable,
)

__all__ = [
    "Client", "Page", "View", "Item", "Key", "DEFAULT_SOCKET", "Error", "NotFound", "Pinned",
    "Denied", "Full", "Quota", "Invalid", "LogFull", "Busy", "Failed", "Closed", "Unavailable",
]
