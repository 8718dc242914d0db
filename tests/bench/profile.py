#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Instructions a request in user space, by valgrind's callgrind, beside the stored ones; or where time goes, by perf.

    profile.py [--only PATTERN] [--requests N] [--top N] [--stored FILE] [--update] [--json FILE]
    profile.py --perf [--only PATTERN] [--top N] [--seconds S]

One worker serves a fixed number of requests, then twice as many, over a Unix socket; the difference of the two counts has no
start, no connect and no fill in it. The kernel isn't counted. The worker's instructions and those of all other threads are
told apart: sets go into full memory, and what making room costs hangs on the instant at which it is done.

What is stored (tests/bench/profile.json) names its compiler and flags: a rise of the worker's count by more than 3%, by the
same ones, is printed as REGRESSION. --update stores what was measured. Callgrind's processor has no AVX-512.

--perf samples the running server instead (perf record on cpu-clock), kernel included.

Exit status 0 also after a regression: this is a table, not a gate. 77 where valgrind or perf is absent.
"""

import argparse
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import rig
from rig import RigError

HERE = os.path.dirname(os.path.abspath(__file__))
REGRESSION = 1.03
SKIPPED = 77
FUNCTIONS_STORED = 12
PERF_PERIOD_NS = 500000
KEYS = 10000
MEMORY_MB = 32
CONNECTIONS = ["-c", "50"]


class Load:
    def __init__(self, name, arguments, value_size=64, multiget=1, prefix="bench-", needs=()):
        self.name = name
        self.keys = [*CONNECTIONS, "-k", str(KEYS), "-K", "16", "-V", str(value_size), "--key-prefix", prefix]
        self.arguments = [*self.keys, *arguments]
        self.multiget = multiget
        self.needs = needs
        # Sets are measured when they have written all memory twice.
        self.soak = 2 * MEMORY_MB * 1024 * 1024 // (value_size + 32) if "1:0" in arguments else 0


# Those that change the memory's state come last, so that the others' figures don't hang on how long they ran.
LOADS = [
    Load("get, 16 deep", ["-r", "0:1", "-P", "16"]),
    Load("get, 1 deep", ["-r", "0:1", "-P", "1"]),
    Load("get of 32 keys, a key", ["-r", "0:1", "-P", "1", "-g", "32"], multiget=32),
    Load("get of 1 KiB, 16 deep", ["-r", "0:1", "-P", "16"], value_size=1024, prefix="kilo-"),
    Load("meta get, 16 deep", ["--protocol", "meta", "-r", "0:1", "-P", "16"], needs=("--protocol",)),
    Load("binary get, 16 deep", ["--protocol", "binary", "-r", "0:1", "-P", "16"], needs=("--protocol",)),
    Load("touch, 16 deep", ["--mix", "touch=1", "-P", "16"], needs=("--mix",)),
    Load("gat, 16 deep", ["--mix", "gat=1", "-P", "16"], needs=("--mix",)),
    Load("incr, 16 deep", ["--mix", "incr=1", "-P", "16"], prefix="number-", needs=("--mix",)),
    Load("set of 64 B, 16 deep", ["-r", "1:0", "-P", "16"]),
    Load("set of 1 KiB, 16 deep", ["-r", "1:0", "-P", "16"], value_size=1024, prefix="kilo-"),
]


def compiler_of(program):
    """What the program itself says of its compiler, and the flags of the build where make told them."""
    run = subprocess.run(["readelf", "-p", ".comment", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         text=True, check=False)
    found = re.findall(r"\]\s+(.*)", run.stdout)
    return {"compiler": "; ".join(sorted(set(found))) or "not told", "flags": os.environ.get("BENCH_CFLAGS", "not told")}


# --- callgrind ------------------------------------------------------------------------------------------------------


class Callgrind:
    """A server under callgrind, which counts nothing until it is told to."""

    def __init__(self, program, folder):
        self.out = os.path.join(folder, "callgrind.out")
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--fair-sched=yes", "--dump-line=no",
                   "--separate-threads=yes",
                   f"--callgrind-out-file={self.out}"]
        os.chmod(folder, 0o777)
        self.server = rig.cache_server("callgrind", program, "unix", None, 1, MEMORY_MB, before=command,
                                       user=[] if os.geteuid() else ["-u", "root"])

    def control(self, *arguments):
        run = subprocess.run(["callgrind_control", *arguments, str(self.server.pid)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode or "Error" in run.stdout:
            raise RigError(f"callgrind_control {' '.join(arguments)}: {run.stdout.strip()}")

    def dump(self):
        """What was executed since the last dump: {(thread, function): instructions}."""
        before = set(glob.glob(self.out + ".*"))
        self.control("--dump")
        costs = {}
        for path in set(glob.glob(self.out + ".*")) - before:
            thread = int(path.rpartition("-")[2])  # callgrind.out.PID.DUMP-THREAD
            for function, cost in parse_callgrind(path).items():
                costs[thread, function] = costs.get((thread, function), 0) + cost
            os.unlink(path)
        if not costs:
            raise RigError("callgrind wrote no dump")
        return costs


def parse_callgrind(path):
    """Each function's own instructions, out of callgrind's format (its manual, 'Callgrind Format Specification')."""
    names, costs = {}, {}
    function, is_call = None, False
    with open(path, encoding="utf-8", errors="replace") as source:
        for line in source:
            if line.startswith("fn="):
                function = full_name(line[3:].strip(), names)
            elif line.startswith("cfn="):
                full_name(line[4:].strip(), names)
            elif line.startswith("calls="):
                is_call = True  # the next line's cost is the callee's
            elif line[:1].isdigit() or line[:1] in "+-*":
                if not is_call and function:
                    words = line.split()
                    costs[function] = costs.get(function, 0) + (int(words[1]) if len(words) > 1 else 0)
                is_call = False
    return costs


def full_name(text, names):
    """A name is written once, '(7) name', and is '(7)' from then on."""
    match = re.match(r"\((\d+)\)\s*(.*)", text)
    if not match:
        return text
    if match.group(2):
        names[match.group(1)] = re.sub(r"'\d+$", "", match.group(2))
    return names.get(match.group(1), text)


def count_load(grind, generator, load, requests):
    """{(thread, function): instructions a request} of a load."""
    # Room is made in waves: sets run for longer.
    requests = (3 if load.soak else 1) * requests // load.multiget

    def run(count):
        summary = generator.run(grind.server, [*load.arguments, "-n", count, "--timeout", "60"], timeout=300)
        for asked, found in (("gets", "hits"), ("gats", "gat_hits"), ("touches", "touch_hits"), ("incrs", "incr_hits")):
            if summary.get(asked) != summary.get(found):
                raise RigError(f"{load.name}: {found} is not {asked}; the count would be another load's")

    if load.soak:
        run(load.soak)
    grind.control("--instr=on")
    run(max(1, requests // 4))  # what is only done once: pages, lazy binding
    grind.dump()
    run(requests)
    short = grind.dump()
    run(2 * requests)
    long = grind.dump()
    grind.control("--instr=off")
    operations = requests * load.multiget
    return {name: (long.get(name, 0) - short.get(name, 0)) / operations for name in long}


def summarize(costs, worker):
    """What is stored of a load."""
    own = sorted(((name, cost) for (thread, name), cost in costs.items() if thread == worker), key=lambda row: -row[1])
    others = sum(cost for (thread, _), cost in costs.items() if thread != worker)
    return {"worker": round(sum(cost for _, cost in own), 1), "others": round(others, 1),
            "top": [[name, round(cost, 1)] for name, cost in own[:FUNCTIONS_STORED]]}


def busiest(costs):
    """The thread that did most."""
    sums = {}
    for (thread, _), cost in costs.items():
        sums[thread] = sums.get(thread, 0) + cost
    return max(sums, key=sums.get)


def measure(program, bench, loads, requests):
    results, worker = {}, None
    generator = rig.Generator(bench, None, 1)
    with tempfile.TemporaryDirectory() as folder:
        grind = Callgrind(program, folder)
        with grind.server:
            wanted = []
            for load in loads:
                missing = [option for option in load.needs if not generator.has(option)]
                if missing:
                    print(f"{load.name}: not measured, this halcyon-bench has no {', '.join(missing)}")
                else:
                    wanted.append(load)
            filled = []
            for load in wanted:
                if load.keys not in filled:
                    filled.append(load.keys)
                    generator.run(grind.server, [*fill_arguments(load), "--fill-only", "-P", "16", "--timeout", "60"],
                                  timeout=300)
            for load in wanted:
                if sys.stderr.isatty():
                    print(f"\r\033[K{load.name}", end="", file=sys.stderr, flush=True)
                costs = count_load(grind, generator, load, requests)
                worker = worker or busiest(costs)
                results[load.name] = summarize(costs, worker)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return results


def fill_arguments(load):
    """The keys that incr changes must hold numbers."""
    return [*load.keys, "--mix", "incr=1"] if "incr=1" in load.arguments else load.keys


def print_comparison(results, built, stored, top):
    old_loads = stored.get("loads", {})
    same = all(stored.get(name) == built[name] for name in ("compiler", "flags"))
    rows, regressions = [], 0
    for name, result in results.items():
        old = old_loads.get(name, {})
        was, now = old.get("worker"), result["worker"]
        word = ""
        if was and now > REGRESSION * was:
            word = "REGRESSION" if same else "more, but another compiler or other flags"
            regressions += same
        elif was and now * REGRESSION < was:
            word = "fewer"
        functions = ", ".join(f"{function.split('@')[0]} {cost / now:.0%}" for function, cost in result["top"][:top])
        rows.append([name, f"{was:.0f}" if was else "-", f"{now:.0f}", f"{now / was:.3f}" if was else "-", word,
                     f"{old['others']:.0f}" if was else "-", f"{result['others']:.0f}", functions])
    rig.print_table("Instructions a request in user space (callgrind, one worker, Unix socket, 50 connections)",
                    ["load", "worker, stored", "now", "ratio", "", "other threads, stored", "now", "worker: most of it in"],
                    rows)
    print(f"\nBuilt by {built['compiler']}, flags {built['flags']}")
    if old_loads and not same:
        print(f"Stored: {stored.get('compiler')}, flags {stored.get('flags')}")
    if regressions:
        print(f"{regressions} REGRESSION{'S' if regressions > 1 else ''} of more than {REGRESSION - 1:.0%}")


def store(path, built, loads):
    """A line a function, so that a change of the file can be read."""
    text = json.dumps({**built, "loads": loads}, indent=1)
    with open(path, "w", encoding="utf-8") as out:
        out.write(re.sub(r"\[\s+(\"[^\"]*\"),\s+([\d.-]+)\s+\]", r"[\1, \2]", text) + "\n")


# --- perf -----------------------------------------------------------------------------------------------------------


def sample(program, bench, loads, seconds, top):
    """perf's samples of each load: the kernel's share and the functions with most of them."""
    cpus = rig.own_cpus()
    generator = rig.Generator(bench, cpus[1:] or cpus, 1)
    with tempfile.TemporaryDirectory() as folder, \
            rig.cache_server("perf", program, "tcp", cpus[:1], 1, 1024) as server:
        for load in loads:
            if any(not generator.has(option) for option in load.needs):
                continue
            generator.run(server, [*fill_arguments(load), "--fill-only", "-P", "16"])
            data = os.path.join(folder, "perf.data")
            recorder = subprocess.Popen(["perf", "record", "-q", "-e", "cpu-clock", "-c", str(PERF_PERIOD_NS), "-o", data,
                                         "-p", str(server.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while recorder.poll() is None and not os.path.exists(data):
                time.sleep(0.01)
            summary = generator.run(server, [*load.arguments, "-T", seconds])
            recorder.send_signal(signal.SIGINT)
            recorder.wait(30)
            report = subprocess.run(["perf", "report", "-i", data, "--stdio", "-q", "--sort", "symbol"],
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
            shares = re.findall(r"^\s*([\d.]+)%\s+\[([k.])\]\s+(\S+)", report, re.MULTILINE)
            kernel = sum(float(share) for share, where, _ in shares if where == "k")
            operations = rig.operations(summary)
            used = summary["server_cpu_seconds"] * 1e6 / operations
            print(f"\n{load.name}, TCP: {used:.2f} us of CPU a request, {kernel:.0f}% in the kernel")
            if not shares:
                print("  no samples: may this user run perf?")
            for share, where, name in shares[:top]:
                print(f"  {share:>6}%  {'kernel' if where == 'k' else 'user  '}  {name}")
            sys.stdout.flush()


# --- main -----------------------------------------------------------------------------------------------------------


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="loads in whose name this regular expression is found")
    parser.add_argument("--requests", type=int, default=40000, help="of the shorter run")
    parser.add_argument("--stored", default=os.path.join(HERE, "profile.json"))
    parser.add_argument("--update", action="store_true", help="store what was measured")
    parser.add_argument("--top", type=int, help="functions to name; 3 in the table, 20 with --perf")
    parser.add_argument("--json", help="write what was measured here")
    parser.add_argument("--perf", action="store_true", help="sample with perf instead")
    parser.add_argument("--seconds", type=float, default=4, help="of each load with --perf")
    options = parser.parse_args()
    options.program = rig.find_program("halcyond", "HALCYOND")
    options.bench = rig.find_program("halcyon-bench", "HALCYON_BENCH")
    if not options.program or not options.bench:
        parser.error("set HALCYOND and HALCYON_BENCH")
    return options


def main():
    rig.end_with_servers()
    options = parse()
    loads = [load for load in LOADS if not options.only or re.search(options.only, load.name)]
    tools = ["perf"] if options.perf else ["valgrind", "callgrind_control", "readelf"]
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        print(f"profile: {', '.join(missing)} not installed, nothing was measured")
        return SKIPPED
    try:
        if options.perf:
            sample(options.program, options.bench, loads, options.seconds, options.top or 20)
            return 0
        results = measure(options.program, options.bench, loads, options.requests)
    except RigError as reason:
        print(f"profile: {reason}", file=sys.stderr)
        return 1
    built = compiler_of(options.program)
    built["valgrind"] = rig.program_version("valgrind", "--version")
    stored = json.loads(rig.read_text(options.stored, "{}") or "{}")
    print_comparison(results, built, stored, options.top or 3)
    if options.json:
        rig.write_json(options.json, {**built, "loads": results})
    if options.update:
        store(options.stored, built, {**stored.get("loads", {}), **results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
