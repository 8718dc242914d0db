# SPDX-License-Identifier: BSD-2-Clause
"""What the parts of bench-memory share: the two servers, a writer of many items, a watch on resident memory, and the
table of rows with what each must reach."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from server import Server, ServerError  # noqa: E402

MIB = 1024 * 1024
BATCH_BYTES = 1 << 20


def say(text=""):
    print(text, flush=True)


# --- servers ---------------------------------------------------------------------------------


class Peer(Server):
    """One of the two servers on a Unix socket, for a with statement: it must be alive at the end."""

    def __init__(self, binary, megabytes, threads):
        super().__init__(binary, ["-m", str(megabytes), "-t", str(threads), "-c", "2048"], "unix")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        alive, tail = self.alive(), self.stderr_tail(10)
        self.kill()
        if kind is None and not alive:
            raise ServerError("the server died: %s" % tail)
        return False

    @property
    def pid(self):
        return self.process.pid

    def number(self, name, what=""):
        return int(self.stats(what)[name])

    def own_stats(self):
        """What `stats halcyon` answers; empty for a server that does not know it."""
        with self.connect() as sock:
            sock.sendall(b"stats halcyon\r\n")
            if sock.recv(5, socket.MSG_WAITALL) == b"ERROR":
                return {}
        return self.stats("halcyon")


def run_bench(bench, server, arguments, timeout):
    """halcyon-bench to its end: (summary, command line). ServerError when an answer was wrong."""
    command = [bench, "--json", "--quiet", "--socket", server.path] + [str(argument) for argument in arguments]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout,
                         check=False)
    if run.returncode:
        raise ServerError("%s: exit status %d\n%s%s" % (" ".join(command), run.returncode, run.stderr, run.stdout))
    return json.loads(run.stdout), "halcyon-bench " + " ".join(str(argument) for argument in arguments)


class Writer:
    """One connection that stores many items without asking for answers."""

    def __init__(self, server):
        self.sock = server.connect(60)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.sock.close()
        return False

    def wait(self):
        """Until everything sent so far was run."""
        self.sock.sendall(b"mn\r\n")
        answer = b""
        while not answer.endswith(b"MN\r\n"):
            part = self.sock.recv(65536)
            if not part:
                raise ServerError("the server closed the connection")
            answer += part
            if b"ERROR" in answer:
                raise ServerError("a set was answered: %r" % answer[:200])

    def ask(self, line):
        self.sock.sendall(line + b"\r\n")
        return self.sock.recv(65536)

    def store(self, first, count, key_bytes, value_bytes, flags=0, exptime=0):
        """Items of numbered keys, all of one size."""
        pattern = b"set %%0%dd %d %d %d noreply\r\n%s\r\n" % (
            key_bytes, flags, exptime, value_bytes, b"v" * value_bytes)
        step = max(1, BATCH_BYTES // (len(pattern) + key_bytes))
        for at in range(first, first + count, step):
            self.sock.sendall(b"".join([pattern % number for number in range(at, min(at + step, first + count))]))
        self.wait()

    def store_mixed(self, numbers, size_of, key_bytes=16, exptime_of=None):
        """Items of sizes that the caller chooses by number."""
        value = b"v" * max(size_of(number) for number in numbers)
        parts, length = [], 0
        for number in numbers:
            size = size_of(number)
            parts.append(b"set %0*d 0 %d %d noreply\r\n" % (
                key_bytes, number, exptime_of(number) if exptime_of else 0, size))
            parts.append(value[:size])
            parts.append(b"\r\n")
            length += size
            if length >= BATCH_BYTES:
                self.sock.sendall(b"".join(parts))
                parts, length = [], 0
        self.sock.sendall(b"".join(parts))
        self.wait()


# --- resident memory -------------------------------------------------------------------------


def status_bytes(pid, name):
    with open("/proc/%d/status" % pid, encoding="ascii") as status:
        for line in status:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    raise ServerError("process %d has no %s" % (pid, name))


class ResidentWatch:
    """VmRSS every 50 ms, by phase; and VmHWM, the kernel's own highest, which is begun anew with each phase where that
    is allowed, so that no moment is left out."""

    def __init__(self, pid):
        self.pid = pid
        self.began = time.monotonic()
        self.samples = []  # seconds, bytes
        self.peaks = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._stop.wait(0.05):
            try:
                self.samples.append((time.monotonic() - self.began, status_bytes(self.pid, "VmRSS")))
            except (OSError, ServerError):
                return

    def end_phase(self, name):
        self.peaks[name] = status_bytes(self.pid, "VmHWM")
        try:
            with open("/proc/%d/clear_refs" % self.pid, "w", encoding="ascii") as refs:
                refs.write("5")
        except OSError:
            pass

    def highest(self):
        return max(list(self.peaks.values()) + [size for _, size in self.samples])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self._stop.set()
        self._thread.join()
        return False


# --- the table -------------------------------------------------------------------------------


def verdict_of(value, must):
    if must is None:
        return ""
    if value <= must:
        return "reached"
    return "missed by %.3g (%.0f%%)" % (value - must, 100 * (value / must - 1))


class Table:
    """Rows as they come, printed at once and kept for the JSON. What is judged is the ratio of both, or Halcyon's figure
    where the must is absolute."""

    def __init__(self):
        self.rows = []
        self.headed = False

    def add(self, name, memcached, halcyon, ratio, must=None, command=None, more=None):
        """memcached and halcyon are texts ready to print; more goes to the JSON alone."""
        if not self.headed:
            say("| %-50s | %12s | %12s | %7s | %6s | %-22s |" % (
                "what", "memcached", "Halcyon", "judged", "must", ""))
            say("|%s|%s:|%s:|%s:|%s:|%s|" % ("-" * 52, "-" * 13, "-" * 13, "-" * 8, "-" * 7, "-" * 24))
            self.headed = True
        verdict = "" if ratio is None else verdict_of(ratio, must)
        say("| %-50s | %12s | %12s | %7s | %6s | %-22s |" % (
            name, memcached, halcyon, "" if ratio is None else "%.3f" % ratio, "" if must is None else "%g" % must,
            verdict))
        self.rows.append({"what": name, "memcached": memcached, "halcyon": halcyon, "ratio": ratio, "must": must,
                          "verdict": verdict, "command": command, **(more or {})})
