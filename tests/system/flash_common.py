# SPDX-License-Identifier: BSD-2-Clause
"""What the tests of the flash tier share: a daemon on a flash file that outlives it, and a folder for that."""

import os
import shutil
import subprocess
import tempfile
import time

from common import Failed, Skip, check

import flash_oracle as oracle

FOLDER = os.environ.get("FLASH_FOLDER")  # where the flash files are made; else below the build's folder
MEMORY_MB = 16
START_TIMEOUT_S = 60


def supports_flash(binary):
    out = subprocess.run([binary, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         check=False).stdout
    if "flash-path" not in out:
        raise Skip("this daemon has no --flash-path")


class Daemon:
    """One daemon on a flash file that outlives it."""

    def __init__(self, binary, folder, size_mb, journal, options=(), flash=None, memory_mb=MEMORY_MB, before=()):
        """flash: the file or device, else one in the folder. before: stands in front of the command."""
        self.folder = folder
        self.path = os.path.join(folder, "socket")
        self.log = os.path.join(folder, "log")
        self.command = [*before, binary, *(["-u", "nobody"] if os.geteuid() == 0 else []), "-s", self.path, "-a", "0777",
                        "-t", "2", "-m", str(memory_mb), "-c", "256",
                        "--flash-path", flash or os.path.join(folder, "flash"),
                        *(["--flash-size", "%dm" % size_mb] if size_mb else []),
                        "--flash-journal", journal, *options]
        self.process = None

    def launch(self):
        if os.path.exists(self.path):
            os.unlink(self.path)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")

    def wait_ready(self):
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                check(oracle.ask(self.connect, b"mn\r\n") == b"MN", "no answer to mn")
                return
            except OSError:
                pass
            if self.process.poll() is not None:
                raise Failed("the daemon ended at start with status %s: %s\n%s" % (
                    self.process.returncode, " ".join(self.command), self.tail()))
            check(time.monotonic() < end, "the daemon does not listen:\n%s" % self.tail())
            time.sleep(0.002)

    def start(self):
        began = time.monotonic()
        self.launch()
        self.wait_ready()
        return time.monotonic() - began

    def connect(self):
        return oracle.unix_connect(self.path)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self, timeout=60):
        self.process.terminate()
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failed("it does not stop:\n%s" % self.tail())
        check(status == 0, "it stopped with status %s:\n%s" % (status, self.tail()))

    def tail(self, lines=15):
        try:
            with open(self.log, encoding="utf-8", errors="replace") as log:
                return "".join(log.readlines()[-lines:])
        except OSError:
            return ""

    def stats(self, what):
        with self.connect() as sock:
            sock.sendall(("stats %s" % what).strip().encode() + b"\r\n")
            data = b""
            while not data.endswith((b"END\r\n", b"ERROR\r\n")):
                part = sock.recv(65536)
                if not part:
                    break
                data += part
        rows = (line.split(" ", 2) for line in data.decode("latin-1").split("\r\n"))
        return {row[1]: row[2] for row in rows if row[0] == "STAT" and len(row) == 3}


def scratch():
    """A folder on a real file system: O_DIRECT on tmpfs hides what alignment does."""
    folder = tempfile.mkdtemp(prefix="flash-kill-", dir=FOLDER or os.environ.get("top_builddir") or os.getcwd())
    os.chmod(folder, 0o777)
    # Whoever it runs as must get there.
    at = os.path.dirname(folder)
    while at != "/":
        if os.stat(at).st_mode & 0o001 == 0 and os.geteuid() == 0:
            shutil.rmtree(folder)
            folder = tempfile.mkdtemp(prefix="flash-kill-", dir="/var/tmp")
            os.chmod(folder, 0o777)
            break
        at = os.path.dirname(at)
    return folder
