#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Halcyon's flash tier beside memcached's extstore and beside fio, on one file system, as a table and as JSON.

    flash.py [--quick] [--only PART] [--folder FOLDER] [--rounds N] [--seconds S] [--json FILE] [--plot FILE]

PART: reads, fill, latency, writes, index, restart, crossover. $HALCYOND and $HALCYON_BENCH name our programs, $MEMCACHED the
peer (else the one in PATH), which must have extstore.

How it is measured. Each server has a file of its own in the folder, and its own memory cgroup: extstore reads and writes
through the page cache, so before reads are measured its cgroup is limited to what is resident and 5% of the data. Halcyon and
fio bypass the page cache. -m is chosen so that everything is on flash: for Halcyon it holds the index and little more, for
extstore the headers that it keeps of each item. Servers and fio take turns in rounds A B B A; a ratio is that of one round,
and the table has the median, the lowest and the highest. A read that DRAM answered isn't counted: Halcyon's figures are
reads from flash a second. Neither servers nor generator are pinned: where reads wait for the device, fio has all of the
machine too.

A virtual machine's disk answers from its host's memory: the figures compare, and say nothing of an SSD. It is no gate: 'missed'
is printed and does not fail. It fails when a server does not serve.
"""

import argparse
import os
import subprocess
import sys
import time

import flash_crossover
import flash_restart
import rig
from flash_lib import HEADER, MIB, Context, Row, drop_caches, flash_share, reads_a_second, run_fio
from rig import Figures, RigError, rate_text

DEPTH = 128
CONNECTIONS, PIPELINE = 8, 16  # 128 requests under way in all


def keys(count, value_size, key_size=16, prefix=None):
    return ["-k", str(count), "-K", str(key_size), "-V", str(value_size), *(["--key-prefix", prefix] if prefix else [])]


# --- reads ----------------------------------------------------------------------------------------------------------


class ReadLoad:
    """Values of one size, all on flash."""

    def __init__(self, context, value_size):
        self.value_size = value_size
        data_mb = context.pick(512, 4096) if value_size >= 1024 else context.pick(256, 1024)
        self.count = data_mb * MIB // (value_size + 60)
        self.data_bytes = self.count * (value_size + 60)
        self.flash_mb = max(512, 2 * data_mb)
        self.keys = keys(self.count, value_size)
        # Halcyon: its index, 12 bytes a key, its buffers, and a little. extstore: about 110 bytes a key, and slack.
        self.memory_mb = {"halcyon": 24 + self.count * 14 // MIB, "memcached": 192 + self.count * 150 // MIB}
        # Whatever was idle for a second goes to flash, whatever memory is free; no item is too small.
        self.ext = {"ext_item_size": min(512, max(40, value_size // 2)), "ext_item_age": 1, "ext_recache_rate": 0}
        self.gets = [*self.keys, "--mix", "get=1", "-c", str(CONNECTIONS), "-P", str(PIPELINE)]


def measure_reads(context, value_size):
    load = ReadLoad(context, value_size)
    name = f"GET of {value_size} B, all on flash"
    servers, missing, caps = {}, {}, {}
    try:
        for contender in context.contenders:
            server = contender.start(load.memory_mb[contender.label], load.flash_mb, ext=load.ext)
            servers[contender.label] = server
            missing[contender.label] = context.fill_whole(server, load.keys, load.count, name)
            if not contender.is_halcyon:
                # What is still in memory goes to flash: it is idle, and nothing else comes.
                time.sleep(2)
                server.settle_flash()
                caps[contender.label] = server.cap_page_cache(load.data_bytes)
        probe = context.run(servers["halcyon"], [*load.gets, "-T", "0.5"], name + ", probe")
        reads = max(1, probe["flash"]["reads"])
        io_bytes = probe["flash"]["read_bytes"] / reads
        block = max(512, int(-(-io_bytes // 512) * 512))
        order = [*servers, *(["fio"] if context.fio and value_size >= 1024 else [])]
        found = {label: [] for label in order}
        for server in servers.values():
            context.run(server, [*load.gets, "-T", "0.5"], name + ", warm-up")
        for number in range(context.rounds):
            for label in rig.abba(order, number):
                if label == "fio":
                    found[label].append(run_fio(context, load.data_bytes // MIB, block, DEPTH, context.seconds))
                else:
                    found[label].append(context.run(servers[label], [*load.gets, "-T", context.seconds], name))
    finally:
        for server in servers.values():
            server.stop()
    return load, found, io_bytes, block, missing, caps


def part_reads(context):
    rows = []
    for value_size in (4096, 8192, 300, 64):
        load, found, io_bytes, block, missing, caps = measure_reads(context, value_size)
        mine = found["halcyon"]
        rate = Figures(reads_a_second(run) for run in mine)
        share = Figures(flash_share(run) for run in mine)
        cpu = Figures(run["server_cpu_seconds"] * 1e6 / run["gets"] / flash_share(run) for run in mine)
        note = (f"{CONNECTIONS} connections {PIPELINE} deep, {load.count} keys, -m {load.memory_mb['halcyon']}; "
                f"{share.median:.1%} from flash; {missing['halcyon']:.2%} missing")
        if "fio" in found:
            fio = Figures(run["reads_per_second"] for run in found["fio"])
            rows.append(Row(f"GET {value_size} B, over fio", f"{rate_text(rate.median)}/s", f"{rate_text(fio.median)}/s",
                            rate.over(fio), 0.90, 0.95, note=note + f"; fio randread {block} B at depth {DEPTH}"))
        rows.append(Row(f"GET {value_size} B, I/O over value", f"{io_bytes:.0f} B", "-", io_bytes / value_size,
                        *((1.15, 1.08) if value_size >= 4096 else ()), low=True, form="{:.3f}",
                        note="bytes read a read, by the daemon's counters"))
        if "memcached" not in found:
            continue
        its = found["memcached"]
        peer_rate = Figures(reads_a_second(run) for run in its)
        peer_share = Figures(flash_share(run) for run in its)
        peer_cpu = Figures(run["server_cpu_seconds"] * 1e6 / run["gets"] / max(0.01, flash_share(run)) for run in its)
        peer_note = (f"extstore: -m {load.memory_mb['memcached']}, {context.ext_threads} I/O threads, ext_item_size "
                     f"{load.ext['ext_item_size']}, {peer_share.median:.1%} from flash, {missing['memcached']:.2%} missing, "
                     f"{caps['memcached']}")
        large = value_size >= 1024
        rows.append(Row(f"GET {value_size} B, server CPU", f"{cpu.median:.1f} us", f"{peer_cpu.median:.1f} us",
                        cpu.over(peer_cpu), *((0.50, 0.25) if large else ()), low=True, note=peer_note))
        rows.append(Row(f"GET {value_size} B, over extstore", f"{rate_text(rate.median)}/s",
                        f"{rate_text(peer_rate.median)}/s", rate.over(peer_rate), *(() if large else (2, 5)),
                        note=note if not large else peer_note))
    return rows


# --- filling at full speed ------------------------------------------------------------------------------------------


def part_fill(context):
    """8 KiB values as fast as they are taken, with room for all of them on flash."""
    data_mb = context.pick(1024, 4096)
    count = data_mb * MIB // 8192
    load = keys(count, 8192)
    lost = {contender.label: [] for contender in context.contenders}
    speed = {label: [] for label in lost}
    for number in range(context.pick(1, 3)):
        for contender in context.contenders if number % 2 == 0 else reversed(context.contenders):
            server = contender.start(128, 2 * data_mb)
            try:
                summary = context.fill(server, load, "fill at full speed", connections=16, pipeline=8)
                server.settle_flash()
                missing = context.misses(server, load, count, "fill at full speed, read back")
                lost[contender.label].append(missing / count)
                speed[contender.label].append(count / summary["fill_seconds"])
            finally:
                server.stop()
    mine, its = Figures(lost["halcyon"]), Figures(lost.get("memcached", []))
    rates = {label: Figures(values) for label, values in speed.items()}
    return [Row("fill at full speed: values lost", f"{mine.median:.2%} at {rate_text(rates['halcyon'].median)} sets/s",
                f"{its.median:.2%} at {rate_text(rates['memcached'].median)} sets/s" if its else "-", mine, 0, 0, low=True,
                form="{:.4f}", note=f"{count} values of 8 KiB, 16 connections 8 deep, -m 128, flash twice as large; then each "
                f"key is read; {rates['halcyon'].median * 8192 / 1e6:.0f} MB/s")]


# --- reads beside a fill --------------------------------------------------------------------------------------------


def open_gets(context, server, load, rate, seconds, what):
    return context.run(server, [*load, "--mix", "get=1", "-c", "16", "--rate", str(rate), "-T", f"{seconds:g}"], what)


def part_latency(context):
    """The 99th percentile of gets from flash, in an open loop, idle and while 8 KiB values are set as fast as it takes them."""
    data_mb, rate = context.pick(256, 1024), 2000
    count = data_mb * MIB // 4096
    load, hot = keys(count, 4096), keys(100, 64, prefix="hot-")
    seconds = context.pick(2.5, 5)
    found = {}
    for contender in context.contenders:
        cells = {"idle": [], "filling": [], "hot": [], "misses": [], "sets": []}
        server = contender.start(96, context.pick(8192, 24576), ext={"ext_item_age": 1})
        try:
            context.fill_whole(server, load, count, "latency")
            context.fill(server, hot, "latency, hot keys", 1, 1)
            if not contender.is_halcyon:
                server.cap_page_cache(data_mb * MIB)
                server.group.set_limit(server.resident() + 512 * MIB)  # room for what is dirty
            for number in range(context.pick(2, 3)):
                idle = open_gets(context, server, load, rate, seconds, "latency, idle")
                cells["idle"].append(idle["latency_p99_us"])
                command = context.generator.command(server, [
                    *keys(10_000_000, 8192, prefix=f"fill{number}-"), "--mix", "set=1", "--keys-by", "sequential", "-c", "4",
                    "-P", "8", "--refusals", "-T", f"{2 * seconds + 2:g}"])
                with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as filler:
                    try:
                        time.sleep(1)
                        before = server.counters()["written_bytes"]
                        busy = open_gets(context, server, load, rate, seconds, "latency, filling")
                        cells["sets"].append((server.counters()["written_bytes"] - before) / busy["seconds"] / 1e6)
                        cells["filling"].append(busy["latency_p99_us"])
                        cells["misses"].append(busy["misses"] / busy["gets"])
                        cells["hot"].append(open_gets(context, server, hot, rate, seconds - 1,
                                                      "latency, DRAM, filling")["latency_p99_us"])
                    finally:
                        filler.terminate()
                        filler.communicate()
                server.settle_flash()
        finally:
            server.stop()
        found[contender.label] = {name: Figures(values) for name, values in cells.items()}
    mine, its = found["halcyon"], found.get("memcached")

    def cell(cells):
        return f"{cells['filling'].median:.0f} us, idle {cells['idle'].median:.0f}"
    note = (f"open loop of {rate} GETs/s of 4 KiB, -m 96; filled at {mine['sets'].median:.0f} MB/s to flash; "
            f"{mine['misses'].median:.1%} missed; p99 of DRAM keys in the same fill {mine['hot'].median:.0f} us")
    if its:
        note += (f"; extstore: {its['sets'].median:.0f} MB/s, {its['misses'].median:.1%} missed, its ratio "
                 f"{its['filling'].over(its['idle']).text()}, DRAM keys {its['hot'].median:.0f} us")
    return [Row("GET p99 while filling, over idle", cell(mine), cell(its) if its else "-", mine["filling"].over(mine["idle"]),
                5, 3, low=True, note=note)]


# --- write amplification --------------------------------------------------------------------------------------------


def part_writes(context):
    rows = []
    for value_size, key_size, flash_mb, must, aim in ((1024, 16, context.pick(256, 2048), 1.10, 1.05),
                                                      (64, 16, context.pick(64, 512), 1.30, 1.2),
                                                      (64, 64, context.pick(64, 512), 1.30, 1.2)):
        fits = flash_mb * MIB // (value_size + key_size + 20)
        what = f"{value_size} B, keys of {key_size} B"
        # Sixteen sizes around it, for what is lost to steps of sixteen bytes is this much for one size and that for another.
        sizes = f"{value_size - 8}-{value_size + 7}"
        load = [*keys(4 * fits, sizes, key_size), "--keys-by", "zipf:0.8", "-c", "8", "-P", "32"]
        memory_mb = 48 + fits * 20 // MIB
        server = context.halcyon.start(memory_mb, flash_mb)
        try:
            context.fill(server, keys(2 * fits, sizes, key_size), f"writes {what}", 8, 32)
            for name, more in (("", []), (", 30% overwrites", ["--overwrites", "0.3"])):
                total = {}
                # The first stretch brings it into the state that the load keeps, and isn't counted. Reclaim copies items on
                # in bursts, so a stretch says little: all of them are one figure, until a third of a round is written.
                for stretch in range(1 + context.pick(4, 12)):
                    run = context.run(server, [*load, "--mix", "get=1", "--cache-aside", *more, "-T",
                                               str(context.pick(4, 15))], f"writes {what}{name}")
                    if stretch == 0:
                        continue
                    total = {part: total.get(part, 0) + value for part, value in run["flash"].items()}
                    if total["written_bytes"] > flash_mb * MIB / 3:
                        break
                parts = {part: total[part] / total["item_bytes"] for part in ("written_bytes", "device_written_bytes",
                                                                              "reinserted_bytes", "journal_bytes")}
                rows.append(Row(f"write amplification, {what}{name}", f"{parts['written_bytes']:.3f}", "-",
                                parts["written_bytes"], *((must, aim) if not name else ()), low=True, form="{:.3f}",
                                note=f"values of {sizes} B, Zipf 0.8 over {4 * fits} keys, cache-aside, flash {flash_mb} MiB, "
                                f"-m {memory_mb}; by the kernel's count {parts['device_written_bytes']:.3f}; reinserted "
                                f"{parts['reinserted_bytes']:.3f}, journal {parts['journal_bytes']:.3f}; "
                                f"{total['written_bytes'] / (flash_mb * MIB):.2f} rounds"))
        finally:
            server.stop()
    return rows


PARTS = {"reads": part_reads, "fill": part_fill, "latency": part_latency, "writes": part_writes,
         "index": flash_restart.part_index, "restart": flash_restart.part_restart, "crossover": flash_crossover.part_crossover}


# --- main -----------------------------------------------------------------------------------------------------------


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and shorter: some minutes")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="this part; may be repeated")
    parser.add_argument("--folder", default=os.environ.get("top_builddir") or os.getcwd(), help="where the files are made")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each run of the reads")
    parser.add_argument("--threads", type=int, default=min(4, len(os.sched_getaffinity(0))), help="of each server")
    parser.add_argument("--ext-threads", type=int, default=16, help="I/O threads of extstore")
    parser.add_argument("--transport", choices=("unix", "tcp"), default="unix", help="of the crossover")
    parser.add_argument("--json", help="write facts, rows and every run here")
    parser.add_argument("--plot", help="write the crossover as SVG here")
    options = parser.parse_args()
    options.bench = rig.find_program("halcyon-bench", "HALCYON_BENCH")
    options.halcyond = rig.find_program("halcyond", "HALCYOND")
    options.memcached = rig.find_program("memcached", "MEMCACHED")
    if not options.bench or not options.halcyond:
        parser.error("set HALCYOND and HALCYON_BENCH")
    if options.memcached and "ext_path" not in subprocess.run([options.memcached, "-h"], stdout=subprocess.PIPE, text=True,
                                                              check=False).stdout:
        print(f"{options.memcached} has no extstore: Halcyon alone")
        options.memcached = None
    return options


def main():
    rig.end_with_servers()
    options = parse()
    facts = rig.machine_facts()
    context = Context(options)
    context.plot = options.plot
    names = {contender.label: rig.program_version(contender.program) for contender in context.contenders}
    print(rig.facts_line(facts))
    print(f"{' and '.join(names.values())}, -t {context.threads}; "
          f"{rig.program_version(context.fio, '--version') if context.fio else 'no fio'}; files in {options.folder}; "
          f"{context.rounds} rounds of {context.seconds:g} s{'; quick' if options.quick else ''}", flush=True)
    if not context.fio:
        print("no fio: nothing is compared with it")
    rows, failures, seconds = [], [], {}
    try:
        for name in options.only or PARTS:
            began = time.monotonic()
            try:
                found = PARTS[name](context)
                rows.extend(found)
                rig.print_table(f"{name} ({time.monotonic() - began:.0f} s)", HEADER, [row.cells() for row in found])
            except (RigError, OSError, KeyError, subprocess.SubprocessError) as reason:
                failures.append(f"{name}: {type(reason).__name__} {reason}")
                print(f"\n{name}: failed: {type(reason).__name__} {reason}", flush=True)
            seconds[name] = time.monotonic() - began
            drop_caches()
    finally:
        context.close()
    if options.json:
        rig.write_json(options.json, {
            "facts": facts, "versions": names, "command": sys.argv, "quick": options.quick, "seconds": seconds,
            "rows": [row.as_json() for row in rows], "failures": failures, "servers": context.commands,
            "runs": context.runs})
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
