#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The load generator's totals beside the server's counters: for each protocol and each kind of request, over TCP and
a Unix socket, with several threads. Neither side knows of the other's counting, so what is lost, made up or counted
twice on either shows."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
from common import Suite, check  # noqa: E402

suite = Suite(__doc__)
PROTOCOLS = ("text", "meta", "binary")
REQUESTS = 4000
COUNTERS = ("cmd_get", "get_hits", "get_misses", "cmd_set", "cmd_touch", "touch_hits", "touch_misses", "incr_hits",
            "incr_misses", "delete_hits", "delete_misses", "total_items")


def expected_counters(protocol, told):
    """What the server must have counted, by the load generator's summary of all its phases."""
    # A gat counts as a touch. meta's touch and gat are gets with a time to live: touches when they hit, else gets.
    touches = told["touches"] + told["gats"]
    touch_hits = told["touch_hits"] + told["gat_hits"]
    lookups = touches - touch_hits if protocol == "meta" else 0
    touches -= lookups
    return {
        "cmd_get": told["gets"] + lookups,
        "get_hits": told["hits"],
        "get_misses": told["misses"] + lookups,
        "cmd_set": told["sets"] + told["appends"],
        "cmd_touch": touches,
        "touch_hits": touch_hits,
        "touch_misses": touches - touch_hits,
        "incr_hits": told["incr_hits"],
        "incr_misses": told["incrs"] - told["incr_hits"],
        "delete_hits": told["delete_hits"],
        "delete_misses": told["deletes"] - told["delete_hits"],
    }


def run_and_compare(server, protocol, *options):
    """The summary's totals over all phases, after they were found equal to the server's."""
    before = server.stats()
    summary = suite.bench(server, "--protocol", protocol, "--requests", REQUESTS, "--connections", 7, "--threads", 3,
                          "--pipeline", 8, "--keys", 500, "--value-size", "0-300", "--check-counters", *options)
    after = server.stats()
    names = ("requests", "gets", "hits", "misses", "sets", "gats", "gat_hits", "touches", "touch_hits", "incrs",
             "incr_hits", "appends", "append_hits", "deletes", "delete_hits")
    told = {name: sum(summary.get(phase + name, 0) for phase in ("", "fill_", "warmup_")) for name in names}
    counted = {name: int(after[name]) - int(before[name]) for name in COUNTERS}
    for name, value in expected_counters(protocol, told).items():
        check(counted[name] == value, "%s: the server counted %d, expected %d\n told %s\n counted %s" % (
            name, counted[name], value, told, counted))
    check(summary["requests"] == REQUESTS + summary["after_miss"], "%d requests" % summary["requests"])
    check(summary["misses"] + summary["hits"] == summary["gets"], "%s" % summary)
    return summary


MIXES = {
    "get": ((), ("gets", "hits")),
    "set": ((), ("sets",)),
    "gat": (("--ttl", "100-200"), ("gats", "gat_hits")),
    "touch": (("--ttl", 100), ("touches", "touch_hits")),
    "incr": ((), ("incrs", "incr_hits")),
    "append": ((), ("appends", "append_hits", "sets")),
    "delete": ((), ("deletes", "delete_hits")),
    "get=5,set=3,gat=2,touch=2,incr=2,append=2,delete=3": (
        ("--flags", 77), ("hits", "misses", "sets", "gat_hits", "touch_hits", "incr_hits", "append_hits",
                          "delete_hits")),
}


def add_test(name, function):
    function.__name__ = name
    suite.test(function)


for protocol in PROTOCOLS:
    for number, (mix, (options, wanted)) in enumerate(MIXES.items()):
        def each_kind(protocol=protocol, number=number, mix=mix, options=options, wanted=wanted):
            mix = mix if "=" in mix else mix + "=1"
            with suite.server(["-t", "2"], transport=("tcp", "unix")[number % 2]) as server:
                # Without a fill first, so that keys are missed.
                run_and_compare(server, protocol, "--mix", mix, "--seed", 2, *options)
                summary = run_and_compare(server, protocol, "--mix", mix, "--fill", "--verify", *options)
                for field in wanted:
                    check(summary[field] > 0, "no %s: %s" % (field, summary))
        add_test("%s_%s" % (protocol, mix if "=" not in mix else "everything"), each_kind)


def many_keys_at_once(protocol, transport):
    def test():
        with suite.server(["-t", "2"], transport=transport) as server:
            run_and_compare(server, protocol, "--multiget", 13, "--keys", 300, "--ratio", "1:3")
            run_and_compare(server, protocol, "--multiget", 100, "--mix", "get=9,set=1,delete=1", "--verify",
                            "--key-prefix", "more-")
    return test


def cache_aside(protocol, transport):
    def test():
        with suite.server(["-t", "2", "-m", "64"], transport=transport) as server:
            for options in (["--keys-by", "zipf:1.0"], ["--multiget", 5], ["--scan", 0.25, "--keys-by", "zipf:1.1"],
                            ["--overwrites", 0.3, "--verify"], ["--mix", "get=3,gat=2,incr=1", "--warmup", 500],
                            ["--shift", 100, "--keys-by", "zipf:0.8"]):
                mix = [] if "--mix" in options else ["--mix", "get=1"]
                summary = run_and_compare(server, protocol, "--cache-aside", "--key-prefix",
                                          "%s-" % options[0][2:6], "--key-size", 24, *mix, *options)
                check(summary["after_miss"] > 0, "nothing was set after a miss: %s" % summary)
    return test


for protocol in PROTOCOLS:
    for transport in ("tcp", "unix"):
        add_test("%s_many_keys_at_once_(%s)" % (protocol, transport), many_keys_at_once(protocol, transport))
        add_test("%s_cache_aside_(%s)" % (protocol, transport), cache_aside(protocol, transport))


@suite.test
def a_wrong_total_is_noticed():
    """--check-counters fails when somebody else asks the server too."""
    with suite.server() as server:
        process = suite.start_bench(server, "--requests", 20000, "--check-counters")
        with server.connect() as sock:
            while process.poll() is None:
                sock.sendall(b"get somebody-else\r\n")
                sock.recv(100)
        summary = suite.finish_bench(process, must_pass=False)
        check(summary["status"] == 1, "%s" % summary)
        check("cmd_get" in summary["complaints"] or "get_misses" in summary["complaints"], summary["complaints"])


suite.main()
