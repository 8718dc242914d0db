# SPDX-License-Identifier: BSD-2-Clause
"""Resident memory while a server is filled, overwritten, flushed and filled with values of ever other sizes, over
1.05 times -m + 64 MiB. The highest of all phases is what counts."""

import random
import time

from memory_lib import MIB, Peer, ResidentWatch, Writer, run_bench

THREADS = 4


def log_sizes(low, high, seed):
    """A size for a number, spread evenly over the logarithm, always the same for the same number."""
    chosen = random.Random(seed)
    sizes = [int(low * (high / low) ** chosen.random()) for _ in range(8191)]
    return lambda number: sizes[number % len(sizes)]


def phases(context, server, writer):
    """Name of each phase, and what it does."""
    room = context.resident_megabytes * MIB
    sizes, others = log_sizes(20, 4096, 1), log_sizes(20, 4096, 2)
    mean = sum(sizes(number) for number in range(8191)) / 8191
    count = int(room / mean)

    def expire():
        writer.store_mixed(range(10 * count, 11 * count), sizes, exptime_of=lambda number: 1 + number % 3)
        time.sleep(4)
        writer.store_mixed(range(11 * count, 11 * count + count // 2), sizes)

    def flush():
        writer.ask(b"flush_all")
        writer.store_mixed(range(12 * count, 12 * count + count // 2), sizes)

    def churn():
        for number, size in enumerate((100, 1000, 8000, 100000, 500000, 20000, 400)):
            writer.store((20 + number) * 10000000, int(1.3 * room / (size + 64)), 16, size)

    def clients():
        run_bench(context.bench, server, ["-c", 500, "-P", 32, "-k", 2 * count, "-V", "20-4000", "-r", "1:3", "-T", 5,
                                          "--timeout", 60], 300)

    return [
        ("fill with 20 B to 4 KiB", lambda: writer.store_mixed(range(3 * count), sizes)),
        ("overwrite with other sizes", lambda: writer.store_mixed(range(2 * count, 4 * count), others)),
        ("expire", expire),
        ("flush", flush),
        ("smallest values", lambda: writer.store(10 ** 9, int(1.5 * room / 64), 16, 10)),
        ("churn of sizes, 100 B to 500 KB", churn),
        ("500 connections, a quarter sets", clients),
    ]


def measure(context, binary):
    with Peer(binary, context.resident_megabytes, THREADS) as server, Writer(server) as writer:
        with ResidentWatch(server.pid) as watch:
            watch.end_phase("start")
            for name, work in phases(context, server, writer):
                work()
                watch.end_phase(name)
        return {"peaks": watch.peaks, "highest": watch.highest(),
                "samples": [(round(second, 2), size) for second, size in watch.samples]}


def run(context, table):
    limit = 1.05 * context.resident_megabytes * MIB + 64 * MIB
    figures = {who: measure(context, binary) for who, binary in context.servers()}
    ours, theirs = figures["halcyon"], figures["memcached"]

    def mib(size):
        return "%.0f MiB" % (size / MIB)

    for name in ours["peaks"]:
        table.add("resident at -m %d: %s" % (context.resident_megabytes, name), mib(theirs["peaks"][name]),
                  mib(ours["peaks"][name]), None)
    for who, text in (("memcached", "highest over %s, memcached's" % mib(limit)), ("halcyon", "highest over %s" % mib(limit))):
        table.add(text, mib(theirs["highest"]), mib(ours["highest"]), figures[who]["highest"] / limit,
                  1.0 if who == "halcyon" else None, more={"figures": figures} if who == "halcyon" else None)
