#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Halcyon beside the memcached of this machine: one table, and the same as JSON.

Usage: peers.py [--seconds S] [--rounds N] [--memory MB] [--json FILE]

$HALCYOND and $HALCYON_BENCH name our programs; without memcached only Halcyon is measured. Both serve with one thread
over a Unix socket and over TCP, unpipelined and with many requests under way, and take turns in every round, because
a machine's speed drifts: compare the columns of one run, not two runs. Each figure is the median of the rounds.
It is no gate: it fails only when a server does not serve.
"""
import argparse
import json
import os
import pwd
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CASES = [
    # name, transport, arguments of halcyon-bench
    ("unix, 1 under way", "unix", ["-P", "1"]),
    ("unix, 16 under way", "unix", ["-P", "16"]),
    ("tcp, 1 under way", "tcp", ["-P", "1"]),
    ("tcp, 16 under way", "tcp", ["-P", "16"]),
    ("tcp, 64 under way", "tcp", ["-P", "64"]),
    ("tcp, 16 under way, 4 KiB", "tcp", ["-P", "16", "-V", "4096", "-k", "10000"]),
    ("tcp, half sets, 16 under way", "tcp", ["-P", "16", "-r", "1:1"]),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server with one thread, on a Unix socket or on a TCP port of its own."""

    def __init__(self, program, transport, memory_mb, folder):
        common = [program, "-t", "1", "-m", str(memory_mb), "-c", "1024"]
        if os.getuid() == 0:
            common += ["-u", "nobody"]
        if transport == "unix":
            path = os.path.join(folder, "socket")
            common += ["-s", path, "-a", "0777"]
            self.address = ["-u", path]
            target = (socket.AF_UNIX, path)
        else:
            port = free_port()
            common += ["-l", "127.0.0.1", "-p", str(port), "-U", "0"]
            self.address = ["-s", f"127.0.0.1:{port}"]
            target = (socket.AF_INET, ("127.0.0.1", port))
        self.process = subprocess.Popen(common, stdin=subprocess.DEVNULL)
        self.wait(*target)

    def wait(self, family, address):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                sys.exit(f"{self.process.args[0]} ended with {self.process.returncode}")
            with socket.socket(family) as probe:
                try:
                    probe.connect(address)
                    return
                except OSError:
                    time.sleep(0.02)
        sys.exit(f"{self.process.args[0]} does not listen")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def measure(bench, program, case, options):
    """One run: the server starts empty, every key is set, then the mix runs. Returns the bench's summary."""
    name, transport, arguments = case
    with tempfile.TemporaryDirectory() as folder:
        if os.getuid() == 0:
            os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
        server = Server(program, transport, options.memory, folder)
        try:
            command = [bench, "--json", "--quiet", "--fill", "-T", str(options.seconds), *server.address, *arguments]
            run = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        finally:
            server.stop()
    if run.returncode:
        sys.exit(f"{name}: {' '.join(command)} ended with {run.returncode}")
    return json.loads(run.stdout)


def main():
    parser = argparse.ArgumentParser(description="Halcyon beside memcached")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, default=256, help="-m of both, in MB")
    parser.add_argument("--json", help="write every run's summary here")
    options = parser.parse_args()
    bench = os.environ["HALCYON_BENCH"]
    servers = {"halcyond": os.environ["HALCYOND"]}
    if shutil.which("memcached"):
        servers["memcached"] = shutil.which("memcached")
    else:
        print("memcached is not installed: Halcyon alone")

    results = []
    print(f"{'':30}" + "".join(f"{name + ' req/s':>20}{'p99 us':>10}" for name in servers) + f"{'ratio':>8}")
    for case in CASES:
        rates = {name: [] for name in servers}
        tails = {name: [] for name in servers}
        for number in range(options.rounds):
            for name, program in servers.items():
                summary = measure(bench, program, case, options)
                rates[name].append(summary["requests_per_second"])
                tails[name].append(summary["latency_p99_us"])
                results.append({"server": name, "case": case[0], "round": number, **summary})
        line = f"{case[0]:30}"
        for name in servers:
            line += f"{statistics.median(rates[name]):20,.0f}{statistics.median(tails[name]):10,.0f}"
        if len(servers) == 2:
            ratio = statistics.median(rates["halcyond"]) / statistics.median(rates["memcached"])
            line += f"{ratio:8.2f}"
        print(line, flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=1)
            out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
