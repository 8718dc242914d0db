#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The tools themselves. halcyon-bench must find every kind of wrong answer: it is set before servers that lie in one
way each. Its totals must be those of an honest server. halcyonctl must show what the server answers, and say what is
wrong in one line. The manual pages must be those of the option tables."""

import json
import os
import re
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
sys.path.insert(0, HERE)
from common import Failed, Suite, check, free_port  # noqa: E402
from liar import CODECS, Liar  # noqa: E402

suite = Suite(__doc__)
SOURCE = os.environ.get("top_srcdir", os.path.join(HERE, "..", ".."))


def ctl_path():
    return os.environ.get("HALCYONCTL", os.path.join(os.path.dirname(suite.bench_path), "halcyonctl"))


def ctl(*arguments):
    return subprocess.run([ctl_path()] + list(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=30)


def run_against(lie, protocol, *options):
    with Liar(lie, protocol) as server:
        return suite.bench(server, "--protocol", protocol, "--connections", 3, "--pipeline", 4, "--keys", 50,
                           "--value-size", "1-200", "--fill", "--requests", 3000, "--ratio", "1:2", "--verify",
                           "--timeout", 1, *options, must_pass=False, timeout=60)


def honest(server, request, reply):
    return reply


@suite.test
def an_honest_server_is_believed():
    for protocol in CODECS:
        for options in ([], ["--strict"], ["--multiget", 7], ["--key-size", 250], ["--value-size", "0-3"],
                        ["--flags", 4294967295]):
            summary = run_against(honest, protocol, *options)
            check(summary["status"] == 0, "%s %s: %s" % (protocol, options, summary))
            check(summary["requests"] == 3000 and summary["fill_sets"] == 50, "%s" % summary)
            check(summary["hits"] == summary["gets"] > 0, "%s" % summary)


def make_lie(name, lie, fields, *options, protocols=tuple(CODECS)):
    for protocol in protocols:
        def test(protocol=protocol):
            summary = run_against(lie, protocol, *options)
            check(summary["status"] == 1, "exit status %d: %s" % (summary["status"], summary))
            found = sum(summary.get(field, 0) for field in fields)
            check(found > 0, "%s: none of %s: %s" % (name, fields, summary))
            check("halcyon-bench: " in summary["complaints"], "nothing said")

        test.__name__ = "%s_(%s)" % (name, protocol)
        suite.test(test)


def once_in(count, change):
    """A lie told to the first get after each count requests that has something to lie about.
    change(server, request, key, value, reply)"""
    def lie(server, request, reply):
        key = request.keys[0]
        due = getattr(server, "lie_due", max(count, 200))
        if request.command != "get" or server.count < due or key not in server.items:
            return reply
        server.lie_due = server.count + count
        return change(server, request, key, server.items[key][0], reply)
    return lie


def flip_last(server, request, key, value, reply):
    return server.codec.hit(request, key, value[:-1] + bytes([value[-1] ^ 1]))


def other_value(server, request, key, value, reply):
    other = next(k for k in server.items if k != key and len(server.items[k][0]) != len(value))
    return server.codec.hit(request, key, server.items[other][0])


def stale(server, request, key, value, reply):
    return server.codec.hit(request, key, server.older[key][0]) if key in server.older else reply


def changed(at, byte):
    """One byte of the answer is another."""
    return lambda s, request, key, value, reply: reply[:at] + bytes([byte]) + reply[at + 1:]


LINES = ("text", "meta")
BINARY = ("binary",)
make_lie("one_bit_is_found", once_in(400, flip_last), ["wrong"])
make_lie("the_value_of_another_key_is_found", once_in(400, other_value), ["wrong"])
make_lie("a_missing_byte_is_found", once_in(400, lambda s, request, key, value, reply:
                                            s.codec.hit(request, key, value[:-1])), ["wrong"])
make_lie("a_stale_value_is_found", once_in(7, stale), ["wrong"], "--value-size", "8-200")
make_lie("a_lost_item_is_found", once_in(400, lambda s, request, key, value, reply: s.codec.miss(request)), ["lost"],
         "--strict")
make_lie("another_key_is_found", once_in(400, lambda s, request, key, value, reply:
                                         s.codec.hit(request, key[::-1], value)), ["errors"])
make_lie("foreign_flags_are_found", once_in(400, lambda s, request, key, value, reply:
                                            s.codec.hit(request, key, value, 1)), ["errors"])
make_lie("an_answer_too_many_is_found", once_in(400, lambda s, request, key, value, reply:
                                                reply + s.codec.miss(request)), ["errors", "missing"])
make_lie("a_missing_answer_is_found", once_in(400, lambda *unused: b""), ["missing"])
make_lie("an_error_is_found", once_in(400, lambda s, request, *unused: s.codec.error(request)), ["errors"])
make_lie("nonsense_is_found", once_in(400, lambda *unused: b"nonsense\r\n"), ["errors"])
make_lie("a_missing_line_end_is_found", once_in(400, lambda s, request, key, value, reply:
                                                reply.replace(b"\r\n", b"\n")), ["errors"], protocols=LINES)
make_lie("a_closed_connection_is_found", once_in(400, lambda *unused: None), ["missing", "errors"])
make_lie("a_reply_cut_short_is_found", once_in(400, lambda s, request, key, value, reply: reply[:-1]),
         ["missing", "errors"])
make_lie("a_refused_set_is_found", lambda s, request, reply:
         s.codec.refused(request) if request.command == "set" and s.count % 100 == 0 else reply,
         ["refused", "fill_refused"])
make_lie("another_opcode_is_found", once_in(400, changed(1, 0x00)), ["errors"], protocols=BINARY)
make_lie("another_opaque_is_found", once_in(400, changed(15, 0xff)), ["errors"], protocols=BINARY)
make_lie("another_data_type_is_found", once_in(400, changed(5, 1)), ["errors"], protocols=BINARY)
make_lie("a_key_longer_than_the_body_is_found", once_in(400, changed(2, 0xff)), ["errors"], protocols=BINARY)
make_lie("extras_of_another_size_are_found", once_in(400, changed(4, 3)), ["errors"], protocols=BINARY)
make_lie("a_body_of_gigabytes_is_found", once_in(400, changed(8, 0xff)), ["errors"], protocols=BINARY)
make_lie("a_value_of_gigabytes_is_found", once_in(400, lambda *unused: b"VALUE k 0 9999999999\r\n"), ["errors"],
         protocols=("text",))
make_lie("a_value_of_terabytes_is_found", once_in(400, lambda *unused: b"VA 9999999999999 f0 kx\r\n"), ["errors"],
         protocols=("meta",))


@suite.test
def totals_are_those_of_the_server():
    for transport, options in (("tcp", []), ("unix", ["--multiget", 5, "--threads", 2]), ("tcp", ["--keys", 100000])):
        with suite.server(transport=transport) as server:
            names = ("cmd_get", "cmd_set", "get_hits", "get_misses")
            before = [server.counter(name) for name in names]
            summary = suite.bench(server, "--keys", 1000, "--requests", 30000, "--pipeline", 10, "--verify", *options)
            after = [server.counter(name) for name in names]
            told = [summary[name] for name in ("gets", "sets", "hits", "misses")]
            check([a - b for a, b in zip(after, before)] == told, "%s: server %s - %s, told %s" % (
                options, after, before, told))
            check(summary["requests"] == 30000 and summary["sets"] > 0 and summary["hits"] > 0, "%s" % summary)


@suite.test
def a_run_by_time_ends_in_time():
    with suite.server() as server:
        summary = suite.bench(server, "--seconds", 1, "--verify")
    check(1.0 <= summary["seconds"] < 2.0, "%s" % summary)


@suite.test
def latencies_are_ordered_and_plausible():
    with suite.server() as server:
        summary = suite.bench(server, "--requests", 20000)
    names = ["latency_p50_us", "latency_p90_us", "latency_p99_us", "latency_p999_us", "latency_p9999_us",
             "latency_max_us"]
    values = [summary[name] for name in names]
    check(values == sorted(values) and values[0] > 1, "%s" % values)
    # A closed loop: connections / mean latency is the rate.
    rate = 50 / (summary["latency_mean_us"] / 1e6)
    check(0.5 < summary["requests_per_second"] / rate < 1.1, "%s" % summary)


def check_one_line(process, status, pattern):
    lines = process.stderr.splitlines()
    check(process.returncode == status and len(lines) == 1 and re.search(pattern, lines[0]) and not process.stdout,
          "%s: status %d, %r, %r" % (process.args, process.returncode, process.stdout, process.stderr))


@suite.test
def bench_says_what_is_wrong_in_one_line():
    for arguments, status, pattern in (
            (["--server", "127.0.0.1:%d" % free_port()], 1, r"cannot connect to 127.0.0.1:\d+: Connection refused"),
            (["--socket", "/nowhere/socket"], 1, "/nowhere/socket"),
            (["--keys", "0"], 2, "--keys 0"), (["--connections", "many"], 2, "--connections many"),
            (["--nonsense"], 2, "--nonsense"), (["--value-size", "9-3"], 2, "--value-size 9-3"),
            (["--ratio", "0:0"], 2, "--ratio 0:0"), (["--pipeline"], 2, "--pipeline needs"), (["word"], 2, "word"),
            (["--keys", "10"], 2, "fewer keys"), (["--key-size", "3"], 2, "--key-size 3"), (["--strict"], 2, "--strict"),
            (["--mix", "get=1,get=2"], 2, "--mix get=1,get=2"), (["--mix", "got=1"], 2, "--mix got=1"),
            (["--keys-by", "zipf:-1"], 2, "--keys-by zipf:-1"), (["--protocol", "bin"], 2, "--protocol bin"),
            (["--value-size", "0-9", "--values-by", "log"], 2, "--values-by log")):
        process = subprocess.run([suite.bench_path] + arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, timeout=30)
        check_one_line(process, status, pattern)


@suite.test
def ctl_shows_what_the_server_answers():
    with suite.server() as server:
        where = ["--server", "127.0.0.1:%d" % server.port]
        plain = ctl(*where, "stats")
        check(plain.returncode == 0 and plain.stderr == "", plain.stderr)
        names = [line.split()[0] for line in plain.stdout.splitlines()]
        check(set(names) == set(server.stats()), "names differ from those of stats")
        as_json = json.loads(ctl(*where, "--json", "stats").stdout)
        check(as_json["pid"] == server.pid and isinstance(as_json["version"], str), "%s" % as_json)
        settings = json.loads(ctl(*where, "--json", "settings").stdout)
        check(settings == json.loads(ctl(*where, "--json", "stats", "settings").stdout), "settings differ")
        check(settings["maxbytes"] == 64 * 1024 * 1024, "%s" % settings)
        check(json.loads(ctl(*where, "--json", "stats", "detail", "on").stdout) == {"result": "OK"}, "detail on")
        subprocess.run([suite.bench_path, *where, "--requests", "500", "--key-prefix", "pre:", "--quiet"],
                       stdout=subprocess.DEVNULL, check=True)
        detail = json.loads(ctl(*where, "--json", "stats", "detail", "dump").stdout)
        check(detail["pre"]["get"] + detail["pre"]["set"] == 500, "%s" % detail)
        for what in ("items", "slabs", "sizes", "conns"):
            answer = ctl(*where, "--json", "stats", what)
            check(answer.returncode == 0 and json.loads(answer.stdout), "%s: %s" % (what, answer))
        check(ctl(*where, "version").stdout.startswith("VERSION "), "version")
        check_one_line(ctl(*where, "stats", "nonsense"), 1, "'stats nonsense' was answered: ")


@suite.test
def ctl_says_what_is_wrong_in_one_line():
    check_one_line(ctl("--server", "127.0.0.1:%d" % free_port(), "stats"), 1, r"cannot connect to 127.0.0.1:\d+")
    check_one_line(ctl(), 2, "subcommand")
    check_one_line(ctl("nonsense"), 2, "nonsense")
    check_one_line(ctl("stats", "a\r\nflush_all"), 2, "argument 1 is not one word")
    check_one_line(ctl("settings", "more"), 2, "more")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        where = "127.0.0.1:%d" % silent.getsockname()[1]
        check_one_line(ctl("--server", where, "--timeout", "0.2", "stats"), 1, where + ": no answer in time")


@suite.test
def manual_pages_are_those_of_the_tables():
    for program, path in ((suite.bench_path, "man/halcyon-bench.1"), (ctl_path(), "man/halcyonctl.1")):
        made = subprocess.run([program, "--help-man"], stdout=subprocess.PIPE, text=True, check=True).stdout
        with open(os.path.join(SOURCE, path)) as page:
            if page.read() != made:
                raise Failed("%s is out of date: make update-tools-man" % path)


suite.main()
