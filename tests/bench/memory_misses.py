# SPDX-License-Identifier: BSD-2-Clause
"""Misses of a cache-aside client (get; on a miss, set) at equal -m, on the workloads of the targets.

Keys of 16 bytes; values log-uniform from 20 B to 4 KiB, a key's size always the same; popularity by Zipf over keys in
random order. One connection, 64 requests under way, a Unix socket: both servers see the same requests in the same order
(the same seed), and they run one after the other. The server starts empty; misses are counted after a warm-up."""

import statistics

from memory_lib import Peer, run_bench, say

WORKLOADS = [
    # name, Zipf's exponent, further arguments, paced, must
    ("Zipf 0.8", 0.8, [], False, 0.85),
    ("Zipf 1.0", 1.0, [], False, 0.85),
    ("Zipf 1.1", 1.1, [], False, 0.85),
    ("Zipf 1.0, one in four a scan", 1.0, ["--scan", "0.25"], False, 0.90),
    ("Zipf 1.0, TTL churn", 1.0, ["ttl"], True, 0.90),
    ("Zipf 1.0, shifting popularity", 1.0, ["shift"], False, 0.90),
    ("Zipf 1.0, 30% overwrites", 1.0, ["--overwrites", "0.3"], False, 0.90),
    ("Zipf 1.0, 60% overwrites", 1.0, ["--overwrites", "0.6"], False, 0.95),
]


def arguments_of(context, exponent, further, seed):
    arguments = ["-c", 1, "-P", 64, "-k", context.keys, "-K", 16, "-V", "20-4096", "--values-by", "log",
                 "--keys-by", "zipf:%g" % exponent, "--cache-aside", "--warmup", context.warmup, "-n", context.requests,
                 "--seed", seed, "--timeout", 60]
    for argument in further:
        if argument == "ttl":
            arguments += ["--ttl", "%d-%d" % context.ttl_s, "--rate", context.ttl_rate]
        elif argument == "shift":
            arguments += ["--shift", context.shift]
        else:
            arguments.append(argument)
    return arguments


def share(summary, name):
    """Misses over gets: of all, or of those that aren't the scan's."""
    gets, misses = summary["gets"], summary["misses"]
    if name == "without scan":
        gets -= summary["scan_gets"]
        misses -= summary["scan_misses"]
    return misses / gets


def measure(context, name, exponent, further, table, must):
    shares, rates, details = {}, {}, []
    for seed in range(1, context.rounds + 1):
        for who, binary in context.servers():
            with Peer(binary, context.megabytes, 1) as server:
                arguments = arguments_of(context, exponent, further, seed)
                summary, command = run_bench(context.bench, server, arguments, 3600)
                stats = server.stats()
            for kind in ("all", "without scan") if "--scan" in further else ("all",):
                shares.setdefault((kind, who), []).append(share(summary, kind))
            rates.setdefault(who, []).append(summary["requests_per_second"])
            details.append({"server": who, "seed": seed, "command": command, "summary": summary,
                            "curr_items": int(stats["curr_items"]), "evictions": int(stats["evictions"]),
                            "get_misses": int(stats["get_misses"]), "cmd_get": int(stats["cmd_get"])})
    for kind in ("all", "without scan"):
        if (kind, "halcyon") not in shares:
            continue
        ours, theirs = shares[kind, "halcyon"], shares[kind, "memcached"]
        ratios = [mine / other for mine, other in zip(ours, theirs)]
        text = "misses, " + name + ("" if kind == "all" else "; the others' alone")
        table.add(text, "%.4f" % statistics.median(theirs), "%.4f" % statistics.median(ours), statistics.median(ratios),
                  must if kind == "all" else None,
                  more={"ratios": ratios, "requests_per_second": rates, "runs": details if kind == "all" else None})


def run(context, table):
    say("(misses: -m %d, %d keys, %d requests to warm up, %d counted, %d round%s)" % (
        context.megabytes, context.keys, context.warmup, context.requests, context.rounds,
        "" if context.rounds == 1 else "s"))
    for name, exponent, further, _, must in WORKLOADS:
        if context.only_workload and context.only_workload not in name:
            continue
        measure(context, name, exponent, further, table, must)
