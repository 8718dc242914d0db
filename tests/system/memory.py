#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Memory: the bound on resident memory at every moment, and what happens when there is no more."""

import time

from common import MIB, MemoryWatch, Suite, ask, check, check_memory, receive_exactly

suite = Suite(__doc__)


def bounded(megabytes):
    """A fill to about twice what fits, an overwrite storm, a mixed run with other sizes; watched all the time."""
    with suite.server(["-m", megabytes, "-t", "2"], transport="unix") as server:
        common = ["--connections", 20, "--pipeline", 16, "--verify"]
        keys = megabytes * 2 * MIB // 700
        with MemoryWatch(server.pid) as watch:
            fill = suite.bench(server, *common, "--keys", keys, "--value-size", "20-1300", "--fill-only")
            storm = suite.bench(server, *common, "--keys", keys, "--value-size", "20-1300", "--ratio", "1:0",
                                "--requests", keys)
            # Other keys and sizes, among them values that no segment holds many of.
            small = suite.bench(server, *common, "--keys", megabytes * 2000, "--value-size", "1-100",
                                "--key-prefix", "s", "--ratio", "1:1", "--requests", megabytes * 3000)
            large = suite.bench(server, "--connections", 8, "--pipeline", 4, "--verify", "--keys", megabytes * 8,
                                "--value-size", "1000-1048576", "--key-prefix", "l", "--ratio", "1:2",
                                "--requests", megabytes * 24)
        check(fill["fill_sets"] == keys and storm["sets"] == keys, "not all keys were set")
        check(server.counter("evictions") > 0, "nothing was evicted: the run does not fill the memory")
        check(small["hits"] > 0 and large["hits"] > 0, "no hits: %s %s" % (small, large))
        # A cache that drops everything would be small, too.
        check(server.counter("bytes") > 0.5 * megabytes * MIB, "holds %d bytes only" % server.counter("bytes"))
    check_memory(watch, megabytes, "-m %d" % megabytes)


@suite.test
def resident_memory_at_64_megabytes():
    bounded(64)


@suite.test
def resident_memory_at_256_megabytes():
    bounded(256)


@suite.test
def resident_memory_at_1024_megabytes():
    bounded(1024)


@suite.test
def resident_memory_is_small_before_it_is_used():
    with suite.server(["-m", 1024], transport="unix") as server:
        with MemoryWatch(server.pid) as watch:
            server.check_answers()
    print("  %.1f MiB" % (watch.highest_kib / 1024))
    check(watch.highest_kib < 128 * 1024, "%d KiB resident after the start at -m 1024" % watch.highest_kib)


@suite.test
def without_dash_M_old_items_make_room():
    with suite.server(["-m", 64], transport="unix") as server:
        summary = suite.bench(server, "--connections", 10, "--pipeline", 16, "--keys", 1000000, "--value-size",
                              "100-500", "--fill-only", "--verify")
        check(summary["fill_refused"] == 0, "%d sets refused" % summary["fill_refused"])
        check(server.counter("evictions") > 0, "nothing was evicted")
        # The newest are there.
        found = suite.bench(server, "--connections", 1, "--keys", 1000, "--key-prefix", "new", "--fill", "--verify",
                            "--strict", "--requests", 1000, "--ratio", "0:1")
        check(found["hits"] == 1000, "only %d hits" % found["hits"])


@suite.test
def the_largest_values_from_many_clients_at_once_are_all_taken():
    """Together they need more than may be lent to bodies that are arriving: they wait for each other, but not for ever."""
    for megabytes, size in ((64, 1048576), (1024, 1000000)):
        with suite.server(["-m", megabytes], transport="unix") as server:
            summary = suite.bench(server, "--connections", 100, "--keys", 500, "--value-size", size, "--ratio", "1:0",
                                  "--requests", 1000, "--verify", "--timeout", 30)
            check(summary["requests"] == 1000 and summary["refused"] == 0, "%s" % summary)


@suite.test
def with_dash_M_sets_are_refused_and_nothing_is_lost():
    with suite.server(["-m", 64, "-M"], transport="unix") as server:
        options = ["--connections", 4, "--pipeline", 16, "--keys", 400000, "--value-size", "200-300", "--verify",
                   "--refusals"]
        # Strict: whatever was stored must be found, with every byte, although others were refused meanwhile.
        with MemoryWatch(server.pid) as watch:
            summary = suite.bench(server, *options, "--strict", "--fill", "--ratio", "0:1", "--requests", 800000)
        stored = summary["fill_sets"] - summary["fill_refused"]
        check(summary["fill_refused"] > 0, "no set was refused")
        check(stored * 250 > 30 * MIB, "only %d sets were taken" % stored)
        check(summary["hits"] > 0 and summary["lost"] == 0, "%s" % summary)
        check(server.counter("evictions") == 0, "evictions under -M")
        check(server.counter("store_no_memory") == summary["fill_refused"],
              "store_no_memory is %d, refused were %d" % (server.counter("store_no_memory"), summary["fill_refused"]))
    check_memory(watch, 64, "-m 64 -M")


@suite.test
def with_dash_M_a_refused_set_leaves_the_stream_in_sync_and_room_comes_back():
    value = b"v" * 100000
    with suite.server(["-m", 16, "-M"], transport="unix") as server, server.connect(20) as sock:
        answers = []
        for i in range(2000):
            answers.append(ask(sock, b"set big%d 0 0 %d\r\n%s\r\n" % (i, len(value), value)))
            if answers[-1] != b"STORED":
                break
        check(answers[-1] == b"SERVER_ERROR out of memory storing object", "the refusal: %r" % answers[-1])
        check(len(answers) > 20, "refused after %d values" % len(answers))
        sock.sendall(b"mn\r\n")
        check(receive_exactly(sock, 4) == b"MN\r\n", "out of step after the refusal")
        for i in range(len(answers) - 1):
            check(ask(sock, b"delete big%d\r\n" % i) == b"DELETED", "stored item %d is not there" % i)
        check(ask(sock, b"set again 0 0 %d\r\n%s\r\n" % (len(value), value)) == b"STORED", "no room after deletes")


@suite.test
def small_datagrams_that_ask_for_much_do_not_make_memory_grow():
    """Replies over UDP are kept whole until they can be numbered: bounded for all of them together."""
    value = b"v" * 1000000
    frame = b"\0\1\0\0\0\1\0\0"
    with suite.server(["-m", 64, "-t", 4], transport="tcp") as server, server.connect(20) as sock:
        check(ask(sock, b"set b 0 0 %d\r\n%s\r\n" % (len(value), value)) == b"STORED", "not stored")
        check(ask(sock, b"set s 0 0 1\r\nx\r\n") == b"STORED", "not stored")
        with MemoryWatch(server.pid) as watch, server.connect_udp() as udp:
            for i in range(2000):
                udp.send(frame + b"get" + b" b" * 8 + b"\r\n")
                if i % 50 == 0:
                    udp.send(frame + b"get b\r\n" * 9000)
                    time.sleep(0.01)
            server.wait_for_counter("udp_dropped", lambda dropped: dropped > 40, "halcyon")
        server.wait_for_counter("front_output_bytes", lambda held: held == 0, "halcyon", 30)
        with server.connect_udp() as udp:
            udp.send(frame + b"get s\r\n")
            check(udp.recv(1500)[8:] == b"VALUE s 0 1\r\nx\r\nEND\r\n", "no answer afterwards")
    check_memory(watch, 64, "large replies over UDP")


suite.main()
