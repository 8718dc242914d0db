#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""More slow readers than a worker has batches, each with requests behind a reply that it doesn't take: nobody else waits for
them, and when they read again they get every byte."""

import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import Suite, ask, check, close_all, open_many, receive_exactly  # noqa: E402

READERS = 120
KEYS = 20
VALUE_SIZE = 300000
WAIT_MAX_S = 2.0

suite = Suite(__doc__)


def reader(sock, expected, wrong):
    sock.settimeout(60)
    got = receive_exactly(sock, len(expected))
    if got != expected:
        wrong.append(len(got))


@suite.test
def requests_behind_blocked_replies_hold_nobody_up():
    with suite.server(["-m", 256, "-t", 1]) as server, server.connect(30) as other:
        values = [os.urandom(VALUE_SIZE) for _ in range(KEYS)]
        for i, value in enumerate(values):
            check(ask(other, b"set k%d 0 0 %d\r\n%s\r\n" % (i, VALUE_SIZE, value)) == b"STORED", "not stored")
        line = b"get " + b" ".join(b"k%d" % i for i in range(KEYS)) + b"\r\n"
        reply = b"".join(b"VALUE k%d 0 %d\r\n%s\r\n" % (i, VALUE_SIZE, value) for i, value in enumerate(values)) + b"END\r\n"
        socks = open_many(server, READERS)
        for sock in socks:
            sock.sendall(line + b"get nothing\r\nset after 0 0 1\r\nx\r\nmn\r\n")
            time.sleep(0.02)  # so that each has a batch of its own
        time.sleep(1)  # until each has got what its socket takes
        longest = 0.0
        for _ in range(20):
            began = time.monotonic()
            check(ask(other, b"mn\r\n") == b"MN", "no answer")
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.05)
        print("  another client waited %.0f ms at most" % (longest * 1000))
        check(longest < WAIT_MAX_S, "another client waited %.1f s" % longest)
        wrong = []
        threads = [threading.Thread(target=reader, args=(sock, reply + b"END\r\nSTORED\r\nMN\r\n", wrong)) for sock in socks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(not wrong, "%d readers didn't get their replies" % len(wrong))
        close_all(socks)
        server.check_answers()


suite.main()
