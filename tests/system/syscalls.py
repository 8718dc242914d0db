#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""System calls under load, counted by strace: a batch costs each connection one read and one write, no read comes back
empty-handed, and nothing else is called."""

import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import Failed, Skip, Suite, check  # noqa: E402

suite = Suite(__doc__)
REQUESTS = 64000
DEPTH = 16
CONNECTIONS = 20
# Beside reading and writing: polling, the periodic work of other threads, connections that come and go.
QUIET = {"epoll_wait", "epoll_ctl", "futex", "clock_nanosleep", "read", "write", "accept4", "close", "shutdown",
         "setsockopt", "restart_syscall", "rt_sigprocmask", "membarrier", "madvise", "mmap", "munmap", "mprotect",
         "getpid", "sched_yield"}


def traced(server, *options):
    """Runs the load; how often each system call was made, and how many of those failed."""
    with tempfile.NamedTemporaryFile(mode="r", suffix=".strace") as out:
        strace = subprocess.Popen(["strace", "-f", "-c", "-U", "calls,errors,name", "-o", out.name, "-p", str(server.pid)],
                                  stderr=subprocess.PIPE, text=True)
        first = strace.stderr.readline()
        if "attached" not in first:
            strace.kill()
            strace.wait()
            if "not permitted" in first:
                raise Skip("strace may not attach here: %s" % first.strip())
            raise Failed("strace: %s" % first.strip())
        try:
            summary = suite.bench(server, "-c", CONNECTIONS, "-P", DEPTH, "-n", REQUESTS, "-k", 2000, *options)
        finally:
            strace.terminate()
            strace.communicate()
        calls = {}
        for line in out.read().splitlines():
            words = line.split()
            if not words or not words[0].isdigit() or words[-1] == "total":
                continue
            calls[words[-1]] = (int(words[0]), int(words[1]) if len(words) > 2 else 0)
    return summary, calls


def judge(summary, calls):
    rounds = summary["requests"] / DEPTH
    reads, empty = calls.get("recvfrom", (0, 0))
    writes = calls.get("sendto", (0, 0))[0] + calls.get("sendmsg", (0, 0))[0]
    shown = ", ".join("%s %d" % (name, count) for name, (count, _) in sorted(calls.items()))
    print("  %d requests, %d in each write: %s" % (summary["requests"], DEPTH, shown))
    check(reads <= 1.1 * rounds + 4 * CONNECTIONS, "%d reads for %d writes of the client" % (reads, rounds))
    # Each connection's end is one read that gives nothing.
    check(empty <= 0.01 * rounds, "%d of %d reads found nothing" % (empty, reads))
    check(writes <= 1.1 * rounds + CONNECTIONS, "%d writes for %d reads" % (writes, reads))
    others = set(calls) - QUIET - {"recvfrom", "sendto", "sendmsg"}
    check(not others, "called on the way: %s" % ", ".join(sorted(others)))
    # Threads wake each other, and memory that is used for the first time is taken in large parts.
    for share, names in ((0.2, ("membarrier", "futex")), (0.01, ("madvise", "mmap", "munmap", "mprotect"))):
        for name in names:
            check(calls.get(name, (0, 0))[0] <= share * rounds, "%d times %s" % (calls.get(name, (0, 0))[0], name))


def need_strace():
    if not shutil.which("strace"):
        raise Failed("strace is missing: tools/setup system installs it")


@suite.test
def gets_of_small_values():
    need_strace()
    for transport in ("tcp", "unix"):
        with suite.server(["-t", 2, "-m", 64], transport) as server:
            suite.bench(server, "--fill-only", "-k", 2000)
            judge(*traced(server, "-r", "0:1"))


@suite.test
def sets_and_gets_of_a_kilobyte():
    need_strace()
    with suite.server(["-t", 2, "-m", 64]) as server:
        suite.bench(server, "--fill-only", "-k", 2000, "-V", 1024)
        judge(*traced(server, "-r", "1:1", "-V", 1024))


if __name__ == "__main__":
    suite.main()
