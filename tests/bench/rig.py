# SPDX-License-Identifier: BSD-2-Clause
"""What the speed benchmarks share: servers that are pinned and whose CPU is read in nanoseconds, the load generator,
rounds in the order A B B A, medians with their spread, and the machine's facts.

It knows no table and no target. Standard library only, so that a benchmark runs from carried binaries.
"""

import glob
import json
import os
import platform
import pwd
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 20


class RigError(Exception):
    """A server or the generator did not do its part: the figures would mean nothing."""


def end_with_servers():
    """A script that is ended by SIGTERM ends its servers too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


# --- the machine ----------------------------------------------------------------------------------------------------


def read_text(path, otherwise=""):
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read().strip()
    except OSError:
        return otherwise


def own_cpus():
    """The CPUs that this process may use, one of each core first, so that neighbours in the list share no core."""
    cpus = sorted(os.sched_getaffinity(0))

    def rank(cpu):
        siblings = parse_cpus(read_text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", str(cpu)))
        return (siblings.index(cpu) if cpu in siblings else 0, cpu)

    return sorted(cpus, key=rank)


def parse_cpus(text):
    """The numbers of a list such as 0-3,8."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.strip():
            found.extend(range(int(first), int(last or first) + 1))
    return found


def cores():
    """How many cores the CPUs of own_cpus are spread over."""
    return len({read_text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", str(cpu))
                for cpu in os.sched_getaffinity(0)})


def machine_facts():
    """What a reader needs to compare figures of two machines."""
    cpuinfo = read_text("/proc/cpuinfo")
    model = re.search(r"^(?:model name|Processor)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    memory = re.search(r"MemTotal:\s*(\d+)", read_text("/proc/meminfo"))
    folder = "/sys/devices/system/cpu/vulnerabilities"
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": model.group(1) if model else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "cores": cores(),
        "hypervisor": "hypervisor" in cpuinfo,
        "memory_mib": int(memory.group(1)) // 1024 if memory else None,
        "governor": read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "not told"),
        "kernel": platform.release(),
        "kernel_version": read_text("/proc/version", "not told"),
        "cpu_time_by": "schedstat" if os.path.exists("/proc/self/schedstat") else "ticks of /proc/PID/stat",
        "mitigations": {os.path.basename(path): read_text(path) for path in sorted(glob.glob(folder + "/*"))},
        "transparent_hugepages": read_text("/sys/kernel/mm/transparent_hugepage/enabled", "not told"),
        "hugepages": read_text("/proc/sys/vm/nr_hugepages", "not told"),
        "tcp_congestion_control": read_text("/proc/sys/net/ipv4/tcp_congestion_control", "not told"),
        "load_average_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def facts_line(facts):
    return (f"{facts['cpu']}, {facts['cpus']} CPUs on {facts['cores']} cores"
            f"{' (virtual machine)' if facts['hypervisor'] else ''}, Linux {facts['kernel']}, "
            f"TCP congestion control {facts['tcp_congestion_control']}, "
            f"transparent huge pages {facts['transparent_hugepages']}, load average {facts['load_average_at_start']:.2f}")


def program_version(program, option="-V"):
    """A program's name and version as it tells them itself."""
    run = subprocess.run([program, option], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = run.stdout.strip().splitlines()
    return lines[0] if lines else os.path.basename(program)


def find_program(name, variable, given=None):
    """The path of a program: what was given, else the variable's, else the one in PATH; None when there is none."""
    path = given or os.environ.get(variable) or shutil.which(name)
    return os.path.abspath(path) if path and os.access(path, os.X_OK) else None


# --- servers --------------------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def pin(cpus):
    """For preexec_fn: the child runs on these CPUs only."""
    return (lambda: os.sched_setaffinity(0, cpus)) if cpus else None


def user_options():
    """memcached and Halcyon want a user to become when root starts them."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("nobody")
        return ["-u", "nobody"]
    except KeyError:
        return ["-u", "root"]


class Server:
    """A running server on a Unix socket or a loopback TCP port of its own, for a with statement.

    command_of(self) tells the command line once the address is known; counts says whether it answers `stats`.
    """

    def __init__(self, label, command_of, transport, cpus, counts=True):
        self.label = label
        self.counts = counts
        self.cpus = cpus
        self.folder = tempfile.mkdtemp(prefix="halcyon-rig-")
        os.chmod(self.folder, 0o777)
        self.path = os.path.join(self.folder, "socket") if transport == "unix" else None
        self.port = None if transport == "unix" else free_port()
        self.stderr_path = os.path.join(self.folder, "stderr")
        self.command = command_of(self)
        with open(self.stderr_path, "wb") as err:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=err, stderr=err,
                                            preexec_fn=pin(cpus))
        try:
            self._wait()
        except RigError:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.stop()
        return False

    @property
    def pid(self):
        return self.process.pid

    def address(self):
        """The generator's options for this server."""
        return ["-u", self.path] if self.path else ["-s", f"127.0.0.1:{self.port}"]

    def connect(self):
        sock = socket.socket(socket.AF_UNIX if self.path else socket.AF_INET, socket.SOCK_STREAM)
        sock.settimeout(10)
        sock.connect(self.path or ("127.0.0.1", self.port))
        return sock

    def _wait(self):
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RigError(f"{' '.join(self.command)} ended with {self.process.returncode}: {self.stderr()}")
            try:
                self.connect().close()
                return
            except OSError:
                time.sleep(0.02)
        raise RigError(f"{' '.join(self.command)} does not listen: {self.stderr()}")

    def stderr(self):
        return read_text(self.stderr_path)[-2000:]

    def cpu_ns(self):
        """CPU time that all threads have used until now: by the scheduler, else in the ticks of /proc/PID/stat."""
        paths = glob.glob(f"/proc/{self.pid}/task/*/schedstat")
        if not paths:
            fields = read_text(f"/proc/{self.pid}/stat").rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return sum(int(read_text(path, "0").split()[0]) for path in paths)

    def settle(self, timeout=10):
        """Waits until the server does next to nothing by itself (a table that grows, pages that are given back)."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            before = self.cpu_ns()
            time.sleep(0.1)
            if self.cpu_ns() - before < 2_000_000:
                return

    def stats(self, what=""):
        """`stats` as a dict of strings; empty where the server has none."""
        if not self.counts:
            return {}
        with self.connect() as sock:
            sock.sendall(f"stats {what}".strip().encode() + b"\r\n")
            data = b""
            while not data.endswith((b"END\r\n", b"ERROR\r\n")):
                part = sock.recv(65536)
                if not part:
                    break
                data += part
        rows = (line.split(" ", 2) for line in data.decode("latin-1").split("\r\n"))
        return {row[1]: row[2] for row in rows if row[0] == "STAT" and len(row) == 3}

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def cache_server(label, program, transport, cpus, threads=1, memory_mb=1024, connections=1024, before=(), user=None):
    """memcached or Halcyon: their options are the same. before stands in front of the program's path (valgrind)."""

    def command_of(server):
        where = ["-s", server.path, "-a", "0777"] if server.path else \
            ["-l", "127.0.0.1", "-p", str(server.port), "-U", "0"]
        return [*before, program, "-t", str(threads), "-m", str(memory_mb), "-c", str(connections),
                *(user_options() if user is None else user), *where]

    return Server(label, command_of, transport, cpus)


# --- the generator --------------------------------------------------------------------------------------------------


class Generator:
    """halcyon-bench, pinned; it knows which options this build of it has."""

    def __init__(self, program, cpus, threads=None):
        self.program = program
        self.cpus = cpus
        self.threads = threads or len(cpus)
        self.help = subprocess.run([program, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout

    def has(self, option):
        return re.search(r"(?<![\w-])" + re.escape(option) + r"(?![\w-])", self.help) is not None

    def command(self, server, arguments):
        # With a CPU for each thread, each has its own.
        own = self.cpus and len(self.cpus) == self.threads > 1 and self.has("--pin")
        return [self.program, "--json", "--quiet", "-t", str(self.threads),
                *(["--pin", ",".join(map(str, self.cpus))] if own else []), *server.address(), *map(str, arguments)]

    def run(self, server, arguments, timeout=120):
        """Runs it to its end. Its summary, its command line, and what the server used and counted meanwhile."""
        command = self.command(server, arguments)
        before_ns, before = server.cpu_ns(), server.stats()
        try:
            run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                                 timeout=timeout, preexec_fn=pin(self.cpus))
        except subprocess.TimeoutExpired:
            raise RigError(f"{' '.join(command)} did not end in {timeout} s")
        used_ns, after = server.cpu_ns() - before_ns, server.stats()
        if run.returncode:
            raise RigError(f"{server.label}: {' '.join(command)} ended with {run.returncode}: "
                           f"{run.stderr.strip()[:500]}")
        summary = json.loads(run.stdout)
        if "--fill-only" not in arguments and not summary["requests"]:
            raise RigError(f"{' '.join(command)} asked nothing: {run.stdout[:2000]}")
        summary["command"] = " ".join(command)
        summary["server_cpu_seconds"] = used_ns / 1e9
        summary["counted"] = counter_changes(before, after)
        return summary

    def fill(self, server, arguments):
        """Sets every key; returns how many sets the server refused."""
        refusals = ["--refusals"] if self.has("--refusals") else []
        summary = self.run(server, ["--fill-only", "-P", "16", *refusals, *arguments], timeout=600)
        server.settle()
        return summary.get("fill_refused", 0)


def counter_changes(before, after):
    changes = {}
    for name, value in after.items():
        if name in before and value.isdigit() and before[name].isdigit() and value != before[name]:
            changes[name] = int(value) - int(before[name])
    return changes


def check_counters(summary, label):
    """The server must have counted what the generator did."""
    counted = summary["counted"]
    if not counted:
        return
    expected = {
        "cmd_get": summary["gets"],
        "cmd_set": summary["sets"],
        "cmd_touch": summary.get("touches", 0) + summary.get("gats", 0),
        "incr_hits": summary.get("incrs", 0),
    }
    told = {name: counted.get(name, 0) for name in expected}
    told["incr_hits"] += counted.get("incr_misses", 0)
    if summary.get("refused", 0):
        del expected["cmd_set"]  # memcached doesn't count those
    for name, count in expected.items():
        if told[name] != count:
            raise RigError(f"{label}: {name} is {told[name]}, the generator counted {count}: {summary['command']}")


def operations(summary):
    """How many keys were read or written: a multi-get of 32 counts 32."""
    return summary["gets"] + summary["sets"] + sum(summary.get(name, 0) for name in ("gats", "touches", "incrs"))


def generator_busy(summary, threads=1):
    """The share of its CPUs' time that the generator used in the measured phase."""
    used = summary["bench_cpu_us_a_request"] * summary["requests"] / 1e6
    return used / summary["seconds"] / threads if summary["seconds"] else 0


def server_busy(summary, threads=1):
    return summary["server_cpu_seconds"] / summary["seconds"] / threads if summary["seconds"] else 0


# --- rounds and figures ---------------------------------------------------------------------------------------------


def abba(names, number):
    """The order of a round: forward, then backward, so that drift meets both alike."""
    return list(names) if number % 2 == 0 else list(reversed(names))


class Figures:
    """One figure of one thing over the rounds."""

    def __init__(self, values):
        self.values = list(values)

    @property
    def median(self):
        return statistics.median(self.values)

    @property
    def low(self):
        return min(self.values)

    @property
    def high(self):
        return max(self.values)

    def over(self, other):
        """The ratios of the same rounds."""
        return Figures(mine / its for mine, its in zip(self.values, other.values) if its)

    def __bool__(self):
        return bool(self.values)

    def text(self, form="{:.2f}"):
        """The median with the lowest and the highest."""
        if not self.values:
            return "-"
        return f"{form.format(self.median)} ({form.format(self.low)}-{form.format(self.high)})"


def rate_text(value):
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} k"


def print_table(title, header, rows, out=sys.stdout):
    """A Markdown table that is aligned too."""
    lines = [header, *rows]
    widths = [max(len(str(line[i])) for line in lines) for i in range(len(header))]
    print(f"\n{title}\n", file=out)
    for number, line in enumerate(lines):
        print("| " + " | ".join(str(cell).ljust(width) for cell, width in zip(line, widths)) + " |", file=out)
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|", file=out)
    out.flush()


def write_json(path, content):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(content, out, indent=1)
        out.write("\n")
