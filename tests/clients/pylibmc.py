#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""python3-pylibmc against a running server: HOST PORT SOCKET UDP_PORT."""

import sys
import time

# The folder of this file would hide the library of the same name.
sys.path.pop(0)
try:
    import pylibmc
except ImportError as e:
    print("SKIP:", e)
    sys.exit(77)

host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
checks = wrong = 0


def whole_client(c, name):
    def says(got, want, what):
        global checks, wrong
        checks += 1
        if got != want:
            wrong += 1
            print("wrong: %s %s: got %.80r, not %.80r" % (name, what, got, want))

    def raises(error, call, what):
        try:
            says(call(), "an error", what)
        except error:
            says(True, True, what)

    c.flush_all()
    says(c.set("a", "text"), True, "set")
    says(c.get("a"), "text", "get")
    says(c.get("missing"), None, "get of a missing key")
    thing = {"list": [1, 2.5, None], "bytes": bytes(range(256)), "int": 1 << 70}
    says(c.set("thing", thing), True, "set of a pickled object (uses flags)")
    says(c.get("thing"), thing, "get of a pickled object")
    large = bytes(range(256)) * 3900
    says(c.set("large", large), True, "set of a large value")
    says(c.get("large") == large, True, "get of a large value")
    says(c.set("zipped", large, min_compress_len=1000), True, "set, compressed")
    says(c.get("zipped") == large, True, "get, compressed")
    says(c.set("number", 41), True, "set of a number")
    says(c.incr("number"), 42, "incr")
    says(c.decr("number", 50), 0, "decr stops at 0")
    says(c.get("number"), 0, "get of a number")
    raises(pylibmc.NotFound, lambda: c.incr("missing"), "incr of a missing key")

    says(c.add("a", "no"), False, "add of a present key")
    says(c.add("new", b"b"), True, "add")
    says(c.replace("new", b"B"), True, "replace")
    if name == "binary":
        raises(pylibmc.NotFound, lambda: c.replace("gone", b"B"), "replace of a missing key")
    else:
        says(c.replace("gone", b"B"), False, "replace of a missing key")
    says(c.append("new", b"c"), True, "append")
    says(c.prepend("new", b"a"), True, "prepend")
    says(c.get("new"), b"aBc", "value after append and prepend")
    value, cas = c.gets("new")
    says(value, b"aBc", "gets")
    says(c.cas("new", b"1", cas), True, "cas")
    says(c.cas("new", b"2", cas), False, "old cas")
    raises(pylibmc.NotFound, lambda: c.cas("gone", b"2", cas), "cas of a missing key")

    many = {"m%d" % i: i for i in range(400)}
    says(c.set_multi(many), [], "set_multi")
    says(c.get_multi(list(many) + ["gone"]), many, "get_multi")
    says(c.add_multi({"m1": 5, "n1": 6}), ["m1"], "add_multi")
    says(c.incr_multi(["m1", "m2"], delta=1), None, "incr_multi")
    says(c.get_multi(["m1", "m2"]), {"m1": 2, "m2": 3}, "get_multi after incr_multi")
    says(c.delete_multi(["m1", "m2"]), True, "delete_multi")
    says(c.get_multi(["m1", "m2", "m3"]), {"m3": 3}, "get_multi after delete_multi")
    says(c.delete("m3"), True, "delete")
    says(c.delete("m3"), False, "delete of a missing key")

    says(c.set("t1", 1, time=1), True, "set for 1 s")
    says(c.set("t2", 2, time=1), True, "set for 1 s, to be touched")
    says(c.touch("t2", 100), True, "touch")
    says(c.touch("gone", 100), False, "touch of a missing key")
    time.sleep(2.2)
    says(c.get_multi(["t1", "t2"]), {"t2": 2}, "after the second has passed")
    raises(pylibmc.TooBig if name != "binary" else pylibmc.Error,
           lambda: c.set("big", b"x" * (1 << 20) + b"x"), "set of 1 MiB and a byte")
    says(c.get("a"), "text", "in step after the refused set")
    [(_, stats)] = c.get_stats()
    says(int(stats["curr_items"]) > 300, True, "stats: curr_items")
    says(c.flush_all(), True, "flush_all")
    says(c.get("a"), None, "get after flush_all")


server = "%s:%d" % (host, port)
plain = {"cas": True, "tcp_nodelay": True}
whole_client(pylibmc.Client([server], behaviors=plain), "text")
whole_client(pylibmc.Client([server], binary=True, behaviors=plain), "binary")
whole_client(pylibmc.Client([path], behaviors={"cas": True}), "unix")
print("%d checks, %d wrong" % (checks, wrong))
sys.exit(wrong > 0)
