# SPDX-License-Identifier: BSD-2-Clause
"""Bytes an item: how many items a full server keeps, and how resident memory grows while it fills.

Full: -m over the items kept after far more were stored. memcached keeps its hash table beside -m (`hash_bytes` of its
stats), Halcyon has its index inside; so memcached's table is added. A table that doubles takes 5 to 11 bytes an item,
whatever its last doubling left; so this is measured at several limits within one doubling, and the mean counts.
Filling: growth of VmRSS from a fifth to four fifths of the way, over the items that came in between; nothing is evicted
there. It isn't judged: what stands in the tables from the start doesn't grow."""

import statistics

from memory_lib import MIB, Peer, Writer, status_bytes

SHAPES = [
    # name, key bytes, value bytes, flags, must
    ("16 B key, 10 B value, flags 0", 16, 10, 0, 0.62),
    ("64 B key, 64 B value, flags 0", 64, 64, 0, 0.84),
    ("64 B key, 64 B value, flags set", 64, 64, 12345, 0.90),
]


def measure(binary, megabytes, key_bytes, value_bytes, flags):
    # What neither server can be below, so that the marks stand before the first eviction in both.
    floor = 48 + key_bytes + value_bytes + 10
    room = megabytes * MIB // (floor * 5 // 4)
    with Peer(binary, megabytes, 1) as server, Writer(server) as writer:
        marks = []
        stored = 0
        for part in (0.2, 0.8):
            writer.store(stored, int(room * part) - stored, key_bytes, value_bytes, flags)
            stored = int(room * part)
            marks.append((server.number("curr_items"), status_bytes(server.pid, "VmRSS")))
        before = server.stats()
        if int(before["evictions"]) or int(before["curr_items"]) != stored:
            raise RuntimeError("%s evicted at %d items" % (binary, stored))
        writer.store(stored, 5 * room // 2, key_bytes, value_bytes, flags)
        stats = server.stats()
        items = int(stats["curr_items"])
        table = int(stats.get("hash_bytes", 0)) if not server.own_stats() else 0
        return {
            "items": items,
            "evictions": int(stats["evictions"]),
            "table_bytes": table,
            "full": (megabytes * MIB + table) / items,
            "filling": (marks[1][1] - marks[0][1]) / (marks[1][0] - marks[0][0]),
            "resident": status_bytes(server.pid, "VmRSS"),
        }


def run(context, table):
    for name, key_bytes, value_bytes, flags, must in SHAPES:
        figures = {who: [dict(megabytes=megabytes, **measure(binary, megabytes, key_bytes, value_bytes, flags))
                         for megabytes in context.item_megabytes]
                   for who, binary in context.servers()}
        for kind, text in (("full", "B an item, full: "), ("filling", "B an item, filling: ")):
            mean = {who: statistics.fmean(figure[kind] for figure in each) for who, each in figures.items()}
            table.add(text + name, "%.1f" % mean["memcached"], "%.1f" % mean["halcyon"],
                      mean["halcyon"] / mean["memcached"], must if kind == "full" else None,
                      more={"figures": figures})
