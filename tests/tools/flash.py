#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""halcyonctl flash: what it says of a store, whole and damaged, and that it is what the daemon then recovers."""

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
from common import Suite, check  # noqa: E402

suite = Suite(__doc__)
MIB = 1 << 20
BLOCK = 4096
SUPERS = (0, 32768)
JOURNAL = 65536


def ctl(*arguments):
    path = os.environ.get("HALCYONCTL", os.path.join(os.path.dirname(suite.binary), "halcyonctl"))
    return subprocess.run([path] + list(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)


class Folder(tempfile.TemporaryDirectory):
    """One in which the daemon, which may run as somebody else, can make files."""

    def __enter__(self):
        os.chmod(self.name, 0o777)
        return self.name


def look(what, files, status=0):
    answer = ctl("--json", "flash", what, *files)
    check(answer.returncode == status, "%s: exit status %d, %s" % (what, answer.returncode, answer.stderr))
    check(bool(answer.stderr) == bool(status), "standard error: %s" % answer.stderr)
    return json.loads(answer.stdout)


def refused(files, words):
    for what in ("inspect", "verify"):
        answer = ctl("flash", what, *files)
        check(answer.returncode == 1 and answer.stdout == "", "exit status %d: %s" % (answer.returncode, answer.stdout))
        check(answer.stderr.count("\n") == 1 and words in answer.stderr, "'%s' is not in: %s" % (words, answer.stderr))


def options(files):
    return [word for file in files for word in ("--flash-path", file, "--flash-size", "32m")] + ["-m", "16"]


def fill(files, stop):
    """A store with more than memory holds; its stop is clean, or none at all."""
    with suite.server(options(files)) as server:
        suite.bench(server, "--keys", 25000, "--value-size", "100-3000", "--fill", "--requests", 5000, "--ratio", "1:3",
                    "--connections", 4)
        check_busy = ctl("flash", "inspect", *files)
        check(check_busy.returncode == 1 and "another process has it" in check_busy.stderr, check_busy.stderr)
        os.kill(server.pid, stop)
        server.process.wait(30)
        server.alive = lambda: True


def recovered(files):
    with suite.server(options(files)) as server:
        return int(server.stats("halcyon").get("flash_recovered_items", -1)), server.counter("curr_items")


def change(path, offset, change_bytes):
    with open(path, "r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(bytes([old[0] ^ change_bytes]))


def region_base(number, seen):
    """Of a region of a store in one file: behind the journal."""
    return JOURNAL + seen["journal_blocks"] * BLOCK + number * seen["region_bytes"]


@suite.test
def a_whole_store():
    for stop in (signal.SIGKILL, signal.SIGTERM):
        with Folder() as folder:
            files = [os.path.join(folder, "a"), os.path.join(folder, "b")]
            fill(files, stop)
            before = [open(file, "rb").read(65536) for file in files]
            seen = look("inspect", files)
            check(seen["clean"] == (stop == signal.SIGTERM), "clean: %s" % seen["clean"])
            check(seen["regions"] > 50 and seen["region_bytes"] == MIB and seen["void"] is None, str(seen)[:400])
            sealed = [region for region in seen["region"] if region["kind"] == "sealed"]
            check(len(sealed) > 10 and all(region["items"] > 100 for region in sealed), str(seen)[:400])
            check({region["file"] for region in sealed} == {0, 1}, "not both files have regions")
            verified = look("verify", files)
            check(verified["damaged"] is False and verified["items_damaged"] == 0, str(verified)[-400:])
            check(verified["items"] >= sum(region["items"] for region in sealed), str(verified)[-400:])
            check(verified["kept"] > 5000 and verified["appends"] > 20, str(verified)[-400:])
            check(before == [open(file, "rb").read(65536) for file in files], "the files were changed")
            # What it says is what the daemon does, but for items of equal tags.
            _, items = recovered(files)
            check(verified["kept"] * 0.99 <= items <= verified["kept"],
                  "%d items said to be kept, %d are there" % (verified["kept"], items))
            # People read it too.
            plain = ctl("flash", "verify", *files)
            check("a recovery keeps" in plain.stdout and plain.returncode == 0, plain.stdout[-500:] + plain.stderr)


@suite.test
def damage_is_found():
    with Folder() as folder:
        file = os.path.join(folder, "a")
        fill([file], signal.SIGKILL)
        whole = look("verify", [file])
        number = [region for region in whole["region"] if region["kind"] == "sealed"][1]["number"]
        base = region_base(number, whole)
        items = whole["region"][number]["items"]

        # One bit in an item: its append's checksum and its own.
        change(file, base + BLOCK + 3000, 4)
        seen = look("verify", [file], status=1)
        check(seen["items_damaged"] == 1 and seen["appends_damaged"] == 1, str(seen)[-400:])
        check(seen["region"][number]["items_damaged"] == 1, str(seen["region"][number]))
        check(seen["kept"] == whole["kept"], "a read finds it, not recovery")
        change(file, base + BLOCK + 3000, 4)

        # A footer: the appends say the same.
        change(file, base + whole["region_bytes"] - 200, 1)
        seen = look("verify", [file])
        check(seen["kept"] == whole["kept"] and seen["items"] == whole["items"], str(seen)[-400:])
        # Both: nothing behind the bad append is left.
        change(file, base + BLOCK + 3000, 4)
        seen = look("verify", [file])
        check(whole["items"] - seen["items"] == items, str(seen)[-400:])
        change(file, base + BLOCK + 3000, 4)
        change(file, base + whole["region_bytes"] - 200, 1)

        # A header: the region is no more.
        change(file, base + 50, 1)
        seen = look("verify", [file], status=1)
        check(seen["region"][number]["kind"] == "damaged", str(seen["region"][number]))
        check(whole["items"] - seen["items"] == items, str(seen)[-400:])
        change(file, base + 50, 1)

        check(look("verify", [file]) == whole, "the same bytes, another answer")

        # One superblock is enough, none isn't; another version is told.
        change(file, SUPERS[0] + 100, 1)
        look("verify", [file])
        change(file, SUPERS[1] + 100, 1)
        refused([file], "both superblocks of this flash store are damaged")
        for start in SUPERS:
            with open(file, "r+b") as raw:
                raw.seek(start + 8)
                raw.write(struct.pack("<I", 99))
        refused([file], "is a flash store of version 99")


@suite.test
def what_is_no_store_is_refused():
    with Folder() as folder:
        file = os.path.join(folder, "a")
        refused([file], "a: cannot be opened: No such file or directory")
        with open(file, "wb") as raw:
            raw.truncate(4 * MIB)
        refused([file], "is empty, not a flash store")
        with open(file, "r+b") as raw:
            raw.write(b"something else")
        refused([file], "holds something that is no flash store")
        with open(file, "wb") as raw:
            raw.truncate(1000)
        refused([file], "too small")
    for words in ([], ["look"], ["inspect"], ["verify"]):
        answer = ctl("flash", *words)
        check(answer.returncode == 2 and answer.stderr.count("\n") == 1, "%s: %s" % (words, answer.stderr))


suite.main()
