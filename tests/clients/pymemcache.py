#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""python3-pymemcache (text) against a running server: HOST PORT SOCKET UDP_PORT."""

import sys
import time

# The folder of this file would hide the library of the same name.
sys.path.pop(0)
try:
    from pymemcache.client.base import Client, PooledClient
    from pymemcache.client.hash import HashClient
    from pymemcache.exceptions import MemcacheClientError, MemcacheServerError
except ImportError as e:
    print("SKIP:", e)
    sys.exit(77)

host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
checks = wrong = 0


def same(got, want, what):
    global checks, wrong
    checks += 1
    if got != want:
        wrong += 1
        print("wrong: %s: got %.80r, not %.80r" % (what, got, want))


def whole_client(c, name):
    def says(got, want, what):
        same(got, want, name + " " + what)

    c.flush_all()
    says(c.version().replace(b".", b"").isdigit(), True, "version of digits and dots")
    says(c.set("a", b"value", flags=7), True, "set")
    says(c.get("a"), b"value", "get")
    says(c.get("missing"), None, "get of a missing key")
    everything = bytes(range(256)) + b"\r\nEND\r\n"
    says(c.set("bytes", everything), True, "set of all byte values")
    says(c.get("bytes"), everything, "get of all byte values")
    says(c.set("empty", b""), True, "set of nothing")
    says(c.get("empty"), b"", "get of nothing")
    large = everything * 3900
    says(c.set("large", large), True, "set of a large value")
    says(c.get("large") == large, True, "get of a large value")
    says(c.set("k" * 250, b"long"), True, "set, key of 250 bytes")
    says(c.get("k" * 250), b"long", "get, key of 250 bytes")

    says(c.add("a", b"no"), False, "add of a present key")
    says(c.add("new", b"b"), True, "add")
    says(c.replace("gone", b"x"), False, "replace of a missing key")
    says(c.replace("new", b"B"), True, "replace")
    says(c.append("new", b"c"), True, "append")
    says(c.prepend("new", b"a"), True, "prepend")
    says(c.append("gone", b"c"), False, "append to a missing key")
    says(c.get("new"), b"aBc", "value after append and prepend")

    value, cas = c.gets("new")
    says(value, b"aBc", "gets")
    says(c.cas("new", b"1", cas), True, "cas")
    says(c.cas("new", b"2", cas), False, "old cas")
    says(c.cas("gone", b"2", cas), None, "cas of a missing key")
    says(c.gets("gone"), (None, None), "gets of a missing key")

    says(c.set("n", b"10"), True, "set of a number")
    says(c.incr("n", 5), 15, "incr")
    says(c.decr("n", 20), 0, "decr stops at 0")
    says(c.incr("gone", 1), None, "incr of a missing key")
    says(c.set("n", b"18446744073709551615"), True, "set of 2^64-1")
    says(c.incr("n", 2), 1, "incr wraps")
    c.set("n", b"word")
    try:
        says(c.incr("n", 1), "an error", "incr of a word")
    except MemcacheClientError:
        says(c.get("n"), b"word", "the word is still there")

    many = {"m%d" % i: b"value %d" % i for i in range(500)}
    says(c.set_many(many), [], "set_many")
    says(c.get_many(list(many) + ["gone"]), many, "get_many")
    says(c.gets_many(["m1", "gone"])["m1"][0], b"value 1", "gets_many")
    says(c.delete_many(["m1", "m2"]), True, "delete_many")
    says(c.get_many(["m1", "m2", "m3"]), {"m3": b"value 3"}, "get_many after delete_many")
    says(c.delete("m3"), True, "delete")
    says(c.delete("m3"), False, "delete of a missing key")

    says(c.set("t1", b"x", expire=1), True, "set for 1 s")
    says(c.set("t2", b"x", expire=1), True, "set for 1 s, to be touched")
    says(c.touch("t2", 100), True, "touch")
    says(c.touch("gone", 100), False, "touch of a missing key")
    says(c.set("t3", b"x", expire=-1), True, "set that is past at once")
    says(c.get("t3"), None, "value that was past at once")
    time.sleep(2.2)
    says(c.get_many(["t1", "t2"]), {"t2": b"x"}, "after the second has passed")

    for i in range(100):
        c.set("q%d" % i, b"%d" % i, noreply=True)
    c.incr("q1", 9, noreply=True)
    c.delete("q2", noreply=True)
    c.touch("q3", 100, noreply=True)
    says(c.get("q99"), b"99", "set, noreply")
    says(c.get("q1"), b"10", "incr, noreply")
    says(c.get("q2"), None, "delete, noreply")

    stats = c.stats()
    says(stats[b"curr_items"] > 500, True, "stats: curr_items")
    says(stats[b"threads"] > 0, True, "stats: threads")
    says(c.stats("settings")[b"maxconns"] > 0, True, "stats settings: maxconns")
    try:
        says(c.set("large", b"x" * (1 << 20) + b"x"), "an error", "set of 1 MiB and a byte")
    except MemcacheServerError:
        says(c.get("large"), None, "a failed set leaves no old value")
    says(c.flush_all(), True, "flush_all")
    says(c.get("a"), None, "get after flush_all")


tcp = dict(connect_timeout=5, timeout=10, default_noreply=False)
whole_client(Client((host, port), no_delay=True, **tcp), "tcp")
whole_client(Client(path, **tcp), "unix")
pooled = PooledClient((host, port), max_pool_size=4, **tcp)
same(pooled.set("p", b"1"), True, "pooled set")
same(pooled.gat("p", 10) if hasattr(pooled, "gat") else b"1", b"1", "pooled gat")
hashed = HashClient([(host, port)], **tcp)
same(hashed.set_many({"h1": b"1", "h2": b"2"}), [], "hashed set_many")
same(hashed.get_many(["h1", "h2"]), {"h1": b"1", "h2": b"2"}, "hashed get_many")
print("%d checks, %d wrong" % (checks, wrong))
sys.exit(wrong > 0)
