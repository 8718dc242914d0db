# SPDX-License-Identifier: BSD-2-Clause
"""Misses of a cache-aside client (get; on a miss, set) at equal -m, on the workloads of the targets.

Keys of 16 bytes; values log-uniform from 20 B to 4 KiB, a key's size always the same; popularity by Zipf, scattered over
the keys. One connection over a Unix socket, 64 requests under way: with one seed both servers see the same requests in
the same order. They run one after the other, each begins empty, and misses are counted after a warm-up. They hardly
depend on the machine's speed; what does is memcached's thread that keeps its lists, which has the less time the faster
requests come.

Scan: one request in four asks for a key that never comes again. The figures are misses of all requests, as in the target
(.436, where the plain load has .195); the others' alone stand below.

TTL churn: each set gives a time to live, evenly from 10 to 80 seconds, and requests come at a fixed rate of 150,000 a
second, so that how long an item lives, counted in requests, doesn't depend on speed: half as many to four times as many as
there are keys (another rate changes the seconds, not that). After the warm-up the paced load runs for longer than the
longest time to live, then misses are counted. What an endless cache would miss, because everything expires, is told
beside it.

Shifting popularity: after every 20th as many requests as there are keys, a 64th of the popular keys gives way to others,
so that all popular keys are others after 3.2 times as many requests as there are keys."""

import statistics
from concurrent.futures import ThreadPoolExecutor

from memory_lib import Peer, ServerError, run_bench, say

SCAN_SHARE = 0.25

WORKLOADS = [
    # name, Zipf's exponent, further arguments, must
    ("Zipf 0.8", 0.8, [], 0.85),
    ("Zipf 1.0", 1.0, [], 0.85),
    ("Zipf 1.1", 1.1, [], 0.85),
    ("Zipf 1.0, one in four a scan", 1.0, ["--scan", SCAN_SHARE], 0.90),
    ("Zipf 1.0, TTL churn", 1.0, ["--ttl"], 0.90),
    ("Zipf 1.0, shifting popularity", 1.0, ["--shift"], 0.90),
    ("Zipf 1.0, 30% overwrites", 1.0, ["--overwrites", 0.3], 0.90),
    ("Zipf 1.0, 60% overwrites", 1.0, ["--overwrites", 0.6], 0.95),
]


def runs_of(context, exponent, further, seed):
    """Arguments of halcyon-bench, run after run on one server; the last is counted."""
    load = ["-c", 1, "-P", 64, "-k", context.keys, "-K", 16, "-V", "20-4096", "--values-by", "log",
            "--keys-by", "zipf:%g" % exponent, "--mix", "get=1", "--cache-aside", "--refusals", "--seed", seed,
            "--timeout", 60]
    if "--ttl" in further:
        low_s, high_s = context.ttl_s
        load += ["--ttl", "%d-%d" % (low_s, high_s), "--rate", context.ttl_rate]
        return [load + ["--warmup", context.warmup // 2, "-n", context.ttl_rate * (high_s + 5)],
                load + ["-n", context.ttl_rate * context.ttl_counted_s]]
    if "--shift" in further:
        load += ["--shift", context.shift]
    else:
        load += further
    return [load + ["--warmup", context.warmup, "-n", context.requests]]


def endless_misses(context, exponent):
    """What a cache without limits misses under TTL churn: after each set come as many hits as there are requests for the
    key in its time to live, then a miss."""
    weights = [rank ** -exponent for rank in range(1, context.keys + 1)]
    lifetime = context.ttl_rate * sum(context.ttl_s) / 2 / sum(weights)
    return sum(weight / (1 + weight * lifetime) for weight in weights) / sum(weights)


def share(summary, scan):
    """Misses over gets: of all, or of those that aren't the scan's (each of which misses)."""
    gets, misses = summary["gets"], summary["misses"]
    if not scan:
        gets, misses = gets - summary["scans"], misses - summary["scans"]
    return misses / gets


def run_workload(context, binary, exponent, further, seed):
    """Figures of the run that counts."""
    commands = []
    with Peer(binary, context.megabytes, 1) as server:
        for arguments in runs_of(context, exponent, further, seed):
            before = server.stats()
            summary, command = run_bench(context.bench, server, arguments, 3600)
            commands.append(command)
        stats = server.stats()
    return {"commands": commands, "summary": summary, "get_misses_before": int(before["get_misses"]),
            "stats": {name: int(stats[name]) for name in ("curr_items", "evictions", "get_misses", "cmd_get", "bytes")}}


def measure(context, exponent, further):
    """Figures of each server, a round after the other."""
    figures = {who: [] for who, _ in context.servers()}
    for seed in range(1, context.rounds + 1):
        for who, binary in context.servers():
            figures[who].append(run_workload(context, binary, exponent, further, seed))
    return figures


def tell(context, table, workload, figures):
    name, exponent, further, must = workload
    for scan in (True, False) if "--scan" in further else (True,):
        ours, theirs = ([share(figure["summary"], scan) for figure in figures[who]] for who in ("halcyon", "memcached"))
        ratios = [mine / other for mine, other in zip(ours, theirs)]
        text = "misses, " + name
        if not scan:
            text = "the same, the others' alone"
        elif "--ttl" in further:
            text += " (endless: %.3f)" % endless_misses(context, exponent)
        table.add(text, "%.4f" % statistics.median(theirs), "%.4f" % statistics.median(ours), statistics.median(ratios),
                  must if scan else None, more={"ratios": ratios, "figures": figures if scan else None})
    for who in figures:
        for figure in figures[who]:
            if figure["summary"]["behind"]:
                say("(%s didn't keep the pace: %d requests were not sent in time)" % (who, figure["summary"]["behind"]))
            refused = figure["summary"]["refused"] + figure["summary"].get("warmup_refused", 0)
            if refused:
                say("(%s refused %d sets: out of memory)" % (who, refused))


def run(context, table):
    say("(misses: -m %d, %d keys, %d requests to warm up, %d counted, %d round%s, %d at once)" % (
        context.megabytes, context.keys, context.warmup, context.requests, context.rounds,
        "" if context.rounds == 1 else "s", context.jobs))
    wanted = context.only_workload or ""
    workloads = [workload for workload in WORKLOADS if wanted == workload[0]]
    workloads = workloads or [workload for workload in WORKLOADS if wanted in workload[0]]
    with ThreadPoolExecutor(context.jobs) as pool:
        jobs = [pool.submit(measure, context, exponent, further) for _, exponent, further, _ in workloads]
        failures = []
        for workload, job in zip(workloads, jobs):
            try:
                tell(context, table, workload, job.result())
            except (ServerError, OSError) as reason:
                say("(%s: %s)" % (workload[0], reason))
                failures.append(workload[0])
    if failures:
        raise ServerError("no figures of %s" % ", ".join(failures))
