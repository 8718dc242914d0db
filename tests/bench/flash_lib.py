# SPDX-License-Identifier: BSD-2-Clause
"""What the parts of bench-flash share: the two servers on a file, what they and the kernel count, a memory cgroup for the
page cache, fio, fills, and the table of rows."""

import glob
import json
import os
import shutil
import subprocess
import tempfile
import time

import rig
from rig import Figures, RigError

MIB = 1 << 20
PAGE_CACHE_SHARE = 0.05  # of the data, that a peer with buffered I/O may keep in the page cache

rig.START_TIMEOUT_S = 180
rig.STOP_TIMEOUT_S = 180


# --- a memory cgroup ------------------------------------------------------------------------------------------------


class Group:
    """A memory cgroup, v1 or v2, whose limit covers the page cache of what runs in it. Not usable without root."""

    def __init__(self, name):
        self.path = None
        for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"),
                            ("/sys/fs/cgroup/unified", "memory.max")):
            path = os.path.join(root, f"{name}-{os.getpid()}")
            try:
                os.mkdir(path)
            except OSError:
                continue
            if os.path.exists(os.path.join(path, limit)):
                self.path, self.limit = path, os.path.join(path, limit)
                break
            os.rmdir(path)

    def before(self):
        """What stands in front of a command that is to run in it."""
        if not self.path:
            return []
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', os.path.join(self.path, "cgroup.procs")]

    def set_limit(self, size):
        """False when it could not be set: too much is in use that isn't page cache."""
        if not self.path:
            return False
        for _ in range(20):
            try:
                with open(self.limit, "w", encoding="ascii") as out:
                    out.write(str(int(size)))
                return True
            except OSError:
                time.sleep(0.1)
        return False

    def remove(self):
        if not self.path:
            return
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)


# --- servers --------------------------------------------------------------------------------------------------------


class Contender:
    """Halcyon or memcached with extstore; start gives a running one on a file of its own."""

    def __init__(self, label, program, context):
        self.label, self.program, self.context = label, program, context
        self.is_halcyon = label == "halcyon"

    def file_options(self, path, flash_mb, ext, journal):
        if self.is_halcyon:
            return ["--flash-path", path, "--flash-size", f"{flash_mb}m", "--flash-journal", journal]
        ext = {"ext_page_size": 16, "ext_threads": self.context.ext_threads, **(ext or {})}
        return ["-o", ",".join([f"ext_path={path}:{flash_mb}m", *(f"{name}={value}" for name, value in ext.items())])]

    def start(self, memory_mb, flash_mb=None, *, ext=None, journal="sync", transport="unix", threads=None, more=(),
              keep=None, connections=1024):
        """keep: the file of an earlier start. Without flash_mb it has none."""
        path = keep or os.path.join(self.context.folder, f"{self.label}.flash")
        group = Group(f"halcyon-bench-{self.label}")

        def command_of(server):
            where = ["-s", server.path, "-a", "0777"] if server.path else \
                ["-l", "127.0.0.1", "-p", str(server.port), "-U", "0"]
            user = ["-u", "root"] if os.geteuid() == 0 else []
            file = self.file_options(path, flash_mb, ext, journal) if flash_mb else []
            return [*group.before(), self.program, "-t", str(threads or self.context.threads), "-m", str(memory_mb),
                    "-c", str(connections), *user, *where, *file, *more]

        try:
            server = FlashServer(self.label, command_of, transport, None)
        except BaseException:
            group.remove()
            raise
        server.group, server.flash_path, server.flash_mb = group, path if flash_mb else None, flash_mb
        server.is_halcyon = self.is_halcyon
        self.context.commands.append(" ".join(server.command[4 if group.path else 0:]))
        return server


class FlashServer(rig.Server):
    """A server whose file is removed when it stops."""

    group = flash_path = flash_mb = None
    is_halcyon = False

    def stop(self, keep=False):
        super().stop()
        self.release(keep)

    def kill(self):
        """SIGKILL; the file stays."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.release(True)

    def release(self, keep):
        if self.group:
            self.group.remove()
        if not keep and self.flash_path:
            for path in glob.glob(self.flash_path + "*"):
                os.unlink(path)

    def counters(self):
        """
        What it counts, under one set of names: reads, read_bytes (of I/O), written_bytes (of I/O), item_bytes and items
        (admitted), objects (items that it has), index_bytes, device_written_bytes (as the kernel counts for the process).
        """
        told = self.stats()
        found = {"device_written_bytes": process_io(self.pid).get("write_bytes", 0), "objects": int(told["curr_items"]),
                 "index_bytes": int(told["hash_bytes"])}
        if self.is_halcyon:
            own = self.stats("halcyon")
            found.update(reads=int(own["flash_reads"]), read_bytes=int(own["flash_read_bytes"]),
                         written_bytes=int(own["flash_written_bytes"]), item_bytes=int(own["flash_item_bytes_written"]),
                         items=int(own["flash_items_written"]), reinserted_bytes=int(own["flash_item_bytes_reinserted"]),
                         journal_bytes=int(own["flash_journal_bytes"]), index_bytes=int(own["index_bytes"]),
                         reads_from_buffer=int(own["flash_buffer_hits"]))
        elif "extstore_bytes_read" in told:
            found.update(reads=int(told["extstore_objects_read"]), read_bytes=int(told["extstore_bytes_read"]),
                         written_bytes=int(told["extstore_bytes_written"]), item_bytes=int(told["extstore_bytes_written"]),
                         items=int(told["extstore_objects_written"]))
        return found

    def resident(self):
        return int(process_status(self.pid)["VmRSS"].split()[0]) * 1024

    def settle_flash(self, timeout=60):
        """Waits until it writes no more by itself."""
        end = time.monotonic() + timeout
        last, since = None, time.monotonic()
        while time.monotonic() < end:
            now = self.counters().get("written_bytes")
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > 1.5:
                return
            time.sleep(0.2)

    def cap_page_cache(self, data_bytes):
        """Limits the cgroup to what is resident and a small share of the data. What was done, as a text."""
        room = max(32 * MIB, int(PAGE_CACHE_SHARE * data_bytes))
        if self.group and self.group.set_limit(self.resident() + room):
            return f"page cache at most {room // MIB} MiB of {data_bytes // MIB} MiB"
        drop_caches()
        return "page cache dropped, not capped"


def process_io(pid):
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as rows:
            return {name: int(value) for name, value in (row.split(": ") for row in rows)}
    except OSError:
        return {}


def process_status(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as rows:
        return dict((part.strip() for part in row.split(":", 1)) for row in rows)


def drop_caches():
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as out:
            out.write("3")
    except OSError:
        pass


# --- what is run ----------------------------------------------------------------------------------------------------


class Context:
    """The programs, the folder and the sizes of a run; takes the files along when it ends."""

    def __init__(self, options):
        self.quick = options.quick
        self.threads = options.threads
        self.ext_threads = options.ext_threads
        self.transport = options.transport
        self.rounds = options.rounds or (3 if options.quick else 5)
        self.seconds = options.seconds or (1.5 if options.quick else 4)
        self.generator = rig.Generator(options.bench, None, 1)
        self.fio = rig.find_program("fio", "FIO")
        self.folder = tempfile.mkdtemp(prefix="bench-flash-", dir=options.folder)
        self.runs = []
        self.commands = []
        self.contenders = [Contender("halcyon", options.halcyond, self)]
        if options.memcached:
            self.contenders.append(Contender("memcached", options.memcached, self))

    @property
    def halcyon(self):
        return self.contenders[0]

    @property
    def memcached(self):
        return self.contenders[1] if len(self.contenders) > 1 else None

    def pick(self, quick, whole):
        return quick if self.quick else whole

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, server, arguments, what, timeout=300):
        """A run of the generator; its summary with the changes of counters() in 'flash'."""
        before = server.counters()
        if "--fill-only" not in arguments and "sequential" not in arguments and "--cache-aside" not in arguments:
            # Other keys in each run: those that come again and again would move to DRAM.
            arguments = [*arguments, "--seed", str(2 + len(self.runs))]
        summary = self.generator.run(server, arguments, timeout=timeout)
        after = server.counters()
        summary["flash"] = {name: after[name] - before[name] for name in after}
        summary.update(what=what, server=server.label)
        self.runs.append(summary)
        return summary

    def fill(self, server, keys, what, connections=4, pipeline=4):
        """Sets every key once; the summary of the fill."""
        return self.run(server, ["--fill-only", "--refusals", "-c", str(connections), "-P", str(pipeline), *keys], what,
                        timeout=1200)

    def misses(self, server, keys, count, what, more=()):
        """Asks for every key once; how many are missing."""
        summary = self.run(server, ["-c", "1", "-P", "64", *keys, "--mix", "get=1", "--keys-by", "sequential",
                                    "--requests", str(count), *more], what, timeout=600)
        return summary["misses"]

    def fill_whole(self, server, keys, count, what):
        """Fills, and sets again what is missing, slower, until hardly anything is. Returns the share still missing, of a sample."""
        self.fill(server, keys, what + ", fill")
        for attempt in range(4):
            server.settle_flash()
            sample = self.run(server, ["-c", "8", "-P", "16", *keys, "--mix", "get=1", "--requests", str(min(count, 50000))],
                              what + ", sample")
            missing = sample["misses"] / sample["gets"]
            if missing <= 0.001 or attempt == 3:
                return missing
            self.misses(server, keys, count, what + ", topped up", ["--cache-aside", *(["--rate", "20000"] if attempt else [])])


def run_fio(context, size_mb, block, depth, seconds):
    """Random reads without the page cache, by io_uring, on a file in the same folder; a dict of figures."""
    path = os.path.join(context.folder, "fio.data")
    common = [context.fio, "--name=reads", f"--filename={path}", f"--size={size_mb}m", "--ioengine=io_uring", "--direct=1",
              "--output-format=json"]
    if not os.path.exists(path):
        subprocess.run([*common, "--rw=write", "--bs=1m", "--iodepth=8"], stdout=subprocess.DEVNULL, check=True)
    command = [*common, "--rw=randread", f"--bs={block}", f"--iodepth={depth}", "--norandommap", "--randrepeat=0",
               "--time_based", f"--runtime={seconds:g}"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        raise RigError(f"{' '.join(command)} ended with {run.returncode}: {run.stderr[:500]}")
    job = json.loads(run.stdout[run.stdout.index("{"):])["jobs"][0]
    figures = {"what": "fio", "command": " ".join(command), "reads_per_second": job["read"]["iops"],
               "cpu_us_a_read": (job["usr_cpu"] + job["sys_cpu"]) * 1e4 / job["read"]["iops"],
               "p99_us": job["read"]["clat_ns"].get("percentile", {}).get("99.000000", 0) / 1000}
    context.runs.append(figures)
    return figures


def reads_a_second(summary):
    """Reads from flash, those that a write buffer answered included: what DRAM answered doesn't count."""
    flash = summary["flash"]
    return (flash["reads"] + flash.get("reads_from_buffer", 0)) / summary["seconds"]


def flash_share(summary):
    return min(1.0, reads_a_second(summary) * summary["seconds"] / max(1, summary["gets"]))


# --- the table ------------------------------------------------------------------------------------------------------


class Row:
    """A judged figure: value against must and aim, low says whether less is better."""

    def __init__(self, what, halcyon, peer, judged, must=None, aim=None, low=False, note="", form="{:.2f}"):
        self.what, self.halcyon, self.peer, self.note = what, halcyon, peer, note
        self.figures = judged if isinstance(judged, Figures) or judged is None else Figures([judged])
        self.must, self.aim, self.low, self.form = must, aim, low, form

    def verdict(self):
        if not self.figures:
            return "not measured"
        if self.must is None:
            return "reported"
        value = self.figures.median

        def reaches(wanted):
            return value <= wanted if self.low else value >= wanted
        if self.aim is not None and reaches(self.aim):
            return "aim reached"
        if reaches(self.must):
            return "reached"
        return "missed" + (f" by {abs(value / self.must - 1):.0%}" if self.must else "")

    def cells(self):
        sign = "<=" if self.low else ">="
        judged = self.figures.text(self.form) if self.figures and len(self.figures.values) > 1 else \
            self.form.format(self.figures.median) if self.figures else "-"
        return [self.what, self.halcyon, self.peer, judged, "-" if self.must is None else f"{sign} {self.must:g}",
                "-" if self.aim is None else f"{sign} {self.aim:g}", self.verdict(), self.note]

    def as_json(self):
        return {"what": self.what, "halcyon": self.halcyon, "peer": self.peer,
                "values": self.figures.values if self.figures else [], "median": self.figures.median if self.figures else None,
                "must": self.must, "aim": self.aim, "lower_is_better": self.low, "verdict": self.verdict(), "note": self.note}


HEADER = ["what", "halcyon", "peer", "judged", "must", "aim", "verdict", "how"]
