#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A flash file or device that fails, waits, hangs, vanishes: the daemon lives, answers what is in DRAM as fast as ever, counts,
says what it does, and after the next start nothing is found that is older than what was acknowledged.

    flash_faults.py [HALCYOND] [--only TEXT]

The faults are real: a FUSE file with rules (tests/lib/flash_fuse.c, made here), loop devices, ext4's shutdown, seccomp. Root.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import shutil
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import MIB, Failed, Skip, Suite, check  # noqa: E402
from flash_common import Daemon, scratch, supports_flash  # noqa: E402

import flash_oracle as oracle  # noqa: E402  (common has put tests/lib into the path)

SEED = oracle.seed_of(os.environ.get("SEED"))
FLASH_MB = 96
DEAD_S = 25  # at the latest: 10 s for a write that doesn't come back, and some
READ, WRITE, SYNC = 1, 2, 4
ERROR, DELAY, HANG = 1, 2, 3
EVERYWHERE = (0, 1 << 62)
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2

suite = Suite(__doc__)


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Failed("%s: %s" % (" ".join(command), done.stdout.strip()))
    return done.stdout.strip()


def need(*programs):
    for program in programs:
        if not shutil.which(program, path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin"):
            raise Skip("needs %s" % program)
    if os.geteuid() != 0:
        raise Skip("needs root")


# --- places for a flash file that can be made to fail ---------------------------------------------------------------


class Fuse:
    """A file that obeys rules."""

    program = None

    def __init__(self, folder, size):
        need("fusermount3", "pkg-config", "cc")
        self.folder = folder
        self.mount = os.path.join(folder, "mount")
        os.mkdir(self.mount)
        self.path = os.path.join(self.mount, "flash")
        self.backing = os.path.join(folder, "backing")
        with open(self.backing, "wb") as out:
            out.truncate(size)
        rules = os.path.join(folder, "rules")
        with open(rules, "wb") as out:
            out.truncate(4096)
        with open(rules, "r+b") as file:
            self.rules = mmap.mmap(file.fileno(), 4096)
        self.process = subprocess.Popen([self.build(folder), self.backing, rules, self.mount],
                                        stdin=subprocess.DEVNULL)
        end = time.monotonic() + 10
        while not os.path.exists(self.path):
            if self.process.poll() is not None or time.monotonic() > end:
                raise Skip("FUSE can't be mounted here")
            time.sleep(0.01)

    @classmethod
    def build(cls, folder):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib", "flash_fuse.c")
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], stdout=subprocess.PIPE, text=True, check=False)
        if flags.returncode:
            raise Skip("needs libfuse3's headers")
        program = os.path.join(folder, "flash_fuse")
        run("cc", "-O2", "-o", program, source, *flags.stdout.split())
        return program

    def rule(self, number, operations, action, error=0, where=EVERYWHERE, delay_us=0):
        struct.pack_into("<III", self.rules, 64 * number + 4, operations, error, delay_us)
        struct.pack_into("<QQQ", self.rules, 64 * number + 16, where[0], where[1], 0)
        struct.pack_into("<I", self.rules, 64 * number, action)

    def hits(self, number):
        return struct.unpack_from("<Q", self.rules, 64 * number + 32)[0]

    def heal(self):
        for number in range(16):
            struct.pack_into("<I", self.rules, 64 * number, 0)

    def close(self):
        self.heal()
        subprocess.run(["fusermount3", "-u", "-z", self.mount], stderr=subprocess.DEVNULL, check=False)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Loop:
    """A block device on a file."""

    def __init__(self, folder, size):
        need("losetup")
        self.backing = os.path.join(folder, "backing")
        with open(self.backing, "wb") as out:
            out.write(b"\0" * size)  # no holes
        try:
            self.path = run("losetup", "--find", "--show", self.backing)
        except Failed as reason:
            raise Skip(str(reason))
        os.chmod(self.path, 0o666)

    def close(self):
        subprocess.run(["losetup", "-d", self.path], check=False)


class Ext4:
    """A file on an ext4 of its own, whose power can be cut."""

    def __init__(self, folder, size):
        need("mkfs.ext4", "losetup", "mount")
        self.backing = os.path.join(folder, "backing")
        with open(self.backing, "wb") as out:
            out.truncate(size + 64 * MIB)
        run("mkfs.ext4", "-q", "-F", self.backing)
        self.mount = os.path.join(folder, "mount")
        os.mkdir(self.mount)
        self.path = os.path.join(self.mount, "flash")
        self.attach()

    def attach(self):
        try:
            run("mount", "-o", "loop", self.backing, self.mount)
        except Failed as reason:
            raise Skip(str(reason))
        os.chmod(self.mount, 0o777)

    def cut_power(self):
        folder = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("<I", NO_LOG_FLUSH))
        finally:
            os.close(folder)

    def detach(self):
        # The kernel may still be ending what a killed process had under way.
        for _ in range(100):
            if subprocess.run(["umount", self.mount], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return
            time.sleep(0.1)

    def close(self):
        if os.path.ismount(self.mount):
            self.detach()


# --- a daemon on such a place ---------------------------------------------------------------------------------------


class Hot(threading.Thread):
    """Reads keys that are in DRAM all the time, on a connection of its own; how long each took."""

    COUNT = 20

    def __init__(self, connect):
        super().__init__(daemon=True)
        self.connect = connect
        self.times_s = []
        self.problem = None
        self.ending = threading.Event()

    @classmethod
    def store(cls, connect):
        for i in range(cls.COUNT):
            answer = oracle.ask(connect, b"set hot-%d 0 0 3\r\nhot\r\n" % i)
            check(answer == b"STORED", "set of a hot key: %r" % answer)

    def run(self):
        try:
            with self.connect() as sock:
                sock.settimeout(20)
                stream = sock.makefile("rb")
                number = 0
                while not self.ending.wait(0.002):
                    number = (number + 1) % self.COUNT
                    began = time.monotonic()
                    sock.sendall(b"mg hot-%d v\r\n" % number)
                    line = stream.readline()
                    if line.startswith(b"VA "):
                        stream.read(5)
                    elif line != b"EN\r\n":
                        raise OSError("answered %r" % line)
                    self.times_s.append(time.monotonic() - began)
        except OSError as reason:
            self.problem = reason

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, value, trace):
        self.ending.set()
        self.join(30)
        return False

    def quantile(self, share):
        times = sorted(self.times_s)
        return times[min(len(times) - 1, int(share * len(times)))]


class Faulty:
    """A daemon on a place, its model, and how a test goes."""

    def __init__(self, place, journal="sync", flash_mb=FLASH_MB, memory_mb=16, before=(), sized=True, state=None):
        supports_flash(suite.binary)
        self.rng = random.Random(SEED)
        self.folder = scratch()
        self.place = None
        self.daemon = None
        try:
            self.place = place(self.folder, flash_mb * MIB) if place else None
            self.state = os.path.join(self.folder, state or "state")
            os.mkdir(self.state)
            os.chmod(self.state, 0o777)
            self.daemon = Daemon(suite.binary, self.folder, flash_mb if sized else None, journal,
                                 ["--state-directory", self.state], self.place.path if self.place else None, memory_mb, before)
            self.model = oracle.Model()
            self.mixes = [oracle.Mix(self.rng, self.model, b"w%d" % i, 500, (1, 4000), quiet=0) for i in range(2)]
            self.mixes.append(oracle.Pusher(self.rng, self.model, b"push", 6000, (2000, 9000), quiet=0))
            self.keys = list(self.model.keys.values())
            self.daemon.start()
            Hot.store(self.daemon.connect)
            self.load(1.5)
            self.normal_s = self.hot_p99(0.5)
            self.before = self.own()
            check(int(self.before["flash_items_written"]) > 500, "hardly anything is on flash: %s" % self.before)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print("  seed %d; end of the log:\n%s" % (SEED, self.daemon.tail(12)))
        self.close()
        return False

    def close(self):
        if self.place and hasattr(self.place, "heal"):
            self.place.heal()
        if self.daemon:
            self.daemon.kill()
        if self.place:
            self.place.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def own(self):
        return self.daemon.stats("halcyon")

    def grew(self, name):
        return int(self.own()[name]) - int(self.before[name])

    def load(self, seconds):
        check(not oracle.drive(self.daemon.connect, self.model, self.mixes, time.monotonic() + seconds),
              "the connections were closed")
        self.fail_if_wrong()

    def hot_p99(self, seconds):
        with Hot(self.daemon.connect) as hot:
            time.sleep(seconds)
        check(hot.problem is None, "hot keys: %s" % hot.problem)
        return hot.quantile(0.99)

    def load_and_watch(self, seconds, what):
        """The load, and beside it what is in DRAM: as fast as ever."""
        with Hot(self.daemon.connect) as hot:
            self.load(seconds)
        check(hot.problem is None, "%s: hot keys: %s" % (what, hot.problem))
        p99 = hot.quantile(0.99)
        print("  %s: GETs of DRAM keys took %.1f ms at the 99th percentile, %.0f at most, of %d (idle %.1f)" % (
            what, p99 * 1000, hot.quantile(1) * 1000, len(hot.times_s), self.normal_s * 1000), flush=True)
        check(p99 < 0.1 and hot.quantile(1) < 0.8, "%s: what is in DRAM is slow" % what)

    def fail_if_wrong(self):
        check(not self.model.wrongs, "%d wrong answers:\n    %s" % (
            self.model.counts["wrong"], "\n    ".join(self.model.wrongs)))
        check(self.daemon.process.poll() is None, "the daemon died with %s" % self.daemon.process.returncode)

    def hits(self, asked=400):
        """Of some keys: how many are there. Each is checked."""
        before = self.model.counts["live hits"]
        oracle.drive(self.daemon.connect, self.model, [Reads(self.rng.sample(self.keys, asked))], time.monotonic() + 60)
        self.fail_if_wrong()
        return self.model.counts["live hits"] - before

    def wait_for(self, holds, what, seconds=DEAD_S):
        end = time.monotonic() + seconds
        while not holds():
            check(time.monotonic() < end, "not within %g s: %s\n%s" % (seconds, what, self.own()))
            check(self.daemon.process.poll() is None, "the daemon died with %s" % self.daemon.process.returncode)
            time.sleep(0.1)

    def wait_dead(self):
        """Until it has given the device up, with load; it must say so."""
        end = time.monotonic() + DEAD_S
        while self.own()["flash_state"] == "alive":
            check(time.monotonic() < end, "it does not give the device up: %s" % self.own())
            self.load(0.3)
        log = self.daemon.tail(200).lower()
        check("items stay in memory alone" in log, "the log doesn't say that it goes on without flash")

    def restart_and_verify(self, killed=True):
        """After the fault is gone: every key is what it may be. Returns how many are there."""
        crashed = time.time()
        if killed:
            self.daemon.kill()
        else:
            self.daemon.stop()
        self.daemon.start()
        return self.verify(crashed)

    def verify(self, crashed):
        before = self.model.counts["hits"]
        oracle.read_all(self.daemon.connect, self.keys, lambda key, found, now: self.model.after_crash(
            key, found, crashed, now, 0))
        self.fail_if_wrong()
        return self.model.counts["hits"] - before


class Reads:
    """Gets of these keys, once: what a connection asks in drive."""

    def __init__(self, keys):
        self.left = list(keys)

    @property
    def spent(self):
        return not self.left

    def batch(self):
        part, self.left = self.left[:16], self.left[16:]
        return [oracle.Op("get", key) for key in part]


# --- tests ----------------------------------------------------------------------------------------------------------


@suite.test
def reads_that_fail_are_misses():
    with Faulty(Fuse) as faulty:
        there = faulty.hits()
        check(there > 100, "only %d of 400 there" % there)
        # Half of the file, so that the device isn't given up.
        half = FLASH_MB * MIB // 2
        faulty.place.rule(0, READ, ERROR, errno.EIO, (MIB, half))
        faulty.load_and_watch(1.5, "reads fail")
        check(faulty.place.hits(0) > 0, "the fault was never met")
        check(faulty.grew("flash_read_errors") > 0, "no read error was counted: %s" % faulty.own())
        faulty.place.heal()
        faulty.load(0.5)
        print("  after it: %d of 400 there" % faulty.hits())
        check(faulty.restart_and_verify() > 0, "nothing is there after a start")


@suite.test
def writes_that_fail_retire_their_region():
    with Faulty(Fuse) as faulty:
        middle = FLASH_MB * MIB // 2
        faulty.place.rule(0, WRITE, ERROR, errno.EIO, (middle, middle + 4 * MIB))
        faulty.model.refusals = False  # the journal can be written
        end = time.monotonic() + 20
        while faulty.grew("flash_write_errors") == 0:
            check(time.monotonic() < end, "the log never came there: %s" % faulty.own())
            faulty.load_and_watch(1, "writes of 4 MiB fail")
        faulty.load(1)
        check(faulty.own()["flash_state"] == "alive", "given up for one bad place")
        check(int(faulty.own()["flash_regions_retired"]) > 0, "no region was retired: %s" % faulty.own())
        faulty.place.heal()
        check(faulty.restart_and_verify() > 0, "nothing is there after a start")


def all_writes_fail(error):
    with Faulty(Fuse) as faulty:
        faulty.place.rule(0, WRITE, ERROR, error)
        faulty.place.rule(1, SYNC, ERROR, error)
        faulty.model.refusals = True  # until the content is void
        faulty.load_and_watch(2, "all writes fail")
        faulty.wait_dead()
        faulty.model.refusals = False
        faulty.load_and_watch(1, "without flash")
        check(faulty.model.counts["set"] > 100, "nothing was written")
        print("  %d changes were refused" % faulty.model.counts["refused"])
        # The device comes back with all that was on it, and it has heard of no change since.
        faulty.place.heal()
        faulty.restart_and_verify()


@suite.test
def a_device_that_takes_no_writes_is_given_up():
    all_writes_fail(errno.EIO)


@suite.test
def a_full_file_system_is_as_bad():
    all_writes_fail(errno.ENOSPC)


@suite.test
def slow_reads_hold_up_only_who_asks():
    with Faulty(Fuse) as faulty:
        faulty.place.rule(0, READ, DELAY, delay_us=200000)
        faulty.load_and_watch(3, "reads take 0.2 s")
        check(faulty.place.hits(0) > 0, "the fault was never met")
        check(faulty.own()["flash_state"] == "alive", "given up though it is only slow")
        faulty.place.heal()
        check(faulty.hits() > 50, "hardly anything is there")
        check(faulty.restart_and_verify() > 0, "nothing is there after a start")


@suite.test
def slow_writes_hold_up_nobody():
    with Faulty(Fuse, journal="async") as faulty:
        faulty.place.rule(0, WRITE, DELAY, delay_us=150000)
        faulty.load_and_watch(3, "writes take 0.15 s")
        check(faulty.place.hits(0) > 0, "the fault was never met")
        faulty.place.heal()
        faulty.load(1)


@suite.test
def a_device_that_hangs_is_given_up():
    with Faulty(Fuse) as faulty:
        faulty.place.rule(0, READ, HANG)
        faulty.place.rule(1, WRITE | SYNC, HANG)
        faulty.model.refusals = True
        with Hot(faulty.daemon.connect) as hot:
            began = time.monotonic()
            oracle.drive(faulty.daemon.connect, faulty.model, [Reads(faulty.rng.sample(faulty.keys, 200))],
                         time.monotonic() + 1)
            print("  200 GETs, many of them hanging, were answered in %.1f s" % (time.monotonic() - began))
            faulty.load(3)
            faulty.wait_dead()
        check(hot.problem is None, "hot keys: %s" % hot.problem)
        print("  GETs of DRAM keys: %.1f ms at the 99th percentile, %.0f at most, of %d" % (
            hot.quantile(0.99) * 1000, hot.quantile(1) * 1000, len(hot.times_s)))
        check(hot.quantile(0.99) < 0.1 and hot.quantile(1) < 1, "what is in DRAM is slow")
        check(int(faulty.own()["flash_read_late"]) > 0, "no late read was counted: %s" % faulty.own())
        faulty.load_and_watch(1, "without flash")
        faulty.place.heal()
        faulty.load(0.5)
        faulty.restart_and_verify()


@suite.test
def a_device_that_loses_its_end():
    with Faulty(Loop, sized=False) as faulty:
        os.truncate(faulty.place.backing, 8 * MIB)
        faulty.model.refusals = True
        faulty.load_and_watch(4, "all but 8 MiB is gone")
        own = faulty.own()
        check(int(own["flash_read_errors"]) + int(own["flash_write_errors"]) + int(own["flash_read_bad"]) > 0,
              "nothing was counted: %s" % own)
        # It has its size again, and zeros.
        os.truncate(faulty.place.backing, FLASH_MB * MIB)
        faulty.load(0.5)
        faulty.restart_and_verify()


@suite.test
def the_power_is_cut():
    """The file system takes nothing more from one moment to the next, then the daemon is killed: at once, or after it has
    found out and done what it can."""
    # What it does elsewhere when its device fails would be cut off too.
    with Faulty(Ext4, state="mount/state") as faulty:
        there = 0
        for late_s in (0, 0, 0, 1):
            crashed = []

            def cut_power(late_s=late_s, crashed=crashed):
                crashed.append(time.time())
                faulty.place.cut_power()
                time.sleep(late_s)
                faulty.daemon.process.kill()
            faulty.model.refusals = True
            timer = threading.Timer(faulty.rng.uniform(0.5, 1.2), cut_power)
            timer.start()
            oracle.drive(faulty.daemon.connect, faulty.model, faulty.mixes, time.monotonic() + 10)
            timer.join()
            faulty.daemon.kill()
            faulty.place.detach()
            faulty.place.attach()
            faulty.daemon.start()
            found = faulty.verify(crashed[0])
            there += found
            print("  killed %g s after it: %d of %d keys there, %d changes refused until now" % (
                late_s, found, len(faulty.keys), faulty.model.counts["refused"]))
        check(there > 0, "nothing outlives a power cut")


class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]


REFUSE_IO_URING = """
import ctypes, errno, os, sys
sys.path.insert(0, sys.argv[1])
import flash_faults
flash_faults.refuse_io_uring()
os.execv(sys.argv[2], sys.argv[2:])
"""


def refuse_io_uring():
    """From here on io_uring_setup answers EPERM in this process and its children, as container runtimes have it."""
    io_uring_setup = 425
    instructions = [
        (0x20, 0, 0, 0),  # load the call's number
        (0x15, 0, 1, io_uring_setup),
        (0x06, 0, 0, 0x00050000 | errno.EPERM),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    array = (Filter * len(instructions))(*[Filter(code, jt, jf, k) for code, jt, jf, k in instructions])
    program = Program(len(instructions), array)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


@suite.test
def without_io_uring_threads_do_it():
    before = [sys.executable, "-c", REFUSE_IO_URING, os.path.dirname(os.path.abspath(__file__))]
    with Faulty(None, before=before) as faulty:
        lines = [line for line in faulty.daemon.tail(50).splitlines() if "io_uring" in line]
        check(len(lines) == 1 and "thread" in lines[0], "the log says: %s" % lines)
        print("  %s" % lines[0])
        check(faulty.own()["flash_backend"] == "threads", "%s" % faulty.own())
        check(faulty.hits() > 100 and faulty.grew("flash_reads") > 0, "nothing is read: %s" % faulty.own())
        faulty.load_and_watch(1, "with threads")
        check(faulty.restart_and_verify() > 0, "nothing is there after a start")


@suite.test
def a_foreign_file_is_refused_by_name():
    supports_flash(suite.binary)
    folder = scratch()
    try:
        path = os.path.join(folder, "flash")
        content = random.Random(SEED).randbytes(MIB) * 64
        with open(path, "wb") as out:
            out.write(content)
        os.chmod(path, 0o666)
        daemon = Daemon(suite.binary, folder, 64, "sync")
        daemon.launch()
        try:
            status = daemon.process.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            raise Failed("it starts on a foreign file")
        check(status != 0 and path in daemon.tail(), "status %s: %s" % (status, daemon.tail()))
        with open(path, "rb") as file:
            check(file.read() == content, "the foreign file was written to")
        daemon = Daemon(suite.binary, folder, 64, "sync", ["--flash-format"])
        daemon.start()
        daemon.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    suite.main()
