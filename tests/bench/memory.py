#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Memory and hit ratio, Halcyon beside memcached at equal -m in one run: a table with what each row must reach, and the
same as JSON. Never a gate: it fails only when a server does.

    tests/bench/memory.py [--quick] [--only PART[,PART]] [--rounds N] [--json FILE]

$HALCYOND, $HALCYON_BENCH and $MEMCACHED name the programs (memcached: else the installed one). Parts: items, resident,
misses, index, growth, ablation. --quick takes a quarter of the memory and of the keys, and few requests: to see that it works."""

import argparse
import json
import os
import shutil
import sys

import memory_ablation
import memory_index
import memory_items
import memory_misses
import memory_resident
from memory_lib import ServerError, Table, say
from rig import facts_line, machine_facts, program_version

PARTS = {
    "items": memory_items.run,
    "resident": memory_resident.run,
    "misses": memory_misses.run,
    "index": memory_index.run_cost,
    "growth": memory_index.run_growth,
    "ablation": memory_ablation.run,
}


class Context:
    """Programs and sizes of this run."""

    def __init__(self, arguments):
        here = os.path.dirname(os.path.abspath(__file__))
        self.source = os.environ.get("top_srcdir") or os.path.join(here, "..", "..")
        self.halcyond = os.path.abspath(arguments.halcyond)
        self.build = os.environ.get("top_builddir") or os.path.dirname(self.halcyond)
        self.bench = os.path.abspath(arguments.bench or os.path.join(self.build, "halcyon-bench"))
        self.memcached = arguments.memcached
        self.rounds, self.jobs = arguments.rounds, arguments.jobs
        self.only_workload = arguments.workload
        quick = arguments.quick
        self.megabytes = arguments.megabytes or (64 if quick else 256)
        self.keys = arguments.keys or (750000 if quick else 3000000)
        self.warmup = arguments.warmup or (1500000 if quick else 16000000)
        self.requests = arguments.requests or (500000 if quick else 4000000)
        self.item_megabytes = (64,) if quick else (64, 76, 91, 108)
        self.resident_megabytes = 64 if quick else 256
        self.growth_items = arguments.growth_items or (2000000 if quick else 20000000)
        self.ablation_megabytes, self.ablation_keys = (8, 93750) if quick else (16, 187500)
        self.ablation_requests = 600000 if quick else 2000000
        # Lives of half as many requests as there are keys to four times as many, in whole seconds of the pace.
        self.ttl_rate = arguments.ttl_rate or (75000 if quick else 150000)
        self.ttl_s = tuple(max(1, self.keys * halves // 2 // self.ttl_rate) for halves in (1, 8))
        self.ttl_counted_s = self.keys * 5 // 2 // self.ttl_rate
        self.shift = self.keys // 20

    def servers(self):
        return (("halcyon", self.halcyond), ("memcached", self.memcached))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--halcyond", default=os.environ.get("HALCYOND"))
    parser.add_argument("--bench", default=os.environ.get("HALCYON_BENCH"))
    parser.add_argument("--memcached", default=os.environ.get("MEMCACHED") or shutil.which("memcached"))
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas")
    parser.add_argument("--workload", help="misses: only workloads of this name, or whose names contain this")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=1, help="misses: seeds; the median of the ratios counts")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 4), help="misses: workloads at once")
    parser.add_argument("--megabytes", type=int, help="misses: -m of both (256)")
    parser.add_argument("--keys", type=int, help="misses: keys (3000000)")
    parser.add_argument("--warmup", type=int, help="misses: requests before counting (16000000)")
    parser.add_argument("--requests", type=int, help="misses: requests counted (4000000)")
    parser.add_argument("--ttl-rate", type=int, help="misses: requests a second under TTL churn (150000)")
    parser.add_argument("--growth-items", type=int, help="growth: items (20000000)")
    parser.add_argument("--json", help="write every figure here")
    arguments = parser.parse_args()
    if not arguments.halcyond:
        parser.error("no server: set HALCYOND")
    if not arguments.memcached or not os.access(arguments.memcached, os.X_OK):
        say("no memcached to compare with: set MEMCACHED to its path")
        return 0
    context, table, parts = Context(arguments), Table(), arguments.only.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error("no part %s" % part)
    versions = {who: program_version(binary) for who, binary in context.servers()}
    facts = machine_facts()
    say("%s beside %s" % (versions["halcyon"], versions["memcached"]))
    say(facts_line(facts))
    status = 0
    for part in parts:
        try:
            PARTS[part](context, table)
        except (ServerError, OSError, RuntimeError) as reason:
            say("%s: %s" % (part, reason))
            status = 1
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": facts, "versions": versions, "arguments": sys.argv[1:], "rows": table.rows}, out, indent=1)
            out.write("\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
