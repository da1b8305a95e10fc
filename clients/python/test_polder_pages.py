"""Tests of polder_pages against a real pager: POLDER is the path of the program."""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import numpy

import polder_pages

SIZE, LOCAL = 16 << 20, 4 << 20


class Daemon:
    """A daemon of polder that is ready."""

    def __init__(self, directory, *args):
        self.ready = os.path.join(directory, args[0] + ".ready")
        if os.path.exists(self.ready):
            os.remove(self.ready)
        self.process = subprocess.Popen([os.environ["POLDER"], *args, "--admin", "off", "--ready-file", self.ready, "--log-level", "error"],
                                        stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not os.path.exists(self.ready):
            assert self.process.poll() is None and time.monotonic() < deadline, "the daemon does not start"
            time.sleep(0.01)
        with open(self.ready) as f:
            self.addresses = json.load(f)

    def kill(self):
        self.process.kill()
        self.process.wait()


class PolderPages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = directory.name
        node = Daemon(cls.directory, "node", "--lend", "128MiB", "--listen", "127.0.0.1:0")
        cls.addClassCleanup(node.kill)
        cls.far = node.addresses["verbs"]
        cls.address = "unix:" + os.path.join(cls.directory, "pager")
        cls.start()
        cls.addClassCleanup(lambda: cls.pager.kill())

    @classmethod
    def start(cls):
        cls.pager = Daemon(cls.directory, "pager", "--far", cls.far, "--listen", cls.address, "--local", "8MiB", "--size", "64MiB", "--frames", "16MiB")

    def numbers(self):
        """An array of four times its local memory, and what it has."""
        a = numpy.frombuffer(polder_pages.map(self.address, SIZE, LOCAL), dtype=numpy.int64)
        want = numpy.arange(len(a)) * 7919 % 1_000_003
        a[:] = want
        return a, want

    def test_an_array_of_four_times_its_local_memory(self):
        a, want = self.numbers()
        self.assertEqual(a.sum(), want.sum())
        a.sort()
        want.sort()
        self.assertTrue(numpy.array_equal(a, want))
        self.assertEqual((a.reshape(-1, 64) * 2).mean(), (want * 2).mean())

    def test_files_are_read_into_it_and_written_from_it(self):
        a, want = self.numbers()
        path = os.path.join(self.directory, "file")
        with open(path, "wb", buffering=0) as f:
            self.assertEqual(f.write(memoryview(a)), SIZE)
        self.assertTrue(numpy.array_equal(numpy.fromfile(path, dtype=numpy.int64), want))
        view = polder_pages.map(self.address, SIZE, LOCAL)
        self.assertEqual(view[:8], bytes(8))
        with open(path, "rb", buffering=0) as f:
            self.assertEqual(f.readinto(view), SIZE)
        self.assertTrue(numpy.array_equal(numpy.frombuffer(view, dtype=numpy.int64), want))

    def test_a_name_is_there_again(self):
        script = """
import numpy, os, polder_pages, signal, sys
a = numpy.frombuffer(polder_pages.map(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), name="r\u00e9sultats"), dtype=numpy.int64)
a[:] = numpy.arange(len(a)) * 7919 % 1_000_003
os.kill(os.getpid(), signal.SIGKILL)
"""
        end = subprocess.run([sys.executable, "-c", script, self.address, str(SIZE), str(LOCAL)], timeout=120)
        self.assertEqual(end.returncode, -signal.SIGKILL)
        a = numpy.frombuffer(polder_pages.map(self.address, SIZE, LOCAL, name="r\u00e9sultats"), dtype=numpy.int64)
        self.assertTrue(numpy.array_equal(a, numpy.arange(len(a)) * 7919 % 1_000_003))
        with self.assertRaisesRegex(OSError, "another process has region"):
            polder_pages.remove(self.address, "r\u00e9sultats")
        del a
        gc.collect()
        deadline = time.monotonic() + 60
        while True:  # until the pager has noticed
            try:
                polder_pages.remove(self.address, "r\u00e9sultats")
                break
            except OSError as e:
                self.assertIn("another process has", str(e))
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
        with self.assertRaisesRegex(OSError, "there is no region"):
            polder_pages.remove(self.address, "r\u00e9sultats")
        with self.assertRaises(ValueError):
            polder_pages.map(self.address, SIZE, LOCAL, name="x" * 201)

    def test_the_process_forks(self):
        a, want = self.numbers()
        for touches in (False, True):
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                os._exit(int(a[0]) * 0 + 1 if touches else 0)
            status = os.waitpid(pid, 0)[1]
            self.assertEqual(os.WTERMSIG(status) if os.WIFSIGNALED(status) else status, signal.SIGSEGV if touches else 0)
        self.assertEqual(subprocess.run([sys.executable, "-c", "pass"]).returncode, 0)
        self.assertTrue(numpy.array_equal(a, want))

    def test_a_child_that_lives_on_holds_nothing(self):
        script = """
import os, polder_pages, signal, sys
view = polder_pages.map(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
view[0] = 1
child = os.fork()
if child == 0:
    signal.alarm(60)
    signal.pause()
del view
os.kill(child, signal.SIGKILL)
"""
        try:
            end = subprocess.run([sys.executable, "-c", script, self.address, str(SIZE), str(LOCAL)], timeout=30, start_new_session=True)
        except subprocess.TimeoutExpired as e:
            self.fail(f"the memory is not given back: {e}")
        self.assertEqual(end.returncode, 0)

    def test_what_is_refused(self):
        for size, local in ((0, LOCAL), (SIZE + 1, LOCAL), (SIZE, 4096)):
            with self.assertRaises(ValueError):
                polder_pages.map(self.address, size, local)
        with self.assertRaisesRegex(ValueError, "unix:PATH"):
            polder_pages.map("127.0.0.1:7000", SIZE)
        with self.assertRaisesRegex(OSError, "--size"):
            polder_pages.map(self.address, 128 << 20)
        with self.assertRaisesRegex(OSError, "No such file"):
            polder_pages.map(self.address + "-not", SIZE)

    def test_a_view_that_nobody_refers_to_is_given_back(self):
        view = polder_pages.map(self.address, SIZE, LOCAL)
        view[0] = 1
        del view
        gc.collect()
        deadline = time.monotonic() + 60
        while True:
            try:
                polder_pages.map(self.address, 64 << 20, LOCAL)  # all that there is
                break
            except OSError:
                self.assertLess(time.monotonic(), deadline)

    def test_a_pager_that_is_killed(self):
        """Another goes on with what is local and what is zeros, and what is lost is SIGBUS."""
        a, want = self.numbers()
        untouched = numpy.frombuffer(polder_pages.map(self.address, SIZE, LOCAL), dtype=numpy.int64)
        untouched[-1] = 5
        self.pager.kill()
        self.start()
        self.assertEqual(untouched[-1], 5)
        self.assertEqual(int(untouched[:-1].sum()), 0)
        untouched[:] = want
        self.assertTrue(numpy.array_equal(untouched, want))
        program = """if True:
            import os, sys, time, numpy, polder_pages
            a = numpy.frombuffer(polder_pages.map(sys.argv[1], %d, %d, timeout=float(sys.argv[2])), dtype=numpy.int64)
            a[:] = 7
            print("full", flush=True)
            sys.stdin.readline()
            print(int(a.sum()), flush=True)
            """ % (SIZE, LOCAL)
        for again, timeout in ((True, 60), (False, 0.1)):
            with subprocess.Popen([sys.executable, "-c", program, self.address, str(timeout)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
                self.assertEqual(child.stdout.readline(), b"full\n")
                self.pager.kill()
                if again:
                    self.start()
                out, _ = child.communicate(b"\n", timeout=60)
                self.assertEqual((out, child.returncode), (b"", -signal.SIGBUS))
        self.start()


if __name__ == "__main__":
    unittest.main()
