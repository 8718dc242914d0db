#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How throughput grows with the server's threads, Halcyon beside memcached: GET 90%, Zipf 0.99, 16 deep, 1 M keys.

    scaling.py [--halcyond PATH] [--memcached PATH] [--bench PATH] [--threads 1,2,4,8,16] [--seconds S] [--rounds N]
               [--transports tcp,unix] [--json FILE]

A server of n threads is pinned to n CPUs and the generator to others, the same for every n: half of the machine each, one CPU
of each core first. A server with more threads than half of the machine shares its CPUs with the generator: such rows are
told apart, and have no efficiency. Both servers run at once and take turns, A B B A. Efficiency is rate(n) / (n * rate(1)).
A row says 'generator-bound' when the generator had no CPU to spare and the server had: its rate is a lower bound.

Standard library only; paths are also taken from $HALCYOND, $MEMCACHED and $HALCYON_BENCH. The table comes last. It is no gate.
"""

import argparse
import os
import sys
import time

import rig
from rig import Figures, RigError, rate_text

KEYS = 1000000
KEY_SIZE = 16
VALUE_SIZE = 64
MEMORY_MB = 1024
CONNECTIONS = 256
DEPTH = 16
MUST, AIM = 0.8, 0.9
GENERATOR_BOUND = 0.9
DATA = ["-c", str(CONNECTIONS), "-k", str(KEYS), "-K", str(KEY_SIZE), "-V", str(VALUE_SIZE)]


class Placement:
    """Which CPUs serve and which ask."""

    def __init__(self, threads):
        cpus = rig.own_cpus()
        half = max(1, len(cpus) // 2)
        self.shared = threads > half or len(cpus) < 2
        self.server = cpus[:threads]
        self.generator = cpus if self.shared else cpus[half:]


def load_arguments(generator):
    """The mix, or the nearest that an older generator has."""
    if generator.has("--mix") and generator.has("--keys-by"):
        return [*DATA, "--mix", "get=90,set=10", "--keys-by", "zipf:0.99", "-P", str(DEPTH)]
    return [*DATA, "-r", "1:9", "-P", str(DEPTH)]


def measure(options, programs, transport, threads, runs):
    """{label: row} for one number of threads."""
    place = Placement(threads)
    generator = rig.Generator(options.bench, place.generator, len(place.generator))
    arguments = load_arguments(generator)
    servers, found = {}, {label: [] for label in programs}
    try:
        for label, program in programs.items():
            servers[label] = rig.cache_server(label, program, transport, place.server, threads, MEMORY_MB,
                                              CONNECTIONS + 256)
            generator.fill(servers[label], DATA)
        for server in servers.values():
            generator.run(server, [*arguments, "-T", "0.3"])
        for number in range(options.rounds):
            for label in rig.abba(servers, number):
                run = generator.run(servers[label], [*arguments, "-T", options.seconds])
                rig.check_counters(run, f"{transport}, {threads} threads, {label}")
                run.update(server=label, transport=transport, threads=threads, round=number, shared=place.shared)
                runs.append(run)
                found[label].append(run)
    finally:
        for server in servers.values():
            server.stop()
    return {label: Row(of, threads, len(place.generator), place.shared) for label, of in found.items()}


class Row:
    def __init__(self, runs, threads, generators, shared):
        self.threads = threads
        self.shared = shared
        self.rate = Figures(run["requests_per_second"] for run in runs)
        self.cpu_us = Figures(run["server_cpu_seconds"] * 1e6 / run["requests"] for run in runs)
        self.p99 = Figures(run["latency_p99_us"] for run in runs)
        self.busy = Figures(rig.server_busy(run, threads) for run in runs)
        self.generator_busy = Figures(rig.generator_busy(run, generators) for run in runs)

    def efficiency(self, one):
        """Of linear; None where the generator took the server's CPUs."""
        return None if self.shared else self.rate.median / (self.threads * one.rate.median)

    def generator_bound(self):
        return not self.shared and self.generator_busy.median > GENERATOR_BOUND and self.busy.median < GENERATOR_BOUND

    def as_json(self):
        return {name: value.values for name, value in vars(self).items() if isinstance(value, Figures)}


def note_of(row, efficiency, first):
    words = []
    if row.shared:
        words.append("CPUs shared with the generator")
    elif efficiency is not None and row.threads > 1 and first:
        words.append("aim reached" if efficiency >= AIM else "reached" if efficiency >= MUST else
                     f"missed by {1 - efficiency / MUST:.0%}")
    if row.generator_bound():
        words.append("generator-bound")
    return ", ".join(words)


def table_rows(transport, threads_list, rows):
    """rows: {threads: {label: Row}}."""
    lines = []
    one = {label: row for label, row in rows[threads_list[0]].items()} if threads_list[0] == 1 else {}
    for threads in threads_list:
        of = rows[threads]
        mine = of["halcyon"]
        ratio = mine.rate.over(of["memcached"].rate).text() if "memcached" in of else "-"
        for label, row in of.items():
            efficiency = row.efficiency(one[label]) if one else None
            lines.append([
                transport, threads, label, row.rate.text("{:,.0f}"), f"{efficiency:.2f}" if efficiency else "-",
                f"{row.cpu_us.median:.2f}", f"{row.busy.median:.0%}", f"{row.generator_busy.median:.0%}",
                f"{row.p99.median:.0f}", ratio if label == "halcyon" else "",
                note_of(row, efficiency, label == "halcyon")])
    return lines


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--halcyond")
    parser.add_argument("--memcached")
    parser.add_argument("--bench")
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--transports", default="tcp,unix")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="write facts, rows and every run here")
    options = parser.parse_args()
    options.halcyond = rig.find_program("halcyond", "HALCYOND", options.halcyond)
    options.memcached = rig.find_program("memcached", "MEMCACHED", options.memcached)
    options.bench = rig.find_program("halcyon-bench", "HALCYON_BENCH", options.bench)
    if not options.halcyond or not options.bench:
        parser.error("--halcyond and --bench are needed")
    options.threads = [int(word) for word in options.threads.split(",")]
    return options


def main():
    rig.end_with_servers()
    options = parse()
    programs = {"halcyon": options.halcyond}
    if options.memcached:
        programs["memcached"] = options.memcached
    facts = rig.machine_facts()
    count = len(rig.own_cpus())
    threads_list = [threads for threads in options.threads if threads <= count]
    if len(threads_list) < len(options.threads):
        print(f"This machine has {count} CPUs: {', '.join(str(t) for t in options.threads if t > count)} threads are left out")
    names = {label: rig.program_version(program) for label, program in programs.items()}
    print(rig.facts_line(facts))
    print(f"{' and '.join(names.values())}; {CONNECTIONS} connections, {DEPTH} deep, {KEYS} keys of {KEY_SIZE} B, "
          f"{VALUE_SIZE} B values, -m {MEMORY_MB}; {options.rounds} rounds of {options.seconds:g} s; CPUs in the order "
          f"{rig.own_cpus()}", flush=True)
    generator = rig.Generator(options.bench, None, 1)
    if not (generator.has("--mix") and generator.has("--keys-by")):
        print("This halcyon-bench has no --mix and --keys-by: one set to nine gets, all keys alike")
    runs, lines, results, status, start = [], [], {}, 0, time.monotonic()
    try:
        for transport in options.transports.split(","):
            rows = {}
            for threads in threads_list:
                rows[threads] = measure(options, programs, transport, threads, runs)
                print(f"{transport}, {threads} threads: " + ", ".join(
                    f"{label} {rate_text(row.rate.median)}/s" for label, row in rows[threads].items()), flush=True)
            lines += table_rows(transport, threads_list, rows)
            results[transport] = {threads: {label: row.as_json() for label, row in of.items()}
                                  for threads, of in rows.items()}
    except RigError as reason:
        print(f"scaling: {reason}", file=sys.stderr)
        status = 1
    if options.json:
        rig.write_json(options.json, {
            "facts": facts, "versions": names, "command": sys.argv, "cpu_order": rig.own_cpus(), "results": results,
            "siblings": {cpu: rig.read_text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
                         for cpu in rig.own_cpus()},
            "runs": runs})
    print(f"took {time.monotonic() - start:.0f} s; must {MUST} of linear to 8 threads, aim {AIM}")
    rig.print_table("GET 90%, Zipf 0.99" if generator.has("--keys-by") else "GET 90%", [
        "transport", "threads", "server", "requests/s", "of linear", "CPU us", "server busy", "generator busy", "p99 us",
        "ratio", ""], lines)
    return status


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
