#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The daemon is killed with SIGKILL under writes, again and again, on the same flash file, and every key is read after each
start: it is absent, or what was last acknowledged, or something later that wasn't. Never older, and nothing that was deleted.

    KILLS=1000 SEED=N flash_kill.py [HALCYOND] [--only TEXT]

KILLS: how many kills with flash-journal = sync (20). The other modes take a quarter of that. A run is told by its seed, but
for the moments at which the kernel runs whom.
"""

import os
import random
import shutil
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import Failed, Suite, check  # noqa: E402
from flash_common import Daemon, scratch, supports_flash  # noqa: E402

import flash_oracle as oracle  # noqa: E402  (common has put tests/lib into the path)

KILLS = int(os.environ.get("KILLS", "20"))
SEED = oracle.seed_of(os.environ.get("SEED"))
ASYNC_WINDOW_S = 0.25

suite = Suite(__doc__)


class Rounds:
    """Kills, restarts and checks, on a file that is made anew now and then."""

    def __init__(self, journal, seed, window=0.0):
        self.journal, self.window = journal, window
        self.seed = seed
        self.rng = random.Random(seed)
        self.folder = scratch()
        self.starts_s = []
        self.cycles_s = []
        self.killed_in_recovery = 0
        self.model = None
        self.totals = oracle.collections.Counter()
        self.new_file()

    def new_file(self):
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            if os.path.isfile(path):
                os.unlink(path)
        if self.model:
            self.totals.update(self.model.counts)
        self.size_mb = self.rng.choice((48, 96, 192))
        self.model = oracle.Model()
        self.daemon = Daemon(suite.binary, self.folder, self.size_mb, self.journal)
        count = self.rng.choice((300, 1500))
        self.mixes = [oracle.Mix(self.rng, self.model, b"w%d" % i, count, (1, self.rng.choice((200, 6000))))
                      for i in range(4)]
        self.mixes.append(oracle.Pusher(self.rng, self.model, b"push", 5000, (2000, 9000)))
        self.mixes.append(oracle.Looker(self.rng, self.model, self.mixes[:]))
        self.keys = list(self.model.keys.values())
        self.daemon.start()

    def load_and_kill(self):
        """Writes until the daemon is killed at a random time; the wall-clock time of the kill."""
        delay = self.rng.choice((0.02, 0.1, 0.3, 1.0)) * self.rng.uniform(0.2, 1)
        at = []

        def kill():
            at.append(time.time())
            self.daemon.process.kill()

        timer = threading.Timer(max(0.02, delay), kill)
        timer.daemon = True
        try:
            closed = oracle.drive(self.daemon.connect, self.model, self.mixes, time.monotonic() + 30, timer.start)
        finally:
            timer.cancel()
        check(closed and at, "the connections ended before the kill:\n%s" % self.daemon.tail())
        self.daemon.process.wait()
        return at[0]

    def load_and_stop(self):
        """Writes, waits for the answers, stops cleanly."""
        closed = oracle.drive(self.daemon.connect, self.model, self.mixes, time.monotonic() + self.rng.uniform(0.05, 0.5))
        check(not closed, "the server closed a connection:\n%s" % self.daemon.tail())
        before = self.hits_now()
        self.daemon.stop()
        return time.time(), before

    def hits_now(self):
        found = []
        oracle.read_all(self.daemon.connect, self.keys, lambda key, value, now: found.append(value is not oracle.ABSENT))
        return sum(found)

    def restart(self):
        """Starts it again; sometimes it is killed before it is through with that."""
        while self.rng.random() < 0.25:
            self.daemon.launch()
            time.sleep(self.rng.uniform(0, 1.2) * (self.starts_s[-1] if self.starts_s else 0.03))
            self.daemon.kill()
            self.killed_in_recovery += 1
        self.starts_s.append(self.daemon.start())

    def verify(self, crashed, window):
        before = self.model.counts["hits"]
        oracle.read_all(self.daemon.connect, self.keys, lambda key, found, now: self.model.after_crash(
            key, found, crashed, now, window))
        self.fail_if_wrong()
        return self.model.counts["hits"] - before

    def fail_if_wrong(self):
        check(not self.model.wrongs, "seed %d, %d wrong answers:\n    %s\n%s" % (
            self.seed, self.model.counts["wrong"], "\n    ".join(self.model.wrongs), self.daemon.tail(5)))

    def check_cas(self):
        """No CAS number is given twice."""
        answer = oracle.ask(self.daemon.connect, b"ms cas-probe 1 c\r\nx\r\n")
        check(answer.startswith(b"HD c"), "ms answered %r" % answer)
        number = int(answer[4:])
        check(number > self.model.cas_max, "CAS %d was given, and %d before the crash" % (number, self.model.cas_max))
        self.model.cas_max = number

    def flush(self):
        check(oracle.ask(self.daemon.connect, b"flush_all\r\n") == b"OK", "no OK to flush_all")
        for key in self.keys:
            key.states = [oracle.ABSENT]
            key.history.clear()
        self.model.counts["flushes"] += 1

    def cycle(self, number, expect_gone=False):
        began = time.monotonic()
        if number and number % 15 == 0:
            self.daemon.kill()
            self.new_file()
        if self.rng.random() < 0.1:
            self.flush()
        clean = self.rng.random() < 0.07
        before = None
        try:
            if clean:
                crashed, before = self.load_and_stop()
            else:
                crashed = self.load_and_kill()
        except oracle.Wrong as reason:
            raise Failed("seed %d: %s\n%s" % (self.seed, reason, self.daemon.tail()))
        self.fail_if_wrong()
        self.restart()
        hits = self.verify(crashed, 0 if clean else self.window)
        if clean:
            self.model.counts["clean stops"] += 1
            self.model.counts["hits before clean stops"] += before
            self.model.counts["hits after clean stops"] += hits
        elif expect_gone:
            check(hits == 0, "%d items are there after an unclean stop without a journal" % hits)
        if not expect_gone:
            self.check_cas()
        self.cycles_s.append(time.monotonic() - began)

    def run(self, cycles, expect_gone=False):
        for number in range(cycles):
            self.cycle(number, expect_gone)

    def report(self):
        counts = self.totals + self.model.counts
        changes = sum(count for name, count in counts.items()
                      if name.split()[0] in ("set", "cas", "delete", "touch", "incr", "append"))
        read = counts["hits"] + counts["absent"]
        print("  seed %d: %d cycles of %.2f s (%.2f s at most), %d kills more during recovery; start %.3f s (%.3f at most)" % (
            self.seed, len(self.cycles_s), sum(self.cycles_s) / max(1, len(self.cycles_s)), max(self.cycles_s, default=0),
            self.killed_in_recovery, sum(self.starts_s) / len(self.starts_s), max(self.starts_s)))
        print("  %d changes acknowledged, %d keys read after a start: %.1f%% there, %d of them by a change that wasn't "
              "acknowledged, %d older within the window, %d wrong" % (
                  changes, read, 100 * counts["hits"] / max(1, read), counts["hits of what wasn't acknowledged"],
                  counts["older, in the window"], counts["wrong"]))
        print("  %d clean stops: %d items before, %d after; %d flush_all; %d changes were seen before their answer; %s" % (
            counts["clean stops"], counts["hits before clean stops"], counts["hits after clean stops"],
            counts["flushes"], counts["shown early"],
            ", ".join("%s %d" % item for item in sorted(counts.items()) if item[0].split()[0] in oracle.EXPECTED)),
            flush=True)
        return counts

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.daemon.kill()
        if kind is not None and self.starts_s:
            self.report()
        keep = os.environ.get("FLASH_KEEP")
        if kind is not None and keep:
            print("  kept: %s" % self.folder)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        return False


@suite.test
def the_check_finds_what_is_older():
    """The model and its check, on a server that isn't killed: what somebody else puts back is found, and nothing else."""
    with suite.server(["-m", "64", "-t", "2"], transport="unix") as server:
        rng = random.Random(SEED)
        model = oracle.Model()
        mixes = [oracle.Mix(rng, model, b"w%d" % i, 200, (1, 500)) for i in range(3)]
        mixes.append(oracle.Looker(rng, model, mixes[:]))

        def connect():
            return oracle.unix_connect(server.path)

        old = {}
        oracle.drive(connect, model, mixes, time.monotonic() + 0.5)
        keys = list(model.keys.values())
        oracle.read_all(connect, keys, lambda key, found, now: old.__setitem__(key, found))
        oracle.drive(connect, model, mixes, time.monotonic() + 0.7)
        check(not model.wrongs, "\n".join(model.wrongs))
        changes = model.counts["set"] + model.counts["delete"] + model.counts["incr quiet"]
        check(changes > 1000, "%s" % model.counts)

        def verify():
            oracle.read_all(connect, keys, lambda key, found, now: model.after_crash(key, found, now, now, 0))
            wrong = model.counts["wrong"]
            names = [text.split(":")[0].encode() for text in model.wrongs]
            model.counts["wrong"] = 0
            model.wrongs.clear()
            return wrong, names

        check(verify()[0] == 0, "wrong, and nobody lied: %s" % model.wrongs)
        deleted = [key for key in keys if key.states == [oracle.ABSENT]]
        live = [key for key in keys if len(key.states) == 1 and key.states[0] is not oracle.ABSENT and
                old[key] is not oracle.ABSENT and old[key].value != key.states[0].value]
        check(len(deleted) > 5 and len(live) > 50, "%d deleted, %d live" % (len(deleted), len(live)))
        lies = {
            "an older value": (live[0], b"set %s %d 0 %d\r\n%s\r\n" % (
                live[0].name, old[live[0]].flags, len(old[live[0]].value), old[live[0]].value)),
            "what was deleted": (deleted[0], b"set %s 0 0 1\r\nx\r\n" % deleted[0].name),
            "another expiry": (live[1], b"touch %s 77\r\n" % live[1].name),
            "other flags": (live[2], b"set %s 9 0 %d\r\n%s\r\n" % (
                live[2].name, len(live[2].states[0].value), live[2].states[0].value)),
            "the same value set anew": (live[3], b"set %s %d 0 %d\r\n%s\r\n" % (
                live[3].name, live[3].states[0].flags, len(live[3].states[0].value), live[3].states[0].value)),
        }
        for what, (key, request) in lies.items():
            oracle.ask(connect, request)
            wrong, names = verify()
            check(wrong == 1 and names == [key.name], "%s: %d found, %s" % (what, wrong, names))


@suite.test
def what_is_found_after_a_kill_is_not_older():
    supports_flash(suite.binary)
    with Rounds("sync", SEED) as rounds:
        rounds.run(KILLS)
        counts = rounds.report()
        check(counts["hits"] > 0.01 * (counts["hits"] + counts["absent"]), "hardly anything outlives a kill: %s" % counts)
        check(counts["hits after clean stops"] >= 0.9 * counts["hits before clean stops"],
              "a clean stop loses items: %d before, %d after" % (
                  counts["hits before clean stops"], counts["hits after clean stops"]))


@suite.test
def an_asynchronous_journal_loses_a_moment_at_most():
    supports_flash(suite.binary)
    with Rounds("async", SEED + 1, ASYNC_WINDOW_S) as rounds:
        rounds.run(max(5, KILLS // 4))
        counts = rounds.report()
        check(counts["hits"] > 0, "nothing outlives a kill: %s" % counts)


@suite.test
def without_a_journal_a_kill_empties_it():
    supports_flash(suite.binary)
    with Rounds("off", SEED + 2) as rounds:
        rounds.run(max(5, KILLS // 4), expect_gone=True)
        rounds.report()


if __name__ == "__main__":
    suite.main()
