"""Tests of Polder's door for Maru's clients with an independent client.

They need a running daemon, POLDER_MARU_URL and POLDER_SHARE_SOCKET say where (of
the former several, with commas between); the tests of package share/maru run them.
"""

import os
import threading
import unittest

import maru_client
import polder_share
from maru_client import Handler

URLS = os.environ["POLDER_MARU_URL"].split(",")


class MaruTest(unittest.TestCase):
    def styles(self):
        """Every address, with both kinds of clients."""
        return [dict(url=url, use_async_rpc=asynchronous, pool_size=1 << 20, chunk_size=64 << 10)
                for url in URLS for asynchronous in (True, False)]

    def test_what_one_stores_another_reads(self):
        for style in self.styles():
            with Handler(**style) as w, Handler(**style) as r:
                for key in ("key", "schlüssel", 1001, -5, "1001", 1 << 63):
                    value = repr(key).encode() * 3
                    self.assertTrue(w.store(key, value))
                    self.assertTrue(r.exists(key))
                    self.assertEqual(bytes(r.retrieve(key)), value)
                    self.assertTrue(r.store(key, b"another"), "somebody else was first")
                    self.assertEqual(bytes(r.retrieve(key)), value)
                self.assertIsNone(r.retrieve("nothing"))
                for key in ("key", "schlüssel", 1001, -5, "1001", 1 << 63):
                    self.assertTrue(w.delete(key))
                    self.assertFalse(r.exists(key))

    def test_batches_are_answered_in_full(self):
        for style in self.styles():
            with Handler(**style) as w, Handler(**style) as r:
                items = [(f"b{i}", b"x" * i) for i in range(1, 8)]
                self.assertEqual(w.batch_store(items), [True] * 7)
                self.assertEqual(w.batch_store(items), [True] * 7)
                self.assertEqual(w.batch_store([("c", b"1"), ("c", b"2")]), [True, False])
                keys = ["b1", "nothing", "b2", "b2"]
                self.assertEqual([v and bytes(v) for v in r.batch_retrieve(keys)], [b"x", None, b"xx", b"xx"])
                self.assertEqual(r.batch_exists(keys), [True, False, True, True])
                self.assertEqual(r.batch_pin(keys), [True, False, False, False])
                self.assertEqual(r.batch_unpin(keys), [True, False, False, False])
                self.assertEqual(r.batch_pin(["b1", "b1"]), [True, True])
                self.assertEqual(r.batch_unpin(["b1", "b1", "b1"]), [True, True, False])
                for empty in (r.batch_exists, r.batch_pin, r.batch_unpin, r.batch_retrieve, w.batch_store):
                    self.assertEqual(empty([]), [])
                many = [f"{i:0200}" for i in range(10000)]
                self.assertEqual(r.batch_exists(many), [False] * 10000)
                for key in ["c"] + [key for key, _ in items]:
                    self.assertTrue(r.delete(key))

    def test_pins_hold(self):
        for style in self.styles():
            with Handler(**style) as w, Handler(**style) as r:
                w.store("pinned", b"1")
                self.assertTrue(r.pin("pinned"))
                self.assertTrue(r.pin("pinned"))
                self.assertFalse(w.delete("pinned"))
                self.assertTrue(w.unpin("pinned"))
                self.assertFalse(w.delete("pinned"))
                self.assertTrue(w.unpin("pinned"))
                self.assertFalse(w.unpin("pinned"))
                self.assertTrue(w.delete("pinned"))
                self.assertFalse(w.pin("pinned"))

    def test_a_pool_grows_and_outlives_its_owner(self):
        for style in self.styles():
            with Handler(**style) as w:
                for i in range(40):  # 16 pages a region
                    self.assertTrue(w.store(f"g{i}", bytes([i]) * 100))
                self.assertEqual(len(w.owned), 3)
            with Handler(**style) as r:
                self.assertEqual(len(r.maps), 1, "regions that were returned are not listed")
                for i in range(40):
                    self.assertEqual(bytes(r.retrieve(f"g{i}")), bytes([i]) * 100)
                for i in range(40):
                    self.assertTrue(r.delete(f"g{i}"))

    def test_what_the_servers_tell_of_themselves(self):
        for style in self.styles():
            with Handler(**style, instance_id="me") as h, Handler(**style, instance_id="me") as twin:
                self.assertTrue(h.healthcheck())
                h.store("told", b"12345")
                self.assertEqual(len(h.list()), 2)
                self.assertEqual(h.list("me"), [])
                stats = h.stats()
                self.assertEqual(stats["kv_manager"], {"total_entries": 1, "total_size": 5})
                self.assertEqual(stats["allocation_manager"]["num_allocations"], 2)
                self.assertEqual(stats["allocation_manager"]["active_clients"], 1)
                self.assertIn("_all", stats["stats_manager"]["clients"])
                usage = h.usage()
                self.assertEqual(usage["instances"], [{"instance_id": "me", "regions": 2, "allocated": 2 << 20, "used": 5}])
                self.assertGreater(usage["pool_free"], 0)
                self.assertEqual(h.report([{"op_type": "get", "result": "hit", "size": 7, "latency_us": 1.5, "client_id": "x"}, {}]), {"success": True})
                seen = h.stats()["stats_manager"]["clients"]["x"]["operations"]["get"]
                self.assertGreaterEqual(seen["hit_count"], 1)
                self.assertEqual(h.stats()["stats_manager"]["clients"]["x"]["operations"]["get"]["interval_count"], 0)
                # One of two with the same name leaves; the other one stays.
                twin.close()
                self.assertEqual(len(h.list()), 1)
                self.assertTrue(h.delete("told"))
                path, kind, total, free, align = h.rm.stats()[0]
                self.assertTrue(path and kind == 1 and total >= free > 0 and align == 4096)

    def test_what_cannot_be_is_refused_in_words(self):
        for style in self.styles():
            with Handler(**style) as h:
                page = h.alloc()
                for register in (("k" * 600, page, 5), ("k", (page[0] + 999, 0), 5), ("k", page, 1 << 40), ("k", page, 0)):
                    self.assertIn("error", h.register(*register))
                self.assertIn("version", h.rpc.call(maru_client.HANDSHAKE, {"client_version": 9})["error"])
                self.assertIn("Unknown message type: 48", h.rpc.call(0x30, {})["error"])
                self.assertIn("key is missing", h.rpc.call(maru_client.LOOKUP, {})["error"])
                self.assertIn("error", h.rpc.call(maru_client.ALLOC, {"instance_id": "x", "size": 1 << 45}))
                self.assertEqual(h.exists("k"), False)
                with self.assertRaises(maru_client.Refused):
                    h.rm.path(dict(region_id=1 << 40, offset=0, length=4096, auth_token=1))

    def test_another_directory_allocates_at_the_resource_manager(self):
        for style in self.styles():
            with Handler(**style) as h:
                directory = maru_client.Resources(h.rm_address, "directory:1")
                request = next(directory.requests)
                handle = directory.alloc(5000, request)
                self.assertEqual(handle["length"], 8192)
                self.assertEqual(directory.alloc(5000, request), handle, "a repeated request is answered from memory")
                self.assertTrue(os.path.exists(h.rm.path(handle)), "its clients present its tokens")
                self.assertEqual(h.rm.free(handle), -1, "but do not free")
                other = dict(handle, auth_token=handle["auth_token"] ^ 1)
                with self.assertRaises(maru_client.Refused):
                    directory.free(other)
                self.assertEqual(directory.free(handle), 0)
                self.assertEqual(directory.free(dict(handle)), -2)
                directory.close()

    def test_polders_own_client_reads_copies(self):
        with Handler(URLS[0], pool_size=1 << 20, chunk_size=64 << 10) as h, polder_share.Client(os.environ["POLDER_SHARE_SOCKET"]) as c:
            h.store("by-maru", b"12345")
            with c.get("by-maru") as view:
                page = h.stored["by-maru"]
                h.buffer(page, 5)[:] = b"54321"
                self.assertEqual(bytes(view.buffer), b"12345")
            views = c.get_all(["nothing", "by-maru"])
            self.assertIsNone(views[0])
            self.assertEqual(bytes(views[1].buffer), b"54321")
            self.assertTrue(h.delete("by-maru"))
            with self.assertRaises(polder_share.NotFound):
                c.get("by-maru")

    def test_many_threads_of_one_handler(self):
        with Handler(URLS[0], pool_size=4 << 20, chunk_size=16 << 10) as h:
            errors = []

            def work(t):
                try:
                    for i in range(20):
                        key, value = f"t{t}/{i}", f"{t} {i}".encode()
                        assert h.store(key, value)
                        assert bytes(h.retrieve(key)) == value
                except Exception as e:  # for the main thread
                    errors.append(e)

            threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(errors, [])
            for t in range(8):
                for i in range(20):
                    self.assertTrue(h.delete(f"t{t}/{i}"))


if __name__ == "__main__":
    unittest.main()
