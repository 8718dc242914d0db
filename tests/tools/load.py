#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What halcyon-bench asks, and when: the mix and its shares, which keys, open and closed loop, cache-aside and the
warm-up, the empty client, and lies that are told where a key has several writers or is deleted."""

import collections
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
sys.path.insert(0, HERE)
from common import Suite, check  # noqa: E402
from liar import CODECS, Liar  # noqa: E402

suite = Suite(__doc__)


def honest(server, request, reply):
    return reply


class Recorder:
    """An honest server's callback that keeps what was asked."""

    def __init__(self):
        self.commands = collections.Counter()
        self.keys = collections.Counter()
        self.order = []

    def __call__(self, server, request, reply):
        self.commands[request.command] += 1
        for key in request.keys:
            self.order.append((request.command, key))
            if request.command in ("get", "gat"):
                self.keys[key] += 1
        return reply


def run(lie, *options, must_pass=True, protocol="text"):
    with Liar(lie, protocol) as server:
        return suite.bench(server, "--protocol", protocol, "--connections", 3, "--keys", 60, "--timeout", 2, *options,
                           must_pass=must_pass, timeout=60)


@suite.test
def requests_come_by_their_weights():
    weights = {"get": 50, "set": 20, "gat": 10, "touch": 8, "incr": 6, "delete": 6}
    recorder = Recorder()
    run(recorder, "--mix", ",".join("%s=%d" % item for item in weights.items()), "--requests", 10000, "--pipeline", 8)
    check(set(recorder.commands) == set(weights), "%s" % recorder.commands)
    for name, weight in weights.items():
        expected = 10000 * weight / 100
        # Six standard deviations of a binomial.
        check(abs(recorder.commands[name] - expected) < 6 * expected ** 0.5, "%s: %s" % (name, recorder.commands))


@suite.test
def an_append_begins_with_a_set_now_and_then():
    recorder = Recorder()
    summary = run(recorder, "--mix", "append=1", "--requests", 5000, "--fill", "--value-size", 10)
    check(summary["appends"] + summary["sets"] == 5000 and summary["sets"] > 200, "%s" % summary)
    check(summary["append_hits"] == summary["appends"], "%s" % summary)
    check(summary["fill_sets"] == 120, "%s" % summary)  # the keys, and those that are appended to


@suite.test
def values_that_a_socket_takes_in_parts():
    # The rest goes out though the pipeline is full, for it is what the answer waits for.
    for pipeline in (1, 4):
        for rate in ([], ["--rate", 200]):
            summary = run(honest, "--mix", "set=1,get=1", "--requests", 60, "--pipeline", pipeline, "--value-size",
                          1048576, "--timeout", 10, *rate)
            check(summary["requests"] == 60 and summary["sets"] > 10, "%s" % summary)


@suite.test
def shares_of_scans_and_overwrites():
    recorder = Recorder()
    summary = run(recorder, "--mix", "get=1", "--scan", 0.25, "--overwrites", 0.3, "--requests", 8000, "--fill",
                  "--threads", 3)
    check(abs(summary["sets"] - 2400) < 300 and abs(summary["scans"] - 2000) < 270, "%s" % summary)
    check(summary["hits"] + summary["scans"] == summary["gets"], "%s" % summary)
    beyond = [key for key in recorder.keys if int(key[-10:]) >= 60]
    check(len(beyond) == summary["scans"] and all(recorder.keys[key] == 1 for key in beyond),
          "%d keys beyond the key space, %d gets of them" % (len(beyond), summary["scans"]))


@suite.test
def sequential_keys_come_in_turn():
    recorder = Recorder()
    run(recorder, "--mix", "get=1", "--keys-by", "sequential", "--requests", 600, "--threads", 2, "--multiget", 3)
    check(sum(recorder.keys.values()) == 1800 and len(recorder.keys) == 60, "%s" % recorder.keys)
    # Two threads, whose shares of the keys are drawn in turn; they need not be at the same place.
    check(max(recorder.keys.values()) - min(recorder.keys.values()) <= 1, "%s" % recorder.keys)


@suite.test
def zipf_has_popular_keys_and_they_move():
    shares = []
    for shift in (0, 50):
        recorder = Recorder()
        run(recorder, "--mix", "get=1", "--keys-by", "zipf:1.2", "--requests", 6000, "--shift", shift, "--pipeline", 8)
        shares.append(recorder.keys.most_common(1)[0][1] / 6000)
    harmonic = sum((rank + 1) ** -1.2 for rank in range(60))
    check(abs(shares[0] - 1 / harmonic) < 0.04, "%s, expected %f" % (shares, 1 / harmonic))
    # Of so few keys the popular ones come back, but the first one's share is divided by two at least.
    check(shares[1] < shares[0] * 0.7, "%s" % shares)


@suite.test
def sizes_keep_to_their_key():
    sizes = collections.defaultdict(set)

    def note(server, request, reply):
        if request.command == "set":
            sizes[request.keys[0]].add(len(request.value))
        return reply

    run(note, "--mix", "set=1", "--value-size", "20-4096", "--values-by", "log", "--requests", 2000, "--keys", 300)
    check(all(len(of_key) == 1 for of_key in sizes.values()), "a key's size changed")
    all_sizes = sorted(min(of_key) for of_key in sizes.values())
    check(all_sizes[0] >= 20 and all_sizes[-1] <= 4096, "%s" % all_sizes)
    # Half of them are below the geometric mean, 286; of even sizes a fifteenth would be.
    check(150 < all_sizes[len(all_sizes) // 2] < 550, "median %d" % all_sizes[len(all_sizes) // 2])


@suite.test
def a_missed_key_is_set_next():
    for protocol in CODECS:
        recorder = Recorder()
        summary = run(recorder, "--mix", "get=2,gat=1,incr=1", "--cache-aside", "--connections", 1, "--requests", 500,
                      protocol=protocol)
        seen = set()
        missed = None
        for command, key in recorder.order:
            if missed is not None:
                check((command, key) == ("set", missed), "%s of %s after a miss of %s" % (command, key, missed))
            missed = key if command in ("get", "gat", "incr") and key not in seen else None
            seen.add(key)
        check(summary["requests"] == 500 + summary["after_miss"] and summary["after_miss"] == summary["sets"] > 60,
              "%s" % summary)


@suite.test
def a_miss_costs_its_penalty():
    """A connection is a worker: it asks nothing for so long after each key that was missed, and a hit costs nothing."""
    penalty_s = 0.03
    times = []

    def note(server, request, reply):
        missed = request.command == "get" and any(key not in server.items for key in request.keys)
        times.append((time.monotonic(), request.command, missed))
        return reply

    summary = run(note, "--mix", "get=1", "--cache-aside", "--connections", 1, "--requests", 120, "--miss-penalty-us",
                  int(penalty_s * 1e6))
    check(summary["misses"] == summary["after_miss"] > 30, "%s" % summary)
    gaps = [(after[0] - before[0], before[2], after[1]) for before, after in zip(times, times[1:])]
    late = [gap for gap, missed, _ in gaps if missed]
    check(len(late) == summary["misses"] and min(late) > penalty_s - 0.001, "%s" % sorted(late)[:5])
    check(all(command == "set" for _, missed, command in gaps if missed), "what follows a miss is its set")
    soon = sorted(gap for gap, missed, _ in gaps if not missed)
    check(soon[len(soon) // 2] < penalty_s / 3, "%s" % soon[len(soon) // 2])
    check(summary["latency_p50_us"] < penalty_s * 1e6 / 3, "%s" % summary)

    # Three workers wait at the same time; the keys of one request one after the other; each waits by itself.
    for options, requests, least in ((["--connections", 3], 60, 20), (["--multiget", 5, "--connections", 1], 6, 30),
                                     (["--connections", 1, "--pipeline", 4], 24, 20)):
        summary = run(honest, "--mix", "get=1", "--keys", 10000, "--requests", requests, "--miss-penalty-us",
                      int(penalty_s * 1e6), *options)
        # What a last answer costs isn't waited for.
        check((least - 6) * penalty_s < summary["seconds"] < (least + 20) * penalty_s,
              "%s: %g s" % (options, summary["seconds"]))


@suite.test
def the_warm_up_is_counted_apart():
    summary = run(honest, "--mix", "get=1", "--cache-aside", "--warmup", 2000, "--requests", 1000)
    check(summary["warmup_requests"] == 2000 + summary["warmup_after_miss"], "%s" % summary)
    check(60 <= summary["warmup_misses"] <= 63 and summary["misses"] == 0 and summary["requests"] == 1000,
          "%s" % summary)


@suite.test
def what_is_set_expires():
    with suite.server() as server:
        suite.bench(server, "--fill-only", "--ttl", 1, "--keys", 500)
        check(suite.bench(server, "--mix", "get=1", "--requests", 1000, "--keys", 500)["misses"] == 0, "gone too soon")
        time.sleep(2.2)
        check(suite.bench(server, "--mix", "get=1", "--requests", 1000, "--keys", 500)["hits"] == 0, "still there")


def pause_once(seconds):
    def lie(server, request, reply):
        if server.count == 100:
            time.sleep(seconds)
        return reply
    return lie


@suite.test
def an_open_loop_counts_from_when_a_request_was_due():
    options = ["--connections", 1, "--requests", 1000, "--mix", "get=1"]
    closed = run(pause_once(0.4), *options)
    opened = run(pause_once(0.4), *options, "--rate", 1000)
    # In a closed loop one request sees the pause. Of those that are due in one second, those of 0.4 s do.
    check(closed["latency_p99_us"] < 200000 < closed["latency_max_us"], "%s" % closed)
    check(opened["latency_p90_us"] > 200000 and opened["latency_max_us"] > 390000, "%s" % opened)
    check(0.8 < opened["seconds"] < 3 and opened["requests"] == 1000, "%s" % opened)


@suite.test
def an_open_loop_keeps_its_rate():
    with suite.server() as server:
        for options in (["--arrivals", "even"], ["--threads", 3], ["--cache-aside", "--pipeline", 4]):
            summary = suite.bench(server, "--rate", 3000, "--requests", 3000, "--connections", 10, *options)
            drawn = summary["requests"] - summary["after_miss"]
            check(drawn == 3000 and 0.8 < summary["seconds"] < 3, "%s: %s" % (options, summary))
        summary = suite.bench(server, "--rate", 1000, "--seconds", 1)
        check(abs(summary["requests"] + summary["behind"] - 1000) < 200, "%s" % summary)
        summary = suite.bench(server, "--rate", 30000000, "--seconds", 0.5)
        check(summary["behind"] > 1000000 and summary["latency_max_us"] > 100000, "%s" % summary)


@suite.test
def an_open_loop_is_not_late_by_itself():
    """A generator that sleeps through what is due finds tenths of a second in a server that has nothing to do."""
    rate, late_s = 20000, 0.05
    with suite.server(["-t", "1"], transport="unix") as server:
        seen = []
        for _ in range(10):  # until it is good once: the machine may be busy
            summary = suite.bench(server, "--rate", rate, "--arrivals", "even", "--seconds", 0.5, "--pipeline", 8)
            seen.append((summary.get("latency_p99_us", 1e9), summary["behind"]))
            if seen[-1] < (late_s * 1e6, 0) and summary["behind"] < rate * late_s:
                return
        check(False, "99th percentile in us, and requests left, of each run: %s" % seen)


@suite.test
def several_writers_are_believed_and_found_out():
    options = ["--verify", "--fill", "--requests", 4000, "--value-size", "8-200", "--keys", 20, "--mix", "get=1",
               "--cache-aside", "--overwrites", 0.3]

    def stale(server, request, reply):
        key = request.keys[0]
        if request.command == "get" and server.count % 7 == 0 and key in server.older:
            return server.codec.hit(request, key, server.older[key][0])
        return reply

    def flip(server, request, reply):
        key = request.keys[0]
        if request.command == "get" and server.count % 50 == 0 and key in server.items:
            value = server.items[key][0]
            return server.codec.hit(request, key, value[:-1] + bytes([value[-1] ^ 1]))
        return reply

    for more in ([], ["--threads", 3, "--pipeline", 8], ["--multiget", 5], ["--mix", "get=5,delete=1"]):
        summary = run(honest, *options, *more)
        check(summary["hits"] > 0 and summary["sets"] > 0, "%s: %s" % (more, summary))
    for lie in (stale, flip):
        summary = run(lie, *options, must_pass=False)
        check(summary["status"] == 1 and summary["wrong"] > 0 and not summary["errors"], "%s" % summary)


@suite.test
def what_was_deleted_may_not_come_back():
    def undead(server, request, reply):
        key = request.keys[0]
        if request.command == "set":
            server.last = getattr(server, "last", {})
            server.last[key] = request.value
        if request.command == "get" and key not in server.items and key in getattr(server, "last", {}):
            return server.codec.hit(request, key, server.last[key])
        return reply

    options = ["--verify", "--fill", "--requests", 3000, "--value-size", "8-200", "--mix", "get=5,set=1,delete=1"]
    check(run(honest, *options)["delete_hits"] > 0, "nothing was deleted")
    summary = run(undead, *options, must_pass=False)
    check(summary["status"] == 1 and summary["wrong"] > 0, "%s" % summary)


@suite.test
def many_threads_write_the_same_keys():
    with suite.server(["-t", "2"]) as server:
        for protocol in CODECS:
            summary = suite.bench(server, "--protocol", protocol, "--threads", 2, "--connections", 8, "--pipeline", 16,
                                  "--keys", 40, "--value-size", "0-500", "--fill", "--verify", "--cache-aside",
                                  "--mix", "get=6,set=2,delete=1", "--overwrites", 0.1, "--requests", 60000)
            check(summary["hits"] > 0 and summary["wrong"] == 0, "%s" % summary)


@suite.test
def values_of_somebody_else_are_foreign():
    with suite.server() as server:
        suite.bench(server, "--fill-only", "--keys", 300, "--seed", 1)
        own = suite.bench(server, "--keys", 300, "--mix", "get=1", "--requests", 1000, "--seed", 1)
        check(own["foreign"] == 0 and own["hits"] == 1000, "%s" % own)
        for options in (["--seed", 2], ["--value-size", 63], ["--value-size", 65], ["--value-size", "1-200"]):
            other = suite.bench(server, "--keys", 300, "--mix", "get=1", "--requests", 1000, "--seed", 1, *options)
            check(other["foreign"] > 900, "%s: %s" % (options, other))


@suite.test
def the_empty_client_counts_right():
    with suite.server() as server:
        for protocol in CODECS:
            summary = suite.bench(server, "--protocol", protocol, "--fill", "--empty", "--mix", "get=9,set=1,touch=1",
                                  "--pipeline", 16, "--seconds", 0.5, "--check-counters", "--threads", 2)
            check(summary["hits"] == summary["gets"] > 0 and summary["sets"] > 0 and summary["touches"] > 0,
                  "%s" % summary)
            check(summary["requests"] == summary["gets"] + summary["sets"] + summary["touches"], "%s" % summary)


@suite.test
def the_empty_client_notices_other_lengths():
    for change in (lambda reply: reply[:-1], lambda reply: reply + b"x"):
        summary = run(lambda server, request, reply, change=change: change(reply) if server.count == 300 else reply,
                      "--fill", "--empty", "--mix", "get=1", "--requests", 1000, must_pass=False)
        check(summary["status"] == 1 and summary["missing"] + summary["errors"] > 0, "%s" % summary)


@suite.test
def the_summary_has_the_options_and_the_latencies_of_each_kind():
    with suite.server() as server:
        summary = suite.bench(server, "--mix", "get=1,set=1,touch=1", "--requests", 3000, "--value-size", "5-9",
                              "--key-prefix", 'a"b\\')
    told = summary["options"]
    help_text = subprocess.run([suite.bench_path, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    names = re.findall(r"--([a-z-]+)", "\n".join(line[:30] for line in help_text.splitlines()[3:]))
    check(set(names) == set(told), "%s" % (set(names) ^ set(told)))
    check((told["mix"], told["requests"], told["value-size"], told["json"], told["socket"], told["key-prefix"])
          == ("get=1,set=1,touch=1", 3000, "5-9", True, None, 'a"b\\'), "%s" % told)
    for kind in ("", "get_", "set_", "other_"):
        values = [summary["%slatency_%s_us" % (kind, name)]
                  for name in ("p50", "p90", "p95", "p99", "p999", "p9999", "max")]
        check(values == sorted(values) and values[0] > 1, "%s%s" % (kind, values))
    check(summary["bench_cpu_user_seconds"] + summary["bench_cpu_system_seconds"] > 0, "no CPU time")


@suite.test
def threads_run_where_they_are_bound():
    cpu = max(os.sched_getaffinity(0))
    with suite.server() as server:
        process = suite.start_bench(server, "--seconds", 1, "--threads", 2, "--pin", cpu)
        time.sleep(0.5)
        allowed = collections.Counter()
        for task in os.listdir("/proc/%d/task" % process.pid):
            with open("/proc/%d/task/%s/status" % (process.pid, task)) as status:
                allowed[re.search(r"Cpus_allowed_list:\s*(\S+)", status.read()).group(1)] += 1
        suite.finish_bench(process)
    check(allowed[str(cpu)] >= 2, "%s" % allowed)


@suite.test
def bad_options_are_refused_in_one_line():
    for arguments in (
            ["--protocol", "http"], ["--mix", "get"], ["--mix", "get=0"], ["--mix", "got=1"], ["--mix", "get=1,"],
            ["--mix", "get=1;set=1"], ["--mix", "get=-1"], ["--keys-by", "zipf"], ["--keys-by", "zipf:x"],
            ["--keys-by", "zipf:1000"], ["--keys-by", "random"], ["--values-by", "normal"], ["--scan", "1.5"],
            ["--values-by", "log", "--value-size", "0-9"], ["--scan", "0.6", "--overwrites", "0.6"],
            ["--arrivals", "late"], ["--pin", "x"], ["--pin", "0,"], ["--ttl", "9-3"], ["--shift", "5"],
            ["--empty", "--verify"], ["--empty", "--rate", "5"], ["--empty", "--mix", "append=1"],
            ["--strict", "--verify", "--ttl", "5"], ["--strict", "--verify", "--mix", "get=1,delete=1"],
            ["--key-size", "9", "--scan", "0.1"], ["--key-size", "5", "--mix", "incr=1"], ["--flags", "4294967296"]):
        process = subprocess.run([suite.bench_path] + arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, timeout=30)
        lines = process.stderr.splitlines()
        check(process.returncode == 2 and len(lines) == 1 and arguments[0] in lines[0] and not process.stdout,
              "%s: status %d, %r" % (arguments, process.returncode, process.stderr))


suite.main()
