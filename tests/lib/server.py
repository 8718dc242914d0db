# SPDX-License-Identifier: BSD-2-Clause
"""Starts and stops one cache server for a test, and speaks to it.

The server is started on loopback ports (TCP and UDP) or on a Unix socket that
nobody else uses, is always killed again, and its stderr is kept: a test that
fails shows the end of it.
"""

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time

_live = set()
_live_lock = threading.Lock()


def _kill_all():
    with _live_lock:
        servers = list(_live)
    for server in servers:
        server.kill()


atexit.register(_kill_all)


def free_port():
    """A port that is free now for both TCP and UDP on 127.0.0.1."""
    for _ in range(100):
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            tcp.bind(("127.0.0.1", 0))
            port = tcp.getsockname()[1]
            udp.bind(("127.0.0.1", port))
            return port
        except OSError:
            continue
        finally:
            tcp.close()
            udp.close()
    raise RuntimeError("no free port on 127.0.0.1")


class ServerError(Exception):
    """The server did not start, or died."""


class Server:
    """One running server; transport is 'tcp' (with UDP beside it) or 'unix'."""

    def __init__(self, binary, options=(), transport="tcp", start_timeout=20.0):
        self.transport = transport
        self.options = list(options)
        self.dir = tempfile.mkdtemp(prefix="wire-")
        os.chmod(self.dir, 0o777)
        self.stderr_path = os.path.join(self.dir, "stderr")
        self.port = None
        self.path = None
        self.process = None
        with _live_lock:
            _live.add(self)
        for attempt in range(3):
            try:
                self._start(binary, start_timeout)
                return
            except ServerError:
                self._end_process()
                if attempt == 2:
                    self.kill()
                    raise

    def _start(self, binary, start_timeout):
        command = [binary]
        if os.geteuid() == 0:
            command += ["-u", "nobody"]
        if self.transport == "unix":
            self.path = os.path.join(self.dir, "socket")
            command += ["-s", self.path, "-a", "0777"]
        else:
            self.port = free_port()
            command += ["-l", "127.0.0.1", "-p", str(self.port), "-U", str(self.port)]
        command += self.options
        self.command = command
        with open(self.stderr_path, "ab") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=err, stderr=err, cwd="/")
        end = time.monotonic() + start_timeout
        while True:
            try:
                self._first_answer(end)
                return
            except OSError:
                pass
            if self.process.poll() is not None:
                raise ServerError("server ended at start with status %s: %s\n%s" % (
                    self.process.returncode, " ".join(command), self.stderr_tail()))
            if time.monotonic() > end:
                raise ServerError("server did not listen in %g s: %s\n%s" % (
                    start_timeout, " ".join(command), self.stderr_tail()))
            time.sleep(0.005)

    def _first_answer(self, end):
        """Waits till it serves: listening alone is early. A close is an answer too (-B binary)."""
        sock = self.connect(timeout=max(0.1, end - time.monotonic()))
        try:
            sock.sendall(b"mn\r\n" * 7)
            sock.recv(64)
        finally:
            sock.close()

    def connect(self, timeout=5.0):
        """A new stream connection (TCP_NODELAY on TCP)."""
        if self.transport == "unix":
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(timeout)
            address = self.path
        else:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.settimeout(timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            address = ("127.0.0.1", self.port)
        try:
            sock.connect(address)
        except OSError:
            sock.close()
            raise
        return sock

    def connect_udp(self, timeout=5.0):
        """A UDP socket connected to the server."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.settimeout(timeout)
        sock.connect(("127.0.0.1", self.port))
        return sock

    def stats(self, what="", timeout=5.0):
        """The server's `stats` (or `stats WHAT`) as a dict of strings."""
        sock = self.connect(timeout)
        try:
            sock.sendall(("stats %s" % what).strip().encode() + b"\r\n")
            data = b""
            while not data.endswith(b"END\r\n"):
                part = sock.recv(65536)
                if not part:
                    raise ServerError("connection closed in the middle of stats")
                data += part
        finally:
            sock.close()
        found = {}
        for line in data.decode("latin-1").split("\r\n"):
            words = line.split(" ", 2)
            if words[0] == "STAT" and len(words) >= 3:
                found[words[1]] = words[2]
        return found

    def version(self):
        """The word that follows VERSION."""
        sock = self.connect()
        try:
            sock.sendall(b"version\r\n")
            data = b""
            while not data.endswith(b"\n"):
                part = sock.recv(4096)
                if not part:
                    break
                data += part
        finally:
            sock.close()
        words = data.decode("latin-1").split()
        return words[1] if len(words) > 1 and words[0] == "VERSION" else ""

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def stderr_tail(self, lines=30):
        try:
            with open(self.stderr_path, "rb") as err:
                text = err.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def wait(self, timeout):
        """The exit status when the server ends by itself, else None."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def _end_process(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self, timeout=10.0):
        """Asks it to end. Returns (exit status, end of stderr), None if it had to be killed."""
        status = self.process.poll()
        if status is None:
            self.process.terminate()
            status = self.wait(timeout)
        tail = self.stderr_tail()
        self.kill()
        return status, tail

    def kill(self):
        """Ends it now and removes its directory."""
        self._end_process()
        shutil.rmtree(self.dir, ignore_errors=True)
        with _live_lock:
            _live.discard(self)
