#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Halcyon beside memcached: throughput, CPU a request and latency of both, as tables and as JSON.

    peers.py [--quick] [--rounds N] [--seconds S] [--threads N] [--only TEXT] [--json FILE]

$HALCYOND, $HALCYON_BENCH and $HALCYON_NULL name our programs, $MEMCACHED the peer (else the one in PATH), $MEMTIER a
memtier_benchmark (else the one in PATH), which is asked for a second opinion.

How it is measured. Both servers run at the same time with the same options, pinned to the same CPUs; the generator is
pinned to others. They take turns in rounds A B B A, so that a machine that drifts does so for both. A ratio is that of one
round; the tables have the median of the rounds and, in brackets, the lowest and the highest. CPU is that of all threads
of the server, from the scheduler's nanoseconds. Throughput comes from a closed loop; latency from an open loop that
offers both the same rate, OPEN_SHARE of what the slower one did, and counts from the moment at which a request was due.
The ceiling is a server that does nothing but answer. Every byte of every reply is read, and after every run the server's
counters must tell what the generator counted.

It is no gate: 'missed' is printed and does not fail. It fails when a server does not serve or a count is wrong.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import rig
from rig import Figures, RigError, rate_text

OPEN_SHARE = 0.6
CONNECTIONS = 50
KEY_SIZE = 16
READ_KEYS = 1000000
READ_MEMORY_MB = 1024
# In the steady state of a full cache: twice as many keys as fit, all of them set once before a set is measured.
FULL_MEMORY_MB = 256
FULL_KEYS = {64: 4000000, 1024: 450000}
GENERATOR_BOUND = 0.95
GENERATOR_MUST, GENERATOR_SHARE = 10e6, 0.7  # requests a second of one core; of an empty client's


class Load:
    """A row: what the generator does, and what Halcyon must and would like to reach beside memcached."""

    def __init__(self, name, arguments, must=None, aim=None, must_cpu=None, aim_cpu=None, must_p99=None, needs=()):
        self.name = name
        self.arguments = arguments
        self.must, self.aim = must, aim  # of throughput, at least
        self.must_cpu, self.aim_cpu = must_cpu, aim_cpu  # of CPU a request, at most
        self.must_p99 = must_p99  # of the 99th percentile, at most
        self.needs = needs  # options of the generator


class Group:
    """Loads that share two servers and what these hold."""

    def __init__(self, transport, memory_mb, fill, loads):
        self.transport = transport
        self.memory_mb = memory_mb
        self.fill = fill
        self.loads = loads


def keys(count, value_size):
    return ["-c", str(CONNECTIONS), "-k", str(count), "-K", str(KEY_SIZE), "-V", str(value_size)]


READ = keys(READ_KEYS, 64)
NUMBERS = [*keys(100000, 64), "--key-prefix", "number-"]
GET = ["-r", "0:1"]
SET = ["-r", "1:0"]


def sets_into_full(value_size, name, must, aim):
    """Sets of random keys of which half are there, and overwrites of few keys among many that are there."""
    full = keys(FULL_KEYS[value_size], value_size)
    few = [*keys(20000, value_size), "--key-prefix", "few-"]
    # An error is counted and printed rather than the end of the run.
    full_sets, few_sets = ([*of, *SET, "-P", "16", "--refusals"] for of in (full, few))
    return Group("tcp", FULL_MEMORY_MB, [full], [
        Load(f"TCP, set {name}, 16 deep", full_sets, must, aim),
        Load(f"TCP, set {name}, 16 deep, 20 k keys", few_sets),
    ])


GROUPS = [
    Group("tcp", READ_MEMORY_MB, [READ], [
        Load("TCP, get, 1 deep", [*READ, *GET, "-P", "1"], must_cpu=0.90, aim_cpu=0.82, must_p99=1.0),
        Load("TCP, get, 16 deep", [*READ, *GET, "-P", "16"], 2.5, 3.2),
        Load("TCP, get of 32 keys", [*READ, *GET, "-P", "1", "-g", "32"], 2.5, 4),
        Load("TCP, gat, 16 deep", [*READ, "--mix", "gat=1", "-P", "16"], 1, 2, needs=("--mix",)),
        Load("TCP, touch, 16 deep", [*READ, "--mix", "touch=1", "-P", "16"], 1, 2, needs=("--mix",)),
    ]),
    Group("tcp", READ_MEMORY_MB, [], [
        Load("TCP, incr, 16 deep", [*NUMBERS, "--mix", "incr=1", "-P", "16"], 1, 2, needs=("--mix",)),
    ]),
    Group("unix", READ_MEMORY_MB, [READ], [
        Load("Unix, get, 16 deep", [*READ, *GET, "-P", "16"], 2.5, 5),
        Load("Unix, get, 1 deep", [*READ, *GET, "-P", "1"]),
    ]),
    sets_into_full(64, "64 B", 2, 3),
    sets_into_full(1024, "1 KiB", 1.3, 2),
]


class Table:
    """Runs the groups and keeps every run."""

    def __init__(self, options, programs):
        self.options = options
        self.programs = programs  # label -> path, Halcyon first
        cpus = rig.own_cpus()
        split = max(1, min(options.threads, len(cpus) - 1))
        self.server_cpus = cpus[:split]
        self.generator_cpus = cpus[split:][:2 * options.threads] or cpus
        self.generator = rig.Generator(options.bench, self.generator_cpus, len(self.generator_cpus))
        self.runs = []
        self.results = []
        self.refused = {label: 0 for label in programs}  # sets, by servers that should have made room

    def start(self, label, group):
        return rig.cache_server(label, self.programs[label], group.transport, self.server_cpus, self.options.threads,
                                group.memory_mb)

    def wanted(self, load):
        if self.options.only and self.options.only.lower() not in load.name.lower():
            return False
        missing = [option for option in load.needs if not self.generator.has(option)]
        if missing:
            print(f"{load.name}: not measured, this halcyon-bench has no {', '.join(missing)}")
        return not missing

    def run_group(self, group):
        loads = [load for load in group.loads if self.wanted(load)]
        if not loads:
            return
        servers = {}
        try:
            for label in self.programs:
                servers[label] = self.start(label, group)
                for fill in group.fill:
                    self.refused[label] += self.generator.fill(servers[label], fill)
            for load in loads:
                self.measure(load, group, servers)
        finally:
            for server in servers.values():
                server.stop()

    def one(self, load, server, mode, number, extra):
        summary = self.generator.run(server, [*load.arguments, *extra])
        self.refused[server.label] += summary.get("refused", 0)
        rig.check_counters(summary, f"{load.name}, {server.label}")
        summary.update(load=load.name, server=server.label, mode=mode, round=number)
        self.runs.append(summary)
        return summary

    def measure(self, load, group, servers):
        """All rounds of a row."""
        self.progress(load.name)
        if "number-" in load.arguments:
            for server in servers.values():
                self.generator.fill(server, [*NUMBERS, "--mix", "incr=1"])
        elif "few-" in load.arguments:
            for server in servers.values():
                self.generator.fill(server, load.arguments[:load.arguments.index("-r")])
        closed = {label: [] for label in servers}
        for server in servers.values():  # warms up, and is not counted
            self.generator.run(server, [*load.arguments, "-T", "0.3"])
        for number in range(self.options.rounds):
            for label in rig.abba(servers, number):
                closed[label].append(self.one(load, servers[label], "closed", number, ["-T", self.options.seconds]))
        opened = {label: [] for label in servers}
        rate = 0
        if self.generator.has("--rate"):
            slowest = min(Figures(run["requests_per_second"] for run in runs).median for runs in closed.values())
            rate = int(OPEN_SHARE * slowest)
            for number in range(self.options.open_rounds):
                for label in rig.abba(servers, number):
                    opened[label].append(self.one(load, servers[label], "open", number,
                                                  ["-T", self.options.seconds, "--rate", rate]))
        self.results.append(Result(load, closed, opened, rate, self.ceiling(load, group), self.options.threads,
                                   self.generator.threads))

    def ceiling(self, load, group):
        """What a server that does nothing gets from the same generator; it knows get and set."""
        if not self.options.null or "--mix" in load.arguments:
            return None
        with null_server(self.options.null, group.transport, self.server_cpus[:1]) as server:
            self.generator.run(server, [*load.arguments, "-T", "0.3"])
            summary = self.generator.run(server, [*load.arguments, "-T", self.options.seconds])
        summary.update(load=load.name, server="ceiling", mode="closed", round=0)
        self.runs.append(summary)
        return summary

    def progress(self, text):
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def null_server(program, transport, cpus):
    """One thread that answers without looking."""
    def command_of(server):
        return [program, *(["-s", server.path] if server.path else ["-p", str(server.port)])]
    return rig.Server("null", command_of, transport, cpus, counts=False)


class Result:
    """A measured row."""

    def __init__(self, load, closed, opened, offered, ceiling, server_threads, generator_threads):
        self.load = load
        self.ceiling = ceiling
        self.labels = list(closed)
        self.rate = {label: Figures(run["requests_per_second"] * rig.operations(run) / run["requests"] for run in runs)
                     for label, runs in closed.items()}
        self.cpu = {label: Figures(run["server_cpu_seconds"] * 1e6 / rig.operations(run) for run in runs)
                    for label, runs in closed.items()}
        self.busy = {label: Figures(rig.server_busy(run, server_threads) for run in runs)
                     for label, runs in closed.items()}
        self.generator_busy = {label: Figures(rig.generator_busy(run, generator_threads) for run in runs)
                               for label, runs in closed.items()}
        self.p99 = {label: Figures(run["latency_p99_us"] for run in runs) for label, runs in opened.items()}
        self.offered = offered  # requests a second, of the open loop
        self.ratio = self.cpu_ratio = self.p99_ratio = Figures([])
        if len(self.labels) == 2:
            mine, its = self.labels
            self.ratio = self.rate[mine].over(self.rate[its])
            self.cpu_ratio = self.cpu[mine].over(self.cpu[its])
            self.p99_ratio = self.p99[mine].over(self.p99[its])

    def generator_bound(self):
        """Whether Halcyon waited for the generator: then its throughput is a lower bound."""
        mine = self.labels[0]
        return self.generator_busy[mine].median > GENERATOR_BOUND > self.busy[mine].median

    def musts(self):
        """(what, reached, must, aim, whether lower is better) of everything that was asked of the row."""
        load = self.load
        rows = [("throughput", self.ratio, load.must, load.aim, False),
                ("CPU", self.cpu_ratio, load.must_cpu, load.aim_cpu, True),
                ("p99", self.p99_ratio, load.must_p99, None, True)]
        return [row for row in rows if row[2] is not None]

    def verdict(self):
        texts = []
        for what, figures, must, aim, low in self.musts():
            if not figures:
                texts.append(f"{what} not measured")
                continue
            value = figures.median
            good = value <= must if low else value >= must
            word = "reached" if good else f"missed by {abs(must - value) / must:.0%}"
            if good and aim is not None and (value <= aim if low else value >= aim):
                word = "aim reached"
            texts.append(f"{what} {word}")
        if self.generator_bound():
            by_cpu = f" ({1 / self.cpu_ratio.median:.1f} times by CPU)" if self.cpu_ratio else ""
            texts.append("generator-bound" + by_cpu)
        return "; ".join(texts) or "reported"

    def wish(self, index):
        """must (2) or aim (3) as a cell."""
        cells = [f"{what} {'<=' if row_low else '>='} {value:g}"
                 for what, _, *values, row_low in self.musts() for value in [values[index - 2]] if value is not None]
        return ", ".join(cells) or "-"

    def as_json(self):
        def figures(group):
            return {label: {"median": value.median, "low": value.low, "high": value.high}
                    for label, value in group.items() if value}
        return {
            "load": self.load.name, "arguments": self.load.arguments, "requests_per_second": figures(self.rate),
            "server_cpu_us_a_request": figures(self.cpu), "server_busy": figures(self.busy),
            "generator_busy": figures(self.generator_busy), "open_loop_p99_us": figures(self.p99),
            "ratios": figures({"throughput": self.ratio, "cpu": self.cpu_ratio, "p99": self.p99_ratio}),
            "verdict": self.verdict(),
        }


# --- the tables -----------------------------------------------------------------------------------------------------


def print_results(results, names):
    if not results:
        return
    mine, *other = results[0].labels
    its = other[0] if other else None
    header = ["load", f"{names[mine]}, a second", f"{names[its]}" if its else "-", "ratio", "nothing-server",
              "server busy", "generator busy", "must", "aim", "verdict"]
    rows = []
    for result in results:
        ceiling = result.ceiling
        rows.append([
            result.load.name, rate_text(result.rate[mine].median), rate_text(result.rate[its].median) if its else "-",
            result.ratio.text(),
            rate_text(ceiling["requests_per_second"] * rig.operations(ceiling) / ceiling["requests"])
            if ceiling else "-",
            f"{result.busy[mine].median:.0%}" + (f" / {result.busy[its].median:.0%}" if its else ""),
            f"{result.generator_busy[mine].median:.0%}" + (f" / {result.generator_busy[its].median:.0%}" if its else ""),
            result.wish(2), result.wish(3), result.verdict()])
    rig.print_table("Throughput, closed loop (a multi-get counts its keys)", header, rows)
    rows = []
    for result in results:
        ceiling = result.ceiling
        rows.append([
            result.load.name, result.cpu[mine].text(), result.cpu[its].text() if its else "-", result.cpu_ratio.text(),
            f"{ceiling['server_cpu_seconds'] * 1e6 / rig.operations(ceiling):.2f}" if ceiling else "-",
            rate_text(result.offered) if result.offered else "-",
            result.p99[mine].text("{:.0f}"), result.p99[its].text("{:.0f}") if its else "-", result.p99_ratio.text()])
    header = ["load", f"CPU us, {mine}", f"{its}", "ratio", "nothing-server", "offered, requests/s",
              f"p99 us, {mine}", f"{its}", "ratio"]
    rig.print_table("CPU a request of all the server's threads; 99th percentile in an open loop", header, rows)


# --- halcyon-bench itself -------------------------------------------------------------------------------------------


def measure_generator(table):
    """How fast one core of halcyon-bench goes over a Unix socket, 64 deep, beside a client that does nothing."""
    if not table.options.null or not table.generator.has("--empty"):
        print("\nhalcyon-bench itself: not measured, it wants halcyon-null and --empty")
        return None
    generator = rig.Generator(table.options.bench, table.generator_cpus[:1], 1)
    arguments = [*READ, *GET, "-P", "64", "-T", table.options.seconds]
    found = {"real": [], "empty": []}
    with null_server(table.options.null, "unix", table.server_cpus[:1]) as server:
        for number in range(table.options.rounds):
            for label in rig.abba(found, number):
                summary = generator.run(server, [*arguments, *(["--empty"] if label == "empty" else [])])
                summary.update(load="halcyon-bench itself", server="null", mode=label, round=number)
                table.runs.append(summary)
                found[label].append(summary)
    rate = {label: Figures(run["requests_per_second"] for run in runs) for label, runs in found.items()}
    cpu = {label: Figures(run["bench_cpu_us_a_request"] for run in runs) for label, runs in found.items()}
    busy = {label: Figures(rig.generator_busy(run) for run in runs).median for label, runs in found.items()}
    share = rate["real"].over(rate["empty"])
    good = rate["real"].median >= GENERATOR_MUST or share.median >= GENERATOR_SHARE
    verdict = "reached" if good else \
        f"missed by {min(1 - rate['real'].median / GENERATOR_MUST, 1 - share.median / GENERATOR_SHARE):.0%}"
    rig.print_table("halcyon-bench itself: one core, Unix socket, get, 64 deep, against the server that does nothing", [
        "requests a second", "an empty client's", "ratio", "CPU us a request", "an empty client's", "ratio", "busy", "must",
        "verdict"], [[
            rate_text(rate["real"].median), rate_text(rate["empty"].median), share.text(),
            f"{cpu['real'].median:.3f}", f"{cpu['empty'].median:.3f}", cpu["real"].over(cpu["empty"]).text(),
            f"{busy['real']:.0%} / {busy['empty']:.0%}",
            f">= {GENERATOR_MUST / 1e6:.0f} M, or >= {GENERATOR_SHARE} of the empty client's", verdict]])
    return {"rate_ratio": share.values, "cpu_us": {label: value.values for label, value in cpu.items()}}


# --- a second opinion -----------------------------------------------------------------------------------------------


def memtier(program, server, cpus, arguments, seconds):
    """One run of memtier_benchmark; its totals."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        where = ["-S", server.path] if server.path else ["-s", "127.0.0.1", "-p", str(server.port)]
        command = [program, *where, "-P", "memcache_text", "-c", str(CONNECTIONS), "-t", "1", "--pipeline", "16",
                   "--key-prefix", "memtier-", "--key-maximum", "100000", "-d", "64", "--hide-histogram",
                   "--json-out-file", out, *arguments]
        if seconds:
            command += ["--test-time", str(int(max(1, seconds)))]
        before_ns = server.cpu_ns()
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                             timeout=300, preexec_fn=rig.pin(cpus))
        used = (server.cpu_ns() - before_ns) / 1e9
        if run.returncode:
            raise RigError(f"{' '.join(command)} ended with {run.returncode}: {run.stdout[-1000:]}")
        with open(out, encoding="utf-8") as source:
            totals = json.load(source)["ALL STATS"]["Totals"]
    return {"command": " ".join(command), "ops_per_second": totals["Ops/sec"], "server_cpu_seconds": used,
            "count": totals["Count"], "p99_us": totals["Percentile Latencies"]["p99.00"] * 1000}


def second_opinion(table):
    """The ratios that another generator finds."""
    program = rig.find_program("memtier_benchmark", "MEMTIER")
    if not program or len(table.programs) < 2:
        return None
    group = Group("tcp", READ_MEMORY_MB, [], [])
    loads = [("TCP, get, 16 deep", ["--ratio", "0:1", "--key-pattern", "R:R"]),
             ("TCP, set 64 B, 16 deep", ["--ratio", "1:0", "--key-pattern", "R:R"])]
    runs, rows, servers = [], [], {}
    try:
        for label in table.programs:
            servers[label] = table.start(label, group)
            memtier(program, servers[label], table.generator_cpus,
                    ["--ratio", "1:0", "--key-pattern", "P:P", "-n", "allkeys"], 0)
            servers[label].settle()
        for name, arguments in loads:
            found = {label: [] for label in servers}
            for number in range(table.options.rounds):
                for label in rig.abba(servers, number):
                    run = memtier(program, servers[label], table.generator_cpus, arguments, table.options.seconds)
                    run.update(load=name, server=label, round=number)
                    runs.append(run)
                    found[label].append(run)
            rate = {label: Figures(run["ops_per_second"] for run in of) for label, of in found.items()}
            cpu = {label: Figures(run["server_cpu_seconds"] * 1e6 / run["count"] for run in of)
                   for label, of in found.items()}
            mine, its = found
            rows.append([name, rate_text(rate[mine].median), rate_text(rate[its].median),
                         rate[mine].over(rate[its]).text(), f"{cpu[mine].median:.2f}", f"{cpu[its].median:.2f}",
                         cpu[mine].over(cpu[its]).text()])
    finally:
        for server in servers.values():
            server.stop()
    version = rig.program_version(program, "--version")
    rig.print_table(f"A second opinion: {version}, 100 k keys, 64 B values. Where it is slower than the servers, the "
                    "ratio of CPU says more", [
                        "load", "halcyon, a second", "memcached", "ratio", "CPU us, halcyon", "memcached", "ratio"], rows)
    return {"version": version, "runs": runs}


# --- main -----------------------------------------------------------------------------------------------------------


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--open-rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each server")
    parser.add_argument("--only", help="loads whose name contains this")
    parser.add_argument("--quick", action="store_true", help="2 rounds of half a second: to see that it runs")
    parser.add_argument("--json", default=os.environ.get("BENCH_JSON"), help="write facts, results and every run here")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.open_rounds, options.seconds = 2, 1, 0.5
    options.bench = rig.find_program("halcyon-bench", "HALCYON_BENCH")
    options.null = rig.find_program("halcyon-null", "HALCYON_NULL")
    return parser, options


def main():
    rig.end_with_servers()
    parser, options = parse()
    halcyond = rig.find_program("halcyond", "HALCYOND")
    if not halcyond or not options.bench:
        parser.error("set HALCYOND and HALCYON_BENCH")
    programs = {"halcyon": halcyond}
    memcached = rig.find_program("memcached", "MEMCACHED")
    if memcached:
        programs["memcached"] = memcached
    else:
        print("no memcached (set MEMCACHED): Halcyon alone")
    facts = rig.machine_facts()
    names = {label: rig.program_version(program) for label, program in programs.items()}
    table = Table(options, programs)
    print(rig.facts_line(facts))
    print(f"{' and '.join(names.values())}, -t {options.threads} on CPUs {table.server_cpus}; halcyon-bench "
          f"-t {table.generator.threads} on CPUs {table.generator_cpus}; {CONNECTIONS} connections, keys of {KEY_SIZE} B; "
          f"reads: {READ_KEYS} keys, 64 B values, -m {READ_MEMORY_MB}; sets: -m {FULL_MEMORY_MB}, full before they are "
          f"measured; {options.rounds} rounds of {options.seconds:g} s")
    failures = []

    def attempt(what, *arguments):
        """A part that fails doesn't take the others' figures along."""
        try:
            return what(*arguments)
        except RigError as reason:
            failures.append(str(reason))
            return None

    for group in GROUPS:
        attempt(table.run_group, group)
    table.progress("")
    print_results(table.results, names)
    for label, refused in table.refused.items():
        if refused:
            print(f"\n{label} refused {refused} sets for want of memory")
    generator = None if options.only else attempt(measure_generator, table)
    opinion = None if options.only else attempt(second_opinion, table)
    for failure in failures:
        print(f"peers: {failure}", file=sys.stderr)
    if options.json:
        rig.write_json(options.json, {
            "facts": facts, "versions": names, "programs": programs, "command": sys.argv,
            "server_cpus": table.server_cpus, "generator_cpus": table.generator_cpus,
            "results": [result.as_json() for result in table.results], "generator": generator, "memtier": opinion,
            "refused": table.refused, "failures": failures, "runs": table.runs})
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
