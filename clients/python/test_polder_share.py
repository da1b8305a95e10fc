"""Tests of polder_share against a daemon whose socket is in POLDER_SHARE_SOCKET.

The package is to be in PYTHONPATH; the tests of package share install it first.
"""

import array
import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import unittest

import numpy
import polder_share
import polder_share.aio

SOCKET = os.environ["POLDER_SHARE_SOCKET"]


def client(**options):
    return polder_share.Client(SOCKET, page_size=16 << 10, region_size=64 << 10, **options)


def put(c, key, value, **options):
    page = c.alloc()
    page.buffer[:len(value)] = value
    return c.put(key, page, len(value), **options)


def mapped(address):
    """Reports whether there is memory at an address of this process."""
    with open("/proc/self/maps") as maps:
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
    return any(low <= address < high for low, high in ranges)


@contextlib.contextmanager
def descriptors(free):
    """Leaves this process so many descriptors to open."""
    taken = []
    for _ in range(free + 1):
        taken.append(os.dup(0))
    for fd in taken:
        os.close(fd)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[free], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class PolderShare(unittest.TestCase):
    def setUp(self):
        self.c = client()
        self.addCleanup(self.c.close)
        self.prefix = self.id() + "/"

    def test_put_is_seen_by_another_client(self):
        self.assertTrue(put(self.c, self.prefix + "a", b"hello"))
        with client() as other, other.get(self.prefix + "a") as view:
            self.assertEqual(bytes(view.buffer), b"hello")
            self.assertTrue(view.buffer.readonly)
            with self.assertRaises(TypeError):
                view.buffer[0] = 1

    def test_put_is_seen_by_another_process(self):
        put(self.c, self.prefix + "p", b"from the parent")
        program = ("import polder_share, sys\n"
                   "with polder_share.Client(sys.argv[1]) as c, c.get(sys.argv[2]) as v:\n"
                   "    sys.stdout.buffer.write(v.buffer)\n")
        out = subprocess.run([sys.executable, "-c", program, SOCKET, self.prefix + "p"],
                             check=True, capture_output=True)
        self.assertEqual(out.stdout, b"from the parent")

    def test_bytes_that_another_language_wrote(self):
        key, want = os.environ["POLDER_SHARE_KEY"], os.environ["POLDER_SHARE_VALUE"]
        with self.c.get(key) as view:
            self.assertEqual(bytes(view.buffer), want.encode())
        put(self.c, "from-python", b"hello, Go")

    def test_empty_value(self):
        put(self.c, self.prefix + "empty", b"")
        with self.c.get(self.prefix + "empty") as view:
            self.assertEqual(bytes(view.buffer), b"")

    def test_first_writer_wins(self):
        self.assertTrue(put(self.c, self.prefix + "k", b"first"))
        self.assertFalse(put(self.c, self.prefix + "k", b"second"))
        with self.c.get(self.prefix + "k") as view:
            self.assertEqual(bytes(view.buffer), b"first")

    def test_missing_key(self):
        with self.assertRaises(polder_share.NotFound):
            self.c.get(self.prefix + "missing")
        self.assertFalse(self.c.exists(self.prefix + "missing"))

    def test_view_outlives_its_key(self):
        put(self.c, self.prefix + "k", b"precious")
        view = self.c.get(self.prefix + "k")
        self.c.delete(self.prefix + "k")
        for i in range(8):
            put(self.c, f"{self.prefix}{i}", b"x" * 100)
        self.assertEqual(bytes(view.buffer), b"precious")
        view.close()
        view.close()

    def test_view_outlives_its_client(self):
        put(self.c, self.prefix + "k", b"still here")
        other = client()
        view = other.get(self.prefix + "k")
        other.close()
        self.c.delete(self.prefix + "k")
        self.assertEqual(bytes(view.buffer), b"still here")
        with self.assertRaises(polder_share.Closed):
            other.get(self.prefix + "k")
        view.close()

    def lookups(self):
        return self.c.stats()["requests"].get("lookup", 0)

    def test_second_get_asks_nobody(self):
        put(self.c, self.prefix + "k", b"value")
        with client() as other:
            other.get(self.prefix + "k").close()
            before = self.lookups()
            for _ in range(100):
                with other.get(self.prefix + "k") as view:
                    self.assertEqual(bytes(view.buffer), b"value")
            self.assertEqual(self.lookups(), before)
            self.c.delete(self.prefix + "k")
            with self.assertRaises(polder_share.NotFound):
                other.get(self.prefix + "k")

    def test_remembered_keys_expire(self):
        for ttl in (0.05, 1e-9):  # which is no time, but not for ever
            put(self.c, self.prefix + "k", b"value", ttl=ttl)
            deadline = time.monotonic() + 60
            with self.subTest(ttl=ttl), self.assertRaises(polder_share.NotFound):
                while time.monotonic() < deadline:  # until it has expired
                    self.c.get(self.prefix + "k").close()

    def test_open_views_of_remembered_keys_keep_their_pages(self):
        put(self.c, self.prefix + "k", b"precious")
        with client() as other:
            other.get(self.prefix + "k").close()
            view = other.get(self.prefix + "k")
            self.c.delete(self.prefix + "k")
            for i in range(8):
                put(self.c, f"{self.prefix}{i}", b"x" * 100)
            self.assertEqual(bytes(view.buffer), b"precious")
            view.close()

    def test_more_views_than_the_lease_holds(self):
        put(self.c, self.prefix + "k", b"value")
        views = [self.c.get(self.prefix + "k") for _ in range(4100)]
        self.assertTrue(all(bytes(v.buffer) == b"value" for v in views))
        self.assertEqual(self.c.stats()["views"], 4100)
        for view in views:
            view.close()
        self.assertEqual(self.c.stats()["views"], 0)

    def test_only_so_many_keys_are_remembered(self):
        with client(cache_keys=4) as other, client(cache_keys=0) as forgetful:
            for i in range(10):
                put(self.c, f"{self.prefix}{i}", b"%d" % i)
            for c in other, forgetful:
                for _ in range(2):
                    for i in range(10):
                        with c.get(f"{self.prefix}{i}") as view:
                            self.assertEqual(bytes(view.buffer), b"%d" % i)
            self.assertEqual(len(other._places), 4)
            self.assertEqual(len(forgetful._places), 0)

    def test_what_is_remembered_is_never_another_keys(self):
        # Another process puts and deletes keys in the same few pages all the
        # time; each value names its key.
        program = ("import polder_share, sys\n"
                   "prefix, n = sys.argv[2], 0\n"
                   "with polder_share.Client(sys.argv[1], page_size=16 << 10, region_size=64 << 10) as c:\n"
                   "    print('ready', flush=True)\n"
                   "    while True:\n"
                   "        n += 1\n"
                   "        key = f'{prefix}{n % 7}'\n"
                   "        page = c.alloc()\n"
                   "        value = f'{key}:{n}.'.encode()\n"
                   "        page.buffer[:len(value)] = value\n"
                   "        if not c.put(key, page, len(value)):\n"
                   "            c.delete(key)\n")
        writer = subprocess.Popen([sys.executable, "-c", program, SOCKET, self.prefix], stdout=subprocess.PIPE)
        try:
            self.assertEqual(writer.stdout.readline(), b"ready\n")
            found, i = 0, 0
            while found < 3000:
                i += 1
                key = f"{self.prefix}{i % 7}"
                try:
                    view = self.c.get(key)
                except polder_share.NotFound:
                    continue
                with view:
                    first = bytes(view.buffer)
                    self.assertTrue(first.startswith(key.encode() + b":"), (key, first))
                    self.assertTrue(first.endswith(b"."), (key, first))
                    self.assertEqual(bytes(view.buffer), first)
                found += 1
        finally:
            writer.kill()
            writer.wait()
            writer.stdout.close()

    def test_pages_are_used_again(self):
        for i in range(40):
            put(self.c, f"{self.prefix}{i}", b"y")
            self.c.delete(f"{self.prefix}{i}")
        self.assertEqual(len(self.c._regions), 1)

    def test_pins(self):
        put(self.c, self.prefix + "1", b"1")
        put(self.c, self.prefix + "2", b"2")
        keys = [self.prefix + k for k in "1234"]
        with client() as other:
            self.assertEqual(other.pin_all(keys), 2)
            errors = self.c.delete_all(keys)
            self.assertEqual([type(e) for e in errors], [polder_share.Pinned] * 2 + [polder_share.NotFound] * 2)
            other.unpin(keys[0])
            self.c.delete(keys[0])
        self.c.delete(keys[1])  # its pinner has left

    def test_batches(self):
        items = []
        for i in range(10):
            page = self.c.alloc()
            page.buffer[:2] = b"%02d" % i
            items.append((f"{self.prefix}{i}", page, 2))
        self.assertEqual(self.c.put_all(items), [True] * 10)
        keys = [key for key, _, _ in items]
        views = self.c.get_all(keys + ["missing"])
        self.assertEqual([bytes(v.buffer) for v in views[:-1]], [b"%02d" % i for i in range(10)])
        self.assertIsNone(views[-1])
        for view in views[:-1]:
            view.close()
        self.assertEqual(self.c.exists_all(keys[:1] + ["missing"]), [True, False])

    def test_buffer_can_be_wrapped_without_a_copy(self):
        page = self.c.alloc()
        numbers = page.buffer.cast("d")
        numbers[0], numbers[1] = 1.5, 2.5
        numbers.release()
        self.c.put(self.prefix + "n", page, 16)
        view = self.c.get(self.prefix + "n")
        self.assertEqual(array.array("d", bytes(view.buffer)).tolist(), [1.5, 2.5])
        wrapped = memoryview(view.buffer).cast("d")
        self.held_while(view, self.prefix + "n", lambda: self.assertEqual(wrapped.tolist(), [1.5, 2.5]))
        wrapped.release()
        self.until(lambda: self.c.stats()["views"] == 0)

    def held_while(self, view, key, check):
        """Closes a view that something wraps, and has its page used anew if
        that can be."""
        view.close()
        self.assertEqual(self.c.stats()["views"], 1)
        self.c.delete(key)
        for i in range(8):
            put(self.c, f"{self.prefix}other{i}", b"x" * 4000)
        check()

    def until(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), deadline)

    def test_a_view_that_is_dropped_is_closed(self):
        put(self.c, self.prefix + "k", b"value")
        view = self.c.get(self.prefix + "k")
        self.assertEqual(self.c.stats()["views"], 1)
        del view
        self.until(lambda: self.c.stats()["views"] == 0)

    def test_an_array_is_all_that_is_left_of_a_client(self):
        put(self.c, self.prefix + "k", b"value")
        other = client()
        left = memoryview(other.get(self.prefix + "k").buffer)
        del other
        gc.collect()
        self.c.delete(self.prefix + "k")
        self.assertEqual(bytes(left), b"value")
        left.release()
        self.until(lambda: self.c.stats()["views"] == 0)

    def test_numpy_wraps_pages_and_views_without_a_copy(self):
        page = self.c.alloc()
        filled = numpy.frombuffer(page.buffer, dtype="f4", count=1000)
        filled[:] = numpy.arange(1000)
        self.assertTrue(self.c.put(self.prefix + "array", page, 4000))
        del filled
        with client() as other:
            view = other.get(self.prefix + "array")
            wrapped = numpy.frombuffer(view.buffer, dtype="f4")
            self.assertEqual(wrapped.sum(), 499500)
            self.assertFalse(wrapped.flags.writeable)
            self.assertFalse(wrapped.flags.owndata)
            with self.assertRaises(ValueError):
                wrapped[0] = 1
            self.held_while(view, self.prefix + "array", lambda: self.assertEqual(wrapped.sum(), 499500))
            del wrapped
            self.until(lambda: self.c.stats()["views"] == 0)

    def test_what_keeps_only_the_memoryview_of_a_view_keeps_its_page(self):
        # So does torch.frombuffer: it releases the buffer, and holds on to the object.
        put(self.c, self.prefix + "k", b"value")
        view = self.c.get(self.prefix + "k")
        kept = view.buffer
        self.held_while(view, self.prefix + "k", lambda: self.assertEqual(bytes(kept), b"value"))
        with self.assertRaises(polder_share.Closed):
            view.buffer
        del kept
        self.until(lambda: self.c.stats()["views"] == 0)

    def test_what_keeps_only_the_memoryview_of_a_page_keeps_it_mapped(self):
        other = client()
        page = other.alloc()
        kept = page.buffer
        at = ctypes.addressof(ctypes.c_char.from_buffer(kept))
        self.assertTrue(other.put(self.prefix + "k", page, 5))
        with self.assertRaises(polder_share.Closed):
            page.buffer
        with self.assertRaises(ValueError):
            kept[0] = 1  # somebody else's by now
        other.close()
        del page, other
        gc.collect()
        self.assertTrue(mapped(at))
        del kept
        self.assertFalse(mapped(at))

    def test_pages_and_views_are_buffers_themselves(self):
        # Python calls this from 3.12 on.
        page = self.c.alloc()
        page.__buffer__(0)[:5] = b"value"
        self.assertEqual(len(page), 16 << 10)
        self.c.put(self.prefix + "k", page, 5)
        with self.c.get(self.prefix + "k") as view:
            self.assertEqual(len(view), 5)
            self.assertEqual(bytes(view.__buffer__(0)), b"value")
            self.assertTrue(view.__buffer__(0).readonly)
            if sys.version_info >= (3, 12):
                self.assertEqual(bytes(memoryview(view)), b"value")

    def test_a_region_that_no_descriptor_is_left_for_is_given_back(self):
        with client(patience=0.2) as c:
            before = c.stats()["regions"]
            with descriptors(0), self.assertRaisesRegex(polder_share.Unavailable, "descriptor|open files"):
                c.alloc()
            put(c, self.prefix + "k", b"value")
            self.assertEqual(c.stats()["regions"], before + 1)

    def test_an_attempt_to_come_back_that_fails_takes_no_descriptor(self):
        with client(patience=0.2) as c:
            put(c, self.prefix + "k", b"value")
            before = len(os.listdir("/proc/self/fd"))
            with descriptors(0):
                with c._lock:  # the client's thread would act between the two
                    c._watch.shutdown(socket.SHUT_RDWR)
                    c._sock.shutdown(socket.SHUT_RDWR)
                # The two that it closes suffice for a connection and the table, and not for the second connection.
                with self.assertRaisesRegex(polder_share.Unavailable, "open files"):
                    c.stats()
            with c.get(self.prefix + "k") as view:
                self.assertEqual(bytes(view.buffer), b"value")
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)
            self.assertTrue(c._thread.is_alive())

    def test_a_process_with_many_descriptors(self):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as stack:
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
            resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
            while (fd := os.dup(0)) < 1024:
                stack.callback(os.close, fd)
            os.close(fd)
            c = stack.enter_context(client())
            put(c, self.prefix + "k", b"value")
            sock, view = c._sock, c.get(self.prefix + "k")
            array = memoryview(view.buffer)
            view.close()
            del view, array  # the client's thread sees to that
            deadline = time.monotonic() + 60
            while c.stats()["views"] > 0:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.001)
            self.assertIs(c._sock, sock, "it has attached anew without need")

    def test_a_child_that_closes_what_its_parent_has_harms_nobody(self):
        with client(patience=5) as c:
            put(c, self.prefix + "k", b"value")
            page = c.alloc()
            with c.get(self.prefix + "k") as view:
                sock = c._sock
                with c._lock:  # which no thread of the child would give back
                    child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        view.close()
                        for call in (lambda: c.get(self.prefix + "k"), lambda: c.put(self.prefix + "2", page, 1), c.alloc, c.stats):
                            with self.assertRaisesRegex(polder_share.Closed, "parent"):
                                call()
                        c.close()
                        with client() as own, own.get(self.prefix + "k") as another:
                            code = 0 if bytes(another.buffer) == b"value" else 2
                    finally:
                        os._exit(code)
                self.assertEqual(os.waitpid(child, 0)[1], 0)
                self.assertEqual(c.stats()["views"], 1)
                self.assertEqual(bytes(view.buffer), b"value")
                page.buffer[:5] = b"other"
                c.put(self.prefix + "2", page, 5)
                self.assertTrue(c.exists(self.prefix + "2"))
                self.assertIs(c._sock, sock, "its session has been ended")

    def test_bad_requests(self):
        for sizes in {"page_size": -1}, {"page_size": 0}, {"page_size": 1 << 64}, {"region_size": -1}, {"page_size": 2, "region_size": 1}:
            with self.assertRaises(polder_share.Invalid, msg=sizes):
                polder_share.Client(SOCKET, **sizes)
        with self.assertRaises(polder_share.Invalid):
            self.c.exists("")
        with self.assertRaises(polder_share.Invalid):
            self.c.exists("x" * 513)
        page = self.c.alloc()
        with self.assertRaises(polder_share.Invalid):
            self.c.put(self.prefix + "k", page, (16 << 10) + 1)
        for ttl in (-1, -0.0005, float("nan"), float("inf"), 1e300, 1e13, 10**400):
            with self.subTest(ttl=ttl), self.assertRaises(polder_share.Invalid):
                self.c.put(self.prefix + "k", page, 1, ttl)
        self.assertFalse(self.c.exists(self.prefix + "k"))
        self.c.free(page)
        with self.assertRaises(polder_share.Closed):
            self.c.put(self.prefix + "k", page, 1)

    def test_stats(self):
        put(self.c, self.prefix + "k", b"v")
        self.assertGreaterEqual(self.c.stats()["keys"], 1)


class Asyncio(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.prefix = self.id() + "/"
        self.c = polder_share.aio.Client(SOCKET, page_size=16 << 10, region_size=64 << 10)
        await self.c.connect()
        self.addAsyncCleanup(self.c.close)

    async def put(self, key, value):
        page = await self.c.alloc()
        page.buffer[:len(value)] = value
        return await self.c.put(key, page, len(value))

    async def test_every_call(self):
        keys = [f"{self.prefix}{i}" for i in range(3)]
        self.assertTrue(await self.put(keys[0], b"0"))
        self.assertFalse(await self.put(keys[0], b"again"))
        items = [(key, await self.c.alloc(), 1) for key in keys[1:]]
        for i, (_, page, _) in enumerate(items):
            page.buffer[:1] = b"%d" % (i + 1)
        self.assertEqual(await self.c.put_all(items), [True, True])
        with await self.c.get(keys[0]) as view:
            self.assertEqual(bytes(view.buffer), b"0")
        views = await self.c.get_all(keys + ["missing"])
        self.assertEqual([v and bytes(v.buffer) for v in views], [b"0", b"1", b"2", None])
        for view in views[:-1]:
            view.close()
        self.assertTrue(await self.c.exists(keys[1]))
        self.assertEqual(await self.c.exists_all([keys[1], "missing"]), [True, False])
        await self.c.pin(keys[0])
        self.assertEqual(await self.c.pin_all(keys[1:]), 2)
        with self.assertRaises(polder_share.Pinned):
            await self.c.delete(keys[0])
        await self.c.unpin(keys[0])
        self.assertEqual(await self.c.unpin_all(keys[1:]), [None, None])
        await self.c.delete(keys[0])
        self.assertEqual(await self.c.delete_all(keys[1:]), [None, None])
        await self.c.free(await self.c.alloc())
        with self.assertRaises(polder_share.NotFound):
            await self.c.get(keys[0])
        await self.until_there_are_no_views()

    async def until_there_are_no_views(self):
        async def wait():
            while (await self.c.stats())["views"] != 0:
                pass
        await asyncio.wait_for(wait(), 20)

    async def test_many_tasks(self):
        async def task(i):
            key = f"{self.prefix}{i % 16}"
            await self.put(key, b"%d" % (i % 16))
            with await self.c.get(key) as view:
                self.assertEqual(bytes(view.buffer), b"%d" % (i % 16))
        await asyncio.gather(*(task(i) for i in range(64)))
        await self.until_there_are_no_views()

    @contextlib.contextmanager
    def calls_wait(self):
        """Has calls wait, as one does for a daemon that restarts."""
        held, go_on = threading.Event(), threading.Event()

        def hold():
            with self.c._client._lock:
                held.set()
                go_on.wait(20)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(20)
        try:
            yield
            self.assertTrue(holder.is_alive())  # nothing here has waited for it
        finally:
            go_on.set()
            holder.join()

    async def test_the_loop_goes_on_while_a_call_waits(self):
        await self.put(self.prefix + "k", b"value")
        view = await self.c.get(self.prefix + "k")
        with self.calls_wait():
            call = asyncio.ensure_future(self.c.exists(self.prefix + "k"))
            for _ in range(100):
                await asyncio.sleep(0)
            view.close()
            self.assertFalse(call.done())
        self.assertTrue(await call)
        await self.until_there_are_no_views()

    async def test_a_get_that_asks_nobody_does_not_wait_for_its_turn(self):
        await self.put(self.prefix + "k", b"value")
        (await self.c.get(self.prefix + "k")).close()
        await self.until_there_are_no_views()  # the client's own thread is done with the view, and holds no lock
        async with self.c._turn:
            with await asyncio.wait_for(self.c.get(self.prefix + "k"), 20) as view:
                self.assertEqual(bytes(view.buffer), b"value")
        await self.until_there_are_no_views()

    async def test_a_call_that_is_cancelled_leaves_nothing_behind(self):
        await self.put(self.prefix + "k", b"value")
        await self.c.free(await self.c.alloc())
        inner = self.c._client
        inner._cache_keys = 0  # so that every get asks the daemon
        before = sum(len(r.free) for r in inner._regions), inner._views
        kept = []  # what nobody has given back is not to be collected, either
        self.keep_results(inner, kept)
        calls = self.c.alloc, lambda: self.c.get(self.prefix + "k"), lambda: self.c.get_all([self.prefix + "k"])
        for call in calls * 3:
            for finished in False, True:
                with self.calls_wait():
                    task, waiting = asyncio.ensure_future(call()), asyncio.ensure_future(call())
                    while not self.c._turn.locked():
                        await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    waiting.cancel()  # it has not had its turn
                    if not finished:
                        task.cancel()
                        await asyncio.wait([task, waiting])
                while self.c._turn.locked():
                    await asyncio.sleep(0)
                task.cancel()  # the result is there, and the task has not gone on
                for result in await asyncio.gather(task, waiting, return_exceptions=True):
                    self.assertIsInstance(result, asyncio.CancelledError)
        await self.c.stats()  # comes after all that is given back
        await self.until_there_are_no_views()
        self.assertEqual((sum(len(r.free) for r in inner._regions), inner._views), before)
        self.assertEqual(len(kept), 18)

    def keep_results(self, inner, kept):
        def keeping(method):
            def call(*args):
                kept.append(method(*args))
                return kept[-1]
            return call
        for name in "alloc", "get_all":  # get is made of get_all
            setattr(inner, name, keeping(getattr(inner, name)))

    async def test_closed(self):
        never = polder_share.aio.Client(SOCKET)
        with self.assertRaises(polder_share.Closed):
            await never.get("k")
        await never.close()
        await never.close()
        with self.assertRaises(polder_share.Closed):
            await never.connect()
        async with polder_share.aio.Client(SOCKET) as c:
            pass
        with self.assertRaises(polder_share.Closed):
            await c.alloc()
        with self.assertRaises(polder_share.Unavailable):
            await polder_share.aio.Client(SOCKET + ".not").connect()


if __name__ == "__main__":
    unittest.main()
