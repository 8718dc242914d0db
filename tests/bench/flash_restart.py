# SPDX-License-Identifier: BSD-2-Clause
"""bench-flash: how long until a cache with everything on flash serves again, and what DRAM its items take."""

import math
import os
import time

import rig
from flash_lib import MIB, Row
from rig import RigError

WHOLE_MB = 16384
SAMPLES = 40


def part_index(context):
    """Bytes of the index over objects while it grows by more than a round, nearly everything on flash."""
    last = context.pick(1_600_000, 12_000_000)
    key_size, value_size = 64, 100
    data_mb = last * (key_size + value_size + 36) // MIB
    server = context.halcyon.start(64 + last * 20 // MIB, 2 * data_mb)
    samples, done = [], 0
    try:
        # Evenly in the logarithm, over a factor of four: the round in which it ends is whole.
        for step in range(SAMPLES + 1):
            count = int(last / 4 * 4 ** (step / SAMPLES))
            # A key's name follows from its number and the number of digits: the same in each fill.
            context.run(server, ["--fill-only", "-c", "1", "-P", "64", "-k", str(count - done), "-K", str(key_size),
                                 "-V", str(value_size), "--key-prefix", f"part{step:02d}-"], "index, fill", timeout=600)
            done = count
            now = server.counters()
            samples.append((now["objects"], now["index_bytes"] / max(1, now["objects"]), now["items"]))
    finally:
        server.stop()
    # The last whole factor of two.
    end = samples[-1][0]
    ratios = [ratio for objects, ratio, _ in samples if objects >= end / 2]
    average = sum(ratios) / len(ratios)
    on_flash = samples[-1][2] / max(1, end)
    return [Row("DRAM bytes an item on flash", f"{average:.2f} B", "160 B (152 B chunk, 8 B of table)", average, 12, 11,
                low=True, note=f"index bytes over objects at {len(ratios)} sizes from {end // 2} to {end} objects, {min(ratios):.2f} "
                f"to {max(ratios):.2f}; {on_flash:.0%} of them written to flash; keys of 64 B")]


def wait_start(context, memory_mb, flash_mb, path):
    """Starts it on the file; (server, seconds until it answers)."""
    began = time.monotonic()
    server = context.halcyon.start(memory_mb, flash_mb, keep=path)
    with server.connect() as sock:
        sock.sendall(b"mn\r\n")
        sock.settimeout(rig.START_TIMEOUT_S)
        if sock.recv(16)[:2] != b"MN":
            raise RigError("no answer after the start")
    return server, time.monotonic() - began


def part_restart(context):
    """Clean, and after SIGKILL; quick takes a sixteenth of the data, and says what that makes for all of it."""
    flash_mb = context.pick(WHOLE_MB // 16, WHOLE_MB)
    memory_mb = 2048 if flash_mb == WHOLE_MB else 192
    # With header, key, checksum, padding and its line in a footer; the journal has a sixteenth, and some regions stay free.
    count = int(flash_mb * MIB * 0.86) // 368
    load = ["-k", str(count), "-K", "16", "-V", "300"]
    scale = WHOLE_MB / flash_mb
    path = os.path.join(context.folder, "restart.flash")
    figures = {}
    server = context.halcyon.start(memory_mb, flash_mb, keep=path)
    try:
        fill = context.fill(server, load, "restart, fill", 8, 32)
        server.settle_flash()
        before = server.counters()["objects"]
        began = time.monotonic()
        server.stop(keep=True)
        figures["stop"] = time.monotonic() - began
        server, figures["clean"] = wait_start(context, memory_mb, flash_mb, path)
        clean = server.counters()["objects"]
        found = context.run(server, [*load, "--mix", "get=1", "-c", "8", "-P", "16", "-T", "2"], "restart, clean, reads")
        figures["clean_hits"] = found["hits"] / found["gets"]
        server.settle_flash()
        server.kill()
        server, figures["killed"] = wait_start(context, memory_mb, flash_mb, path)
        killed = server.counters()["objects"]
        found = context.run(server, [*load, "--mix", "get=1", "-c", "8", "-P", "16", "-T", "2"], "restart, killed, reads")
        figures["killed_hits"] = found["hits"] / found["gets"]
    finally:
        if server.process.poll() is None:
            server.stop()
        if os.path.exists(path):
            os.unlink(path)
    context.runs.append({"what": "restart", **figures, "objects": [before, clean, killed], "flash_mb": flash_mb})
    note = (f"{count} items of 300 B, {flash_mb} MiB of flash, -m {memory_mb}, filled at {count / fill['fill_seconds'] / 1e3:.0f} k/s; "
            f"{before} objects before")
    if scale != 1:
        note += f"; times {scale:g} for {WHOLE_MB} MiB"
    return [
        Row("warm start, clean", f"{figures['clean']:.2f} s", "empty", figures["clean"] * scale, 3, 1, low=True,
            note=note + f", {clean} after, {figures['clean_hits']:.1%} of reads hit; the stop took {figures['stop']:.2f} s"),
        Row("warm start, after kill -9", f"{figures['killed']:.2f} s", "empty", figures["killed"] * scale, 20, 5, low=True,
            note=note + f", {killed} after, {figures['killed_hits']:.1%} of reads hit; {math.ceil(killed / max(0.001, figures['killed']) / 1e3)} k items/s"),
    ]
