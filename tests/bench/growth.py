#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Fills one server with small items, 20 million unless told otherwise, and prints what that cost: how long the index
stood still to grow, by the server's own clock, and the longest that a client waited.

    tests/bench/growth.py [--items N] [--threads N] [--megabytes N] [--json] [SERVER]

Exit status 1 when items were lost or a step of growth took a millisecond of CPU. Where threads outnumber the cores, its
time by the wall holds what else the core did meanwhile."""

import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
from common import MemoryWatch, Running  # noqa: E402

PAUSE_LIMIT_US = 1000
KEY_SIZE = 16
VALUE_SIZE = 10
BYTES_AN_ITEM = 80  # of -m: 48 in a segment, up to 14 of index, and room


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", nargs="?", default=os.environ.get("HALCYOND"))
    parser.add_argument("--bench", default=os.environ.get("HALCYON_BENCH"))
    parser.add_argument("--items", type=int, default=20000000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megabytes", type=int, help="-m (80 bytes an item, at least 256)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON, no table")
    arguments = parser.parse_args()
    megabytes = arguments.megabytes or max(256, arguments.items * BYTES_AN_ITEM >> 20)
    if not arguments.server:
        parser.error("no server: give its path, or set HALCYOND")
    bench = arguments.bench or os.path.join(os.path.dirname(os.path.abspath(arguments.server)), "halcyon-bench")
    options = ["-m", str(megabytes), "-t", str(arguments.threads)]
    with Running(os.path.abspath(arguments.server), options, "unix") as server:
        with MemoryWatch(server.pid) as watch:
            command = [bench, "--json", "--socket", server.path, "--keys", str(arguments.items), "--key-size",
                       str(KEY_SIZE), "--value-size", str(VALUE_SIZE), "--connections", "8", "--pipeline", "16",
                       "--timeout", "60"]
            fill = json.loads(subprocess.run(command + ["--fill-only"], stdout=subprocess.PIPE, check=True).stdout)
            # The same keys are read by chance: all must be there.
            read = json.loads(subprocess.run(command + ["--ratio", "0:1", "--requests", "1000000"],
                                             stdout=subprocess.PIPE, check=True).stdout)
        stats = server.stats()
        own = server.own_stats()
    pause = own.get("index_growth_pause_max_us")
    rows = [
        ("items", "%s of %d" % (stats["curr_items"], arguments.items)),
        ("evictions", stats["evictions"]),
        ("random gets that hit", "%d of %d" % (read["hits"], read["gets"])),
        ("fill", "%.1f s, %d sets/s" % (fill["fill_seconds"], fill["fill_requests_per_second"])),
        ("longest growth step, CPU", "not told" if pause is None else "%s us" % pause),
        ("must be below %d us" % PAUSE_LIMIT_US, "not told" if pause is None else
         "reached" if int(pause) < PAUSE_LIMIT_US else "missed by %d us" % (int(pause) - PAUSE_LIMIT_US)),
        ("the same by the wall", "%s us" % own.get("index_growth_pause_wall_max_us", "not told")),
        ("index buckets, splits", "%s, %s" % (own.get("index_buckets", "not told"), own.get("index_splits", "not told"))),
        ("longest wait of a client, fill", "%.0f us" % fill["fill_latency_max_us"]),
        ("p50, p99, p99.99 of a set", "%.0f, %.0f, %.0f us" % (
            fill["fill_latency_p50_us"], fill["fill_latency_p99_us"], fill["fill_latency_p9999_us"])),
        ("resident memory", "%.0f MiB, %.1f bytes an item" % (
            watch.highest_kib / 1024, watch.highest_kib * 1024 / arguments.items)),
    ]
    if arguments.json:
        print(json.dumps({"fill": fill, "read": read, "stats": stats, "own": own, "megabytes": megabytes,
                          "resident_highest": watch.highest_kib * 1024, "pause_cpu_us": pause and int(pause)}))
    else:
        for name, value in rows:
            print("| %-30s | %-32s |" % (name, value))
    good = int(stats["curr_items"]) == arguments.items and stats["evictions"] == "0" and read["misses"] == 0
    if not good:
        print("growth: items are missing", file=sys.stderr)
    if pause is not None and float(pause) >= PAUSE_LIMIT_US:
        print("growth: a step of %s us; %d us is the limit" % (pause, PAUSE_LIMIT_US), file=sys.stderr)
        good = False
    return 0 if good else 1


sys.exit(main())
