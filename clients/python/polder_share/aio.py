"""The client of "polder share" for asyncio.

It has the methods of polder_share.Client, to be awaited, and none of them
blocks the event loop:

    async with polder_share.aio.Client("/run/polder/share.sock") as c:
        page = await c.alloc()
        page.buffer[:5] = b"hello"
        await c.put("greeting", page, 5)
        with await c.get("greeting") as view:
            print(bytes(view.buffer))

A thread of the client talks to the daemon, and carries out one call after the
other. Only a get that need not ask the daemon is done at once. A call that is cancelled while it waits for its turn is not made; one
that is cancelled later is carried out, and the page or the views that it would
have returned are given back. A Client belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
from typing import Any, Callable, Sequence, TypeVar

from . import _client
from ._memory import Page, View
from ._wire import DEFAULT_SOCKET, Closed, Error, Key

__all__ = ["Client"]

T = TypeVar("T")


def _keep(_: object) -> None:
    """Undoes nothing."""


class Client:
    """A connection to the daemon. A context manager, which connects."""

    def __init__(self, path: str = DEFAULT_SOCKET, page_size: int = 1 << 20, region_size: int | None = None,
                 pool: str = "", name: str | None = None, patience: float = 10.0, cache_keys: int = 65536) -> None:
        self._connect = functools.partial(_client.Client, path, page_size, region_size, pool, name, patience, cache_keys)
        self._client: _client.Client | None = None
        self._closed = False
        self._turn = asyncio.Semaphore(1)  # so that cancelled calls do not pile up in the thread
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "polder_share.aio")

    async def __aenter__(self) -> Client:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connects to the daemon, if that has not been done."""
        def connect() -> None:
            if self._client is None:
                self._client = self._connect()

        await self._run(connect, lambda _: self._there().close())

    async def close(self) -> None:
        """Ends the client. Keys stay, and views that are open stay valid."""
        def close() -> None:
            if self._client is not None:
                self._client.close()

        with contextlib.suppress(Closed):
            await self._run(close, _keep)
        self._closed = True
        self._thread.shutdown(wait=False)

    async def alloc(self) -> Page:
        """Returns a Page to fill."""
        return await self._run(lambda: self._there().alloc(), lambda page: self._there().free(page))

    async def free(self, page: Page) -> None:
        """Gives a page back unused."""
        await self._run(lambda: self._there().free(page), _keep)

    async def put(self, key: Key, page: Page, length: int | None = None, ttl: float = 0.0) -> bool:
        """Registers the first length bytes of a page under key. Returns False
        if the key was there already; the page is free again then."""
        return await self._run(lambda: self._there().put(key, page, length, ttl), _keep)

    async def put_all(self, items: Sequence[_client.Item], ttl: float = 0.0) -> list[bool]:
        """Registers (key, page, length) triples; returns what put would."""
        return await self._run(lambda: self._there().put_all(items, ttl), _keep)

    async def get(self, key: Key) -> View:
        """Returns a View of the key's bytes, or raises NotFound."""
        if self._client is not None:  # fast path: the daemon need not be asked
            view = self._client._get_at_once(key)
            if view is not None:
                return _patient(view)
        return await self._run(lambda: _patient(self._there().get(key)), View.close)

    async def get_all(self, keys: Sequence[Key]) -> list[View | None]:
        """Returns a View for each key, None for those that are not there."""
        def close(views: list[View | None]) -> None:
            for view in views:
                if view is not None:
                    view.close()

        def get() -> list[View | None]:
            return [None if view is None else _patient(view) for view in self._there().get_all(keys)]

        return await self._run(get, close)

    async def exists(self, key: Key) -> bool:
        """Reports whether the key is there."""
        return await self._run(lambda: self._there().exists(key), _keep)

    async def exists_all(self, keys: Sequence[Key]) -> list[bool]:
        """Reports for each key whether it is there."""
        return await self._run(lambda: self._there().exists_all(keys), _keep)

    async def delete(self, key: Key) -> None:
        """Deletes a key. Raises NotFound or Pinned."""
        await self._run(lambda: self._there().delete(key), _keep)

    async def delete_all(self, keys: Sequence[Key]) -> list[Error | None]:
        """Deletes keys; returns None or the error of each."""
        return await self._run(lambda: self._there().delete_all(keys), _keep)

    async def pin(self, key: Key) -> None:
        """Keeps a key from being deleted and evicted until unpin."""
        await self._run(lambda: self._there().pin(key), _keep)

    async def pin_all(self, keys: Sequence[Key]) -> int:
        """Pins the longest prefix of keys that are all there; returns its
        length."""
        return await self._run(lambda: self._there().pin_all(keys), _keep)

    async def unpin(self, key: Key) -> None:
        """Takes one pin back."""
        await self._run(lambda: self._there().unpin(key), _keep)

    async def unpin_all(self, keys: Sequence[Key]) -> list[Error | None]:
        """Takes one pin of each key back; returns None or the error of each."""
        return await self._run(lambda: self._there().unpin_all(keys), _keep)

    async def stats(self) -> dict[str, Any]:
        """Returns what the daemon says about itself, a dict."""
        return await self._run(lambda: self._there().stats(), _keep)

    def _there(self) -> _client.Client:
        if self._client is None:
            raise Closed("the client is not connected")
        return self._client

    async def _run(self, call: Callable[[], T], undo: Callable[[T], object]) -> T:
        """Makes a call in the client's thread. If the caller was cancelled and
        does not get the result, undo gets it, in the same thread."""
        await self._turn.acquire()
        if self._closed:
            self._turn.release()
            raise Closed("the client is closed")
        work = asyncio.get_running_loop().run_in_executor(self._thread, call)
        work.add_done_callback(lambda _: self._turn.release())

        def give_back(done: asyncio.Future[T]) -> None:
            if not done.cancelled() and done.exception() is None:
                with contextlib.suppress(RuntimeError):  # the client is closed, and has nothing any more
                    self._thread.submit(undo, done.result())

        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(give_back)
            raise


def _patient(view: View) -> View:
    """Has a view close without waiting: the client's own thread tells the daemon."""
    view._blocks = False
    return view
