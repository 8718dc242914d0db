# SPDX-License-Identifier: BSD-2-Clause
"""What each piece of the eviction's design is worth: the memory module alone (tests/model/memory_hits) with one piece
changed or left out at a time, on a sixteenth of the targets' load."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

from memory_lib import ServerError, say

MISSES = re.compile(r"misses ([\d.]+)")

LOADS = [
    # heading, arguments of memory_hits
    ("Zipf 0.8", ["zipf=0.8"]),
    ("Zipf 1.0", []),
    ("Zipf 1.1", ["zipf=1.1"]),
    ("scan 25%", ["scan=25"]),
    ("TTL", ["ttl=1"]),
    ("shift", ["shift=1"]),
    ("overwrites 30%", ["overwrites=30"]),
]

VARIANTS = [
    # what, switches
    ("as it is", []),
    ("no probation: new items go to main", ["probation=0"]),
    ("probation a tenth", ["probation=10"]),
    ("main takes whatever was read", ["admit=reads"]),
    ("no ghost", ["ghost=off"]),
    ("ghost remembers only what left probation", ["ghost-main=0"]),
    ("ranked by reads, whatever the size", ["rank=reads"]),
    ("ranked by age alone", ["rank=age"]),
    ("reads counted to 1 (one bit)", ["counter=1"]),
    ("reads counted to 3 (two bits)", ["counter=3"]),
    ("merges keep half the bytes", ["keep=50"]),
    ("8 segments in a merge", ["width=8"]),
]


def misses_of(context, load, switches):
    command = [os.path.join(context.build, "tests", "model", "memory_hits"), "mib=%d" % context.ablation_megabytes,
               "keys=%d" % context.ablation_keys, "requests=%d" % context.ablation_requests, "lru=off"] + load + switches
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    found = MISSES.search(run.stdout)
    if not found:
        raise ServerError("%s ended with %d:\n%s" % (" ".join(command), run.returncode, run.stdout))
    return float(found.group(1))


def run(context, table):
    say("(ablation: misses of tests/model/memory_hits mib=%d keys=%d requests=%d, and over those of the first row)" % (
        context.ablation_megabytes, context.ablation_keys, context.ablation_requests))
    say("| %-40s |%s" % ("", "".join(" %-14s |" % heading for heading, _ in LOADS)))
    say("|%s|%s" % ("-" * 42, ("-" * 15 + ":|") * len(LOADS)))
    whole = []
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    jobs = [[pool.submit(misses_of, context, load, switches) for _, load in LOADS] for _, switches in VARIANTS]
    for (what, switches), row in zip(VARIANTS, jobs):
        misses = [job.result() for job in row]
        whole = whole or misses
        say("| %-40s |%s" % (what, "".join(" %6.4f %6.3f  |" % (each, each / first)
                                           for each, first in zip(misses, whole))))
        table.rows.append({"what": "ablation: " + what, "switches": switches, "misses": misses,
                           "loads": [heading for heading, _ in LOADS]})
