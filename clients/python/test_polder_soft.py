"""Tests of polder_soft against a real server: POLDER is the path of the program."""

import json
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import polder_soft


class Server:
    """A `polder serve --tier soft` at a socket."""

    def __init__(self, directory):
        self.socket = os.path.join(directory, "memcached")
        self.ready = os.path.join(directory, "ready")
        self.start()

    def start(self):
        if os.path.exists(self.ready):
            os.remove(self.ready)
        self.process = subprocess.Popen(
            [os.environ["POLDER"], "serve", "--tier", "soft", "--coordinator", "off", "--budget", "16MiB", "--admin", "off",
             "--listen", "127.0.0.1:0", "--memcached", "unix:" + self.socket, "--ready-file", self.ready, "--log-level", "error"],
            stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not os.path.exists(self.ready):
            assert self.process.poll() is None and time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()


class PolderSoft(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.server = Server(cls.directory.name)
        cls.addClassCleanup(lambda: cls.server.kill())

    def setUp(self):
        self.calls = 0
        self.key = self.id()

    def cache(self, **options):
        c = polder_soft.Cache("unix:" + self.server.socket, timeout=30, **options)
        self.addCleanup(c.close)
        return c

    def rebuild(self):
        self.calls += 1
        return b"value %d" % self.calls

    def test_a_value_is_rebuilt_once(self):
        c = self.cache()
        for _ in range(3):
            self.assertEqual(c.get_or_rebuild(self.key, self.rebuild), b"value 1")
        self.assertEqual(self.cache().get(self.key), b"value 1")
        self.assertTrue(c.delete(self.key))
        self.assertFalse(c.delete(self.key))
        self.assertIsNone(c.get(self.key))
        self.assertEqual(c.get_or_rebuild(self.key, self.rebuild), b"value 2")
        self.assertTrue(c.set(self.key, b""))
        self.assertEqual(c.get_or_rebuild(self.key, self.rebuild), b"")

    def test_a_value_lives_as_long_as_its_ttl(self):
        c = self.cache(ttl=1)
        c.get_or_rebuild(self.key, self.rebuild)
        c.get_or_rebuild(self.key + "long", self.rebuild, ttl=40 * 24 * 3600)
        deadline = time.monotonic() + 60
        while c.get(self.key) is not None:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        self.assertEqual(c.get(self.key + "long"), b"value 2")
        for ttl in (0, -1, float("nan"), float("inf"), 1e300, 1 << 62):
            with self.subTest(ttl=ttl), self.assertRaises(ValueError):
                c.set(self.key, b"", ttl=ttl)
        self.assertTrue(c.set(self.key, b"", ttl=(1 << 62) - 1))

    def test_any_key_and_any_value(self):
        c = self.cache(dumps=lambda v: json.dumps(v).encode(), loads=json.loads)
        keys = ["", "a key", "line\r\nget x", "x" * 1000, "\u00fc", b"\xff\x00"]
        for i, key in enumerate(keys):
            self.assertTrue(c.set(key, {"n": i}))
        for i, key in enumerate(keys):
            self.assertEqual(c.get(key), {"n": i})
        raw = self.cache()
        value = os.urandom(500_000) + b"\r\nEND\r\n"
        self.assertTrue(raw.set(self.key, value))
        self.assertEqual(raw.get(self.key), value)
        self.assertFalse(raw.set(self.key, bytes(64 << 20)))  # larger than the server takes
        self.assertEqual(raw.get_or_rebuild(self.key + "2", self.rebuild), b"value 1")

    def test_of_many_threads_one_rebuilds(self):
        c, results, go = self.cache(), [], threading.Event()

        def rebuild():
            go.wait(60)
            return self.rebuild()

        threads = [threading.Thread(target=lambda: results.append(c.get_or_rebuild(self.key, rebuild))) for _ in range(16)]
        for t in threads:
            t.start()
        go.set()
        for t in threads:
            t.join(60)
        self.assertEqual(results, [b"value 1"] * 16)

    def test_an_error_is_for_all_who_wait_and_not_kept(self):
        c = self.cache()
        with self.assertRaises(ZeroDivisionError):
            c.get_or_rebuild(self.key, lambda: 1 // 0)
        self.assertEqual(c.get_or_rebuild(self.key, self.rebuild), b"value 1")
        with self.assertRaisesRegex(RuntimeError, "its own rebuild"):
            c.get_or_rebuild("x" + self.key, lambda: c.get_or_rebuild("x" + self.key, self.rebuild))

    def test_what_was_deleted_meanwhile_is_not_stored(self):
        c = self.cache()

        def rebuild():
            c.delete(self.key)  # what is being rebuilt is old by now
            return b"old"

        self.assertEqual(c.get_or_rebuild(self.key, rebuild), b"old")
        self.assertIsNone(c.get(self.key))

    def test_a_cache_that_is_away_is_said_once(self):
        c = self.cache(retry=0.01)
        self.assertEqual(c.get_or_rebuild(self.key, self.rebuild), b"value 1")
        self.server.kill()
        with self.assertLogs("polder_soft", logging.INFO) as log:
            for _ in range(5):
                c.get_or_rebuild(self.key, self.rebuild)
                time.sleep(0.011)
            self.assertFalse(c.set(self.key, b"new"))
            self.assertFalse(c.delete(self.key))
            self.server.start()
            deadline = time.monotonic() + 60
            while not c.set(self.key, b"new"):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
        self.assertEqual(self.calls, 6)
        self.assertEqual([r.levelname for r in log.records], ["WARNING", "INFO"], log.output)
        self.assertEqual(c.get(self.key), b"new")

    def test_a_server_that_was_started_again_is_not_noticed(self):
        c = self.cache()
        c.set(self.key, b"old")
        self.server.kill()
        self.server.start()
        with self.assertNoLogs("polder_soft"):
            self.assertEqual(c.get_or_rebuild(self.key, self.rebuild), b"value 1")
            self.assertEqual(c.get(self.key), b"value 1")

    def test_a_server_that_hangs_costs_a_timeout(self):
        c = polder_soft.Cache("unix:" + self.server.socket, timeout=0.05, retry=60)
        self.addCleanup(c.close)
        self.server.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.server.process.pid, os.WUNTRACED)  # until then some of its threads go on, and answer
        try:
            with self.assertLogs("polder_soft", logging.WARNING):
                self.assertEqual([c.get_or_rebuild(self.key, self.rebuild) for _ in range(100)][-1], b"value 100")
        finally:
            self.server.process.send_signal(signal.SIGCONT)

    def test_a_server_that_answers_byte_by_byte_costs_a_timeout(self):
        path, stop = os.path.join(self.directory.name, "slow"), threading.Event()
        with socket.create_server(path, family=socket.AF_UNIX) as listener:

            def serve():
                with listener.accept()[0] as sock:
                    for b in b"VALUE %s 0 1000\r\n" % self.key.encode() + bytes(1000):
                        if stop.wait(0.02):
                            return
                        try:
                            sock.send(bytes([b]))
                        except OSError:
                            return

            server = threading.Thread(target=serve)
            server.start()
            try:
                with polder_soft.Cache("unix:" + path, timeout=1, retry=60) as c, self.assertLogs("polder_soft", logging.WARNING):
                    begin = time.monotonic()
                    self.assertEqual(c.get_or_rebuild(self.key, self.rebuild), b"value 1")
                    self.assertLess(time.monotonic() - begin, 10)
            finally:
                stop.set()
                server.join()

    def test_a_child_has_connections_of_its_own(self):
        c = self.cache()
        c.set(self.key, b"parent")
        pid = os.fork()
        if pid == 0:
            ok = all(c.get(self.key) == b"parent" for _ in range(100))
            os._exit(0 if ok else 1)
        for _ in range(100):
            self.assertEqual(c.get(self.key), b"parent")
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_addresses_and_a_closed_cache(self):
        for address in ("", "localhost", "localhost:", "localhost:x", ":11211"):
            with self.assertRaisesRegex(ValueError, "expected HOST:PORT or unix:PATH"):
                polder_soft.Cache(address)
        c = self.cache()
        with c:
            c.set(self.key, b"v")
        c.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            c.get(self.key)


if __name__ == "__main__":
    unittest.main()
