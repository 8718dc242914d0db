# SPDX-License-Identifier: BSD-2-Clause
"""What the system tests share: a list of tests that is run and counted, the server under test, the load
generator, and a watch on a process's resident memory.

A test file makes a Suite, marks its tests and calls main(). The server's binary is the first argument, else
$HALCYOND; the load generator is $HALCYON_BENCH, else the one beside the server.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from server import Server, ServerError, free_port  # noqa: E402,F401 (for the tests)

MIB = 1024 * 1024


class Failed(AssertionError):
    """A property does not hold."""


class Skip(Exception):
    """The test cannot be run here."""


def check(holds, text):
    if not holds:
        raise Failed(text)


class Suite:
    """Tests in the order in which they are marked."""

    def __init__(self, title):
        self.title = title
        self.tests = []
        self.binary = None
        self.bench_path = None

    def test(self, function):
        self.tests.append(function)
        return function

    def main(self):
        parser = argparse.ArgumentParser(description=self.title)
        parser.add_argument("binary", nargs="?", default=os.environ.get("HALCYOND"))
        parser.add_argument("--bench", default=os.environ.get("HALCYON_BENCH"))
        parser.add_argument("--only", action="append", help="run tests whose name contains this")
        arguments = parser.parse_args()
        if not arguments.binary or not os.access(arguments.binary, os.X_OK):
            parser.error("no server binary: give its path, or set HALCYOND")
        self.binary = os.path.abspath(arguments.binary)
        self.bench_path = arguments.bench or os.path.join(os.path.dirname(self.binary), "halcyon-bench")
        counts = {"passed": 0, "failed": 0, "skipped": 0}
        for test in self.tests:
            if arguments.only and not any(part in test.__name__ for part in arguments.only):
                continue
            counts[self._run(test)] += 1
        print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
        sys.exit(1 if counts["failed"] else 0)

    def _run(self, test):
        name = test.__name__.replace("_", " ")
        start = time.monotonic()
        try:
            test()
            outcome, note = "passed", ""
        except Skip as reason:
            outcome, note = "skipped", ": %s" % reason
        except (Failed, ServerError, OSError, subprocess.SubprocessError) as reason:
            outcome, note = "failed", ": %s" % reason
        except Exception:  # a bug in the test is a failure, and the other tests still run
            outcome, note = "failed", ":\n%s" % traceback.format_exc()
        word = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}[outcome]
        print("%s: %s (%.1f s)%s" % (word, name, time.monotonic() - start, note), flush=True)
        return outcome

    def server(self, options=(), transport="tcp"):
        """A running server, for a with statement."""
        return Running(self.binary, [str(option) for option in options], transport)

    def bench(self, server, *options, timeout=300, must_pass=True):
        """Runs the load generator to its end; the summary as a dict. Raises Failed when an answer was wrong."""
        process = self.start_bench(server, *options)
        return self.finish_bench(process, timeout, must_pass)

    def start_bench(self, server, *options):
        where = ["--socket", server.path] if server.transport == "unix" else \
            ["--server", "127.0.0.1:%d" % server.port]
        command = [self.bench_path, "--json", "--quiet"] + where + [str(option) for option in options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish_bench(self, process, timeout=300, must_pass=True):
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Failed("halcyon-bench did not end in %g s: %s" % (timeout, " ".join(process.args)))
        if must_pass and process.returncode != 0:
            raise Failed("%s: exit status %d\n%s%s" % (" ".join(process.args), process.returncode, err, out))
        summary = json.loads(out) if out else {}
        summary["status"] = process.returncode
        summary["complaints"] = err
        return summary


class Running(Server):
    """A server that ends with the with statement, and must still be alive and well there."""

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None and not self.alive():
            tail = self.stderr_tail()
            self.kill()
            raise Failed("the server died: %s" % tail)
        if kind is not None:
            print("  end of the server's stderr: %s" % self.stderr_tail(10))
        self.kill()
        return False

    @property
    def pid(self):
        return self.process.pid

    def check_answers(self, timeout=5.0):
        """One round trip on a new connection."""
        with self.connect(timeout) as sock:
            sock.sendall(b"mn\r\n")
            check(receive_exactly(sock, 4) == b"MN\r\n", "no answer to mn")

    def counter(self, name, what=""):
        return int(self.stats(what)[name])

    def own_stats(self):
        """What `stats halcyon` answers; empty for a server that does not know it."""
        with self.connect() as sock:
            sock.sendall(b"stats halcyon\r\n")
            if receive_exactly(sock, 5) == b"ERROR":
                return {}
        return self.stats("halcyon")

    def wait_for_counter(self, name, reached, what="", timeout=10.0):
        """Waits until reached(value) holds; returns the value, raises Failed when it takes too long."""
        end = time.monotonic() + timeout
        while True:
            value = self.counter(name, what)
            if reached(value):
                return value
            check(time.monotonic() < end, "%s stays at %d" % (name, value))
            time.sleep(0.05)


def receive_exactly(sock, size):
    """size bytes, fewer only when the stream ends."""
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            break
        data += part
    return data


def ask(sock, request):
    """Sends a request whose answer is one line; the answer without its line end."""
    sock.sendall(request)
    line = b""
    while not line.endswith(b"\n"):
        part = sock.recv(4096)
        if not part:
            raise Failed("connection closed instead of an answer to %r" % request[:60])
        line += part
    return line.rstrip(b"\r\n")


def raise_descriptor_limit(wanted):
    """Skips the test when this process cannot have so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    except (ValueError, OSError):
        raise Skip("needs %d descriptors, the limit is %d" % (wanted, hard))


def open_many(server, count):
    """count TCP connections from many addresses of 127.0.0.0/8, so that no address runs out of ports."""
    socks = []
    try:
        for i in range(count):
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            socks.append(sock)
            sock.settimeout(10)
            # Without this, bind() takes a port of this address from everybody before connect().
            sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
            sock.bind(("127.0.%d.%d" % (1 + i // 1000, 1 + i % 250), 0))
            sock.connect(("127.0.0.1", server.port))
    except OSError as reason:
        close_all(socks)
        raise Failed("connection %d of %d: %s" % (len(socks), count, reason))
    return socks


def close_all(socks):
    for sock in socks:
        sock.close()


def status_kib(pid, *names):
    """Fields of /proc/PID/status in KiB."""
    values = {}
    with open("/proc/%d/status" % pid) as status:
        for line in status:
            name, _, rest = line.partition(":")
            if name in names:
                values[name] = int(rest.split()[0])
    return [values[name] for name in names]


class MemoryWatch:
    """Samples VmRSS every 10 ms; VmHWM at the end holds what fell between two samples."""

    def __init__(self, pid):
        self.pid = pid
        self.highest_kib = 0
        self.samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._stop.wait(0.01):
            try:
                self.sample()
            except (OSError, KeyError, ValueError):
                return

    def sample(self):
        self.highest_kib = max(self.highest_kib, *status_kib(self.pid, "VmRSS", "VmHWM"))
        self.samples += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self._stop.set()
        self._thread.join()
        if kind is None:
            self.sample()
        return False


def check_memory(watch, megabytes, what):
    """The promise: 1.05 times -m plus 64 MiB."""
    limit_kib = int(1.05 * megabytes * 1024) + 64 * 1024
    print("  %s: resident memory at most %.1f MiB in %d samples, allowed %.1f MiB" % (
        what, watch.highest_kib / 1024, watch.samples, limit_kib / 1024), flush=True)
    check(watch.highest_kib <= limit_kib, "%s: %d KiB resident, %d KiB allowed" % (
        what, watch.highest_kib, limit_kib))
