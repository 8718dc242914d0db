#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Plays wire transcripts against a cache server that it starts itself.

Every case goes over TCP and over a Unix socket, each time in one write, one
byte per write, and pipelined; cases marked `udp` go over UDP. After each case
a barrier (mn, or a binary no-op) must be answered next, so that a stream out
of step is always seen. With --oracle the server is a memcached: the answers
named for its version hold where a transcript names any.

Output is TAP and a last line with the sums; the exit status is 0 when nothing
failed, 77 when there is no server to play against.
"""

import argparse
import concurrent.futures
import fnmatch
import glob
import os
import shlex
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "lib"))

import server as server_module          # noqa: E402
import stream                           # noqa: E402
import transcript                       # noqa: E402

BASE_OPTIONS = ["-m", "256", "-c", "2048"]
EXIT_SKIP = 77
WITHIN_TRIES = 20
FAILURES_SHOWN = 2


class Pair:
    """A TCP and a Unix server with the same options, started when first needed."""

    def __init__(self, runner, options):
        self.runner = runner
        self.options = options
        self.servers = {}
        self.lock = threading.Lock()

    def get(self, transport):
        with self.lock:
            have = self.servers.get(transport)
            if have is None or not have.alive():
                if have is not None:
                    self.runner.server_died(have)
                    have.kill()
                have = self.runner.start(self.options, transport)
                self.servers[transport] = have
            return have

    def stop(self):
        for have in self.servers.values():
            self.runner.stop(have)


class Runner:
    def __init__(self, arguments):
        self.arguments = arguments
        self.version = None
        self.failures = {}              # case name -> list of texts
        self.plays = 0
        self.lock = threading.Lock()
        self.bad_ends = []

    def start(self, options, transport):
        words = shlex.split(options)
        base = [] if "-m" in words else BASE_OPTIONS[:2]
        base += [] if "-c" in words else BASE_OPTIONS[2:]
        base += shlex.split(self.arguments.options)
        return server_module.Server(self.arguments.server, base + words, transport)

    def server_died(self, server):
        status = server.process.returncode
        with self.lock:
            self.bad_ends.append("server died with status %s\n%s" % (
                status, server.stderr_tail()))

    def stop(self, server):
        if not server.alive():
            self.server_died(server)
            server.kill()
            return
        status, tail = server.stop()
        if status != 0 or "Sanitizer" in tail or "runtime error" in tail:
            with self.lock:
                self.bad_ends.append("server ended with status %s on SIGTERM\n%s" % (status, tail))

    def fail(self, case, how, text):
        with self.lock:
            self.failures.setdefault(case.name, []).append("%s: %s" % (how, text))

    def play(self, server, case, way):
        """One play; returns how many repetitions it made."""
        timeout = self.arguments.timeout
        if way == "udp":
            return stream.play_udp(server, case, self.version, timeout)
        if way == "pipelined":
            return stream.play_pipelined(server, case, self.version, timeout)
        tries = WITHIN_TRIES if case.within else 1
        while True:
            tries -= 1
            try:
                return stream.play_once(server, case, way == "bytes", self.version, timeout)
            except stream.Failure:
                if tries == 0:
                    raise

    def task(self, pair, case, transport, way):
        how = "%s, %s" % (transport, way)
        try:
            server = pair.get(transport)
            before = self.stats(server) if case.counters else {}
            times = self.play(server, case, way)
            if case.counters:
                self.check_counters(server, case, before, times)
            if case.exits:
                status = server.wait(self.arguments.timeout)
                if status != 0:
                    raise stream.Failure("the server ended with %s" % status)
                pair.servers.pop(transport).kill()
            elif not server.alive():
                raise stream.Failure("the server died")
        except (stream.Failure, server_module.ServerError, OSError) as failure:
            self.fail(case, how, str(failure) or repr(failure))
        with self.lock:
            self.plays += 1

    @staticmethod
    def stats(server):
        """The counters; a server with few connections may still be closing some."""
        end = time.monotonic() + 2.0
        while True:
            try:
                return server.stats()
            except (server_module.ServerError, OSError):
                if time.monotonic() > end:
                    raise
            time.sleep(0.02)

    def check_counters(self, server, case, before, times):
        end = time.monotonic() + 1.0
        while True:
            after = self.stats(server)
            wrong = []
            for name, amount, at_least in case.counters:
                if name not in after or name not in before:
                    wrong.append("no counter %s" % name)
                    continue
                grown = int(after[name]) - int(before[name])
                want = amount * times
                if grown < want or (not at_least and grown > want):
                    wrong.append("%s grew by %d, wanted %d" % (name, grown, want))
            if not wrong:
                return
            if time.monotonic() > end:
                raise stream.Failure("; ".join(wrong))
            time.sleep(0.05)

    def ways(self, case):
        if case.udp:
            return [("tcp", "udp")]
        ways = ["write", "bytes"]
        if case.repeatable():
            ways.append("pipelined")
        chosen = [t for t in ("tcp", "unix") if self.arguments.transport in (None, t)
                  and case.only in (None, t)]
        return [(t, w) for t in chosen for w in ways
                if self.arguments.way in (None, w)]

    def sequence(self, pair, tasks, own):
        """Plays tasks one after the other; own: the pair is stopped at the end."""
        try:
            for case, transport, way in tasks:
                self.task(pair, case, transport, way)
        finally:
            if own:
                pair.stop()

    def jobs(self, cases):
        """Splits the cases into jobs that can run side by side."""
        shared = Pair(self, "")
        quick, jobs, alone, groups = [], [], [], {}
        for case in cases:
            tasks = [(case, t, w) for t, w in self.ways(case)]
            if case.exits or (case.alone and case.pauses() >= stream.LONG_PAUSE):
                for task in tasks:
                    jobs.append((Pair(self, case.options), [task], True))
            elif case.options:
                groups.setdefault(case.options, []).extend(tasks)
            elif case.alone:
                alone.extend(tasks)
            elif case.pauses() >= stream.LONG_PAUSE:
                jobs += [(shared, [task], False) for task in tasks]
            else:
                quick.extend(tasks)
        for options, tasks in groups.items():
            jobs.append((Pair(self, options), tasks, True))
        if alone:
            jobs.append((Pair(self, ""), alone, True))
        for lane in range(2):
            jobs.append((shared, quick[lane::2], False))
        return shared, jobs

    def run(self, cases):
        shared, jobs = self.jobs(cases)
        with concurrent.futures.ThreadPoolExecutor(max_workers=48) as pool:
            futures = [pool.submit(self.sequence, *job) for job in jobs]
            for future in futures:
                future.result()
        shared.stop()


def show_case(runner, case):
    """Prints what a case sends and what the server answers."""
    pair = Pair(runner, case.options)
    try:
        server = pair.get("tcp")
        play = transcript.Play()
        sock = server.connect(2.0)
        for step in case.steps:
            if step.kind == "send":
                data = transcript.render(step.parts, play)
                print(">> " + stream.match.show(data, 300))
                sock.sendall(data)
            elif step.kind == "pause":
                time.sleep(step.seconds)
        got = stream.Stream(sock, 0.3)
        end = time.monotonic() + 0.3
        while got.wait(end):
            pass
        print("<< " + stream.match.show(got.data, 600) + (" [closed]" if got.eof else ""))
        sock.close()
    finally:
        for have in pair.servers.values():
            have.kill()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", help="the server's program (default: $HALCYOND)")
    parser.add_argument("--options", default="", help="options added to every start")
    parser.add_argument("--oracle", action="store_true",
                        help="the server is a memcached; without --server the installed one")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN",
                        help="only cases whose names match (may be repeated)")
    parser.add_argument("--transport", choices=("tcp", "unix"))
    parser.add_argument("--way", choices=("write", "bytes", "pipelined"))
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds to wait for an answer")
    parser.add_argument("--show", action="store_true", help="print what the server answers")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("files", nargs="*", help="transcripts (default: cases/*.case)")
    return parser.parse_args()


def case_files():
    """All transcripts beside this program."""
    return sorted(glob.glob(os.path.join(HERE, "cases", "*.case")))


def load(options):
    files = options.files or case_files()
    cases = []
    names = set()
    for path in files:
        for case in transcript.read_cases(path):
            if case.name in names:
                raise transcript.TranscriptError("%s: case %s twice" % (case.where, case.name))
            names.add(case.name)
            cases.append(case)
    if options.only:
        cases = [c for c in cases if any(fnmatch.fnmatch(c.name, p) for p in options.only)]
    return cases


def main():
    options = arguments()
    try:
        cases = load(options)
    except transcript.TranscriptError as error:
        print("Bail out! %s" % error)
        return 1
    if options.list:
        for case in cases:
            print("%-12s %s" % (case.name, case.title))
        return 0
    if options.oracle and not options.server:
        options.server = next((p for p in ("/usr/bin/memcached", "/usr/local/bin/memcached")
                               if os.access(p, os.X_OK)), None)
        if options.server is None:
            print("1..0 # SKIP no memcached installed")
            return EXIT_SKIP
    if not options.server:
        options.server = os.environ.get("HALCYOND")
    if not options.server or not os.access(options.server, os.X_OK):
        print("Bail out! no server program (--server PATH)")
        return 1
    options.server = os.path.abspath(options.server)
    runner = Runner(options)
    if options.oracle:
        probe = runner.start("", "tcp")
        runner.version = probe.version()
        probe.kill()
        print("# oracle: memcached %s" % runner.version)
    if options.show:
        for case in cases:
            print("# %s %s" % (case.name, case.title))
            show_case(runner, case)
        return 0
    begun = time.monotonic()
    skipped = {}
    for case in cases:
        reason = case.skipped(runner.version)
        if reason:
            skipped[case.name] = reason
    print("1..%d" % (len(cases) + 1))
    sys.stdout.flush()
    runner.run([c for c in cases if c.name not in skipped])
    passed = failed = 0
    for number, case in enumerate(cases, 1):
        line = "%d - %s %s" % (number, case.name, case.title.replace("#", ""))
        if case.name in skipped:
            print("ok %s # SKIP %s" % (line, skipped[case.name]))
        elif case.name in runner.failures:
            failed += 1
            print("not ok %s" % line)
            print("#   %s" % case.where)
            texts = runner.failures[case.name]
            for text in texts[:FAILURES_SHOWN]:
                print("#   " + text.replace("\n", "\n#   "))
            if len(texts) > FAILURES_SHOWN:
                print("#   and %d more ways" % (len(texts) - FAILURES_SHOWN))
        else:
            passed += 1
            print("ok %s" % line)
    line = "%d - every server lived and ended cleanly" % (len(cases) + 1)
    if runner.bad_ends:
        failed += 1
        print("not ok %s" % line)
        for text in runner.bad_ends:
            print("#   " + text.replace("\n", "\n#   "))
    else:
        passed += 1
        print("ok %s" % line)
    print("# %d plays in %.1f s" % (runner.plays, time.monotonic() - begun))
    print("%d passed, %d failed, %d skipped" % (passed, failed, len(skipped)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
