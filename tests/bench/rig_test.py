#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Tests of what the speed benchmarks compute: no server is started. A wrong sum here would be a wrong figure in a table."""

import os
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import flash_crossover  # noqa: E402
import flash_lib  # noqa: E402
import peers  # noqa: E402
import profile  # noqa: E402
import rig  # noqa: E402
import scaling  # noqa: E402


def run_of(rate, cpu_us, **more):
    """A summary of a run of one second."""
    return {"requests": rate, "requests_per_second": rate, "gets": rate, "sets": 0, "seconds": 1.0,
            "server_cpu_seconds": cpu_us * rate / 1e6, "bench_cpu_us_a_request": 0.1, "latency_p99_us": 100.0, **more}


def result_of(load, mine, its):
    """A measured row of closed loops, from the runs of both servers."""
    return peers.Result(load, {"halcyon": mine, "memcached": its}, {"halcyon": [], "memcached": []}, 0, None, 1, 1)


class Rounds(unittest.TestCase):
    def test_order_turns_around(self):
        self.assertEqual([rig.abba("AB", number) for number in range(3)], [["A", "B"], ["B", "A"], ["A", "B"]])

    def test_ratios_are_those_of_the_same_rounds(self):
        ratio = rig.Figures([10, 40, 30]).over(rig.Figures([10, 20, 10]))
        self.assertEqual((ratio.median, ratio.low, ratio.high), (2, 1, 3))
        self.assertEqual(ratio.text(), "2.00 (1.00-3.00)")

    def test_cpu_lists(self):
        self.assertEqual(rig.parse_cpus("0-3,8"), [0, 1, 2, 3, 8])
        self.assertEqual(rig.parse_cpus("5"), [5])


class Counters(unittest.TestCase):
    def summary(self, **counted):
        return {"counted": counted, "gets": 5, "sets": 2, "touches": 1, "gats": 1, "incrs": 3, "command": "bench"}

    def test_the_same_counts_pass(self):
        rig.check_counters(self.summary(cmd_get=5, cmd_set=2, cmd_touch=2, incr_hits=2, incr_misses=1), "here")

    def test_each_difference_is_found(self):
        right = {"cmd_get": 5, "cmd_set": 2, "cmd_touch": 2, "incr_hits": 3}
        for name in right:
            with self.assertRaises(rig.RigError, msg=name):
                rig.check_counters(self.summary(**{**right, name: right[name] + 1}), "here")

    def test_changes(self):
        self.assertEqual(rig.counter_changes({"a": "1", "b": "2", "c": "x"}, {"a": "4", "b": "2", "c": "y", "d": "9"}),
                         {"a": 3})


class Verdicts(unittest.TestCase):
    def verdict(self, load, mine, its):
        return result_of(load, [mine], [its]).verdict()

    def test_throughput(self):
        load = peers.Load("x", [], must=2.5, aim=4)
        other = run_of(100, 10000)
        self.assertEqual(self.verdict(load, run_of(200, 5000), other), "throughput missed by 20%")
        self.assertEqual(self.verdict(load, run_of(250, 4000), other), "throughput reached")
        self.assertEqual(self.verdict(load, run_of(400, 2500), other), "throughput aim reached")

    def test_cpu_is_better_when_lower(self):
        load = peers.Load("x", [], must_cpu=0.9, aim_cpu=0.8)
        other = run_of(1000, 1000)
        self.assertEqual(self.verdict(load, run_of(1000, 990), other), "CPU missed by 10%")
        self.assertEqual(self.verdict(load, run_of(1000, 850), other), "CPU reached")
        self.assertEqual(self.verdict(load, run_of(1000, 500), other), "CPU aim reached")

    def test_a_generator_without_cpu_is_told(self):
        mine = run_of(1000, 250, bench_cpu_us_a_request=999)
        self.assertEqual(self.verdict(peers.Load("x", []), mine, run_of(1000, 500)),
                         "generator-bound (2.0 times by CPU)")

    def test_a_multi_get_counts_its_keys(self):
        mine = run_of(10, 0)
        mine.update(gets=320, server_cpu_seconds=320e-6)
        result = result_of(peers.Load("x", []), [mine], [run_of(10, 100)])
        self.assertEqual(result.rate["halcyon"].median, 320)
        self.assertAlmostEqual(result.cpu["halcyon"].median, 1.0)


class Scaling(unittest.TestCase):
    def test_efficiency(self):
        one = scaling.Row([run_of(100, 1)], 1, 1, False)
        self.assertEqual(scaling.Row([run_of(700, 1)], 8, 1, False).efficiency(one), 0.875)
        self.assertIsNone(scaling.Row([run_of(700, 1)], 8, 1, True).efficiency(one))


class Crossover(unittest.TestCase):
    @staticmethod
    def curve(rates, base_s=0.001, penalty_s=0.005, workers=50):
        return [(rate, workers / (base_s + rate * penalty_s)) for rate in rates]

    def test_the_crossing_is_found_between_points(self):
        curve = self.curve([0, 0.02, 0.05, 0.1])
        for rate in (0.001, 0.02, 0.033, 0.0999):
            self.assertAlmostEqual(flash_crossover.crossing(curve, self.curve([rate])[0][1]), rate, 9)

    def test_none_and_at_once(self):
        curve = self.curve([0, 0.05, 0.1])
        self.assertIsNone(flash_crossover.crossing(curve, self.curve([0.11])[0][1]))
        self.assertEqual(flash_crossover.crossing(curve, 60000), 0)

    def test_the_plot_is_well_formed(self):
        for at in (None, 0.04):
            image = flash_crossover.plot(self.curve([0, 0.05, 0.1]), 40000, at)
            self.assertEqual(xml.etree.ElementTree.fromstring(image).tag, "{http://www.w3.org/2000/svg}svg")
            self.assertEqual("4.00%" in image, at is not None)


class Verdicts(unittest.TestCase):
    def test_both_ways(self):
        def verdict(value, low):
            return flash_lib.Row("", "", "", rig.Figures([value]), 5, 3 if low else 8, low).verdict()
        self.assertEqual([verdict(value, True) for value in (2, 4, 10)], ["aim reached", "reached", "missed by 100%"])
        self.assertEqual([verdict(value, False) for value in (9, 6, 4)], ["aim reached", "reached", "missed by 20%"])
        self.assertEqual(flash_lib.Row("", "", "", None, 5).verdict(), "not measured")
        self.assertEqual(flash_lib.Row("", "", "", rig.Figures([0.1]), 0, 0, True).verdict(), "missed")
        self.assertEqual(flash_lib.Row("", "", "", rig.Figures([0]), 0, 0, True).verdict(), "aim reached")


class Instructions(unittest.TestCase):
    def test_what_a_call_costs_is_not_the_callers(self):
        text = "fn=(1) a\n1 10\ncfn=(2) b\ncalls=1 0\n1 500\n2 3\nfn=(2)\n+1 7\nfn=(3) a'2\n* 1\n"
        with tempfile.NamedTemporaryFile("w", suffix=".out") as out:
            out.write(text)
            out.flush()
            self.assertEqual(profile.parse_callgrind(out.name), {"a": 14, "b": 7})

    def test_the_worker_is_told_from_the_others(self):
        costs = {(1, "main"): 1.0, (2, "parse"): 60.0, (2, "find"): 40.0, (3, "reclaim"): 30.0}
        self.assertEqual(profile.busiest(costs), 2)
        self.assertEqual(profile.summarize(costs, 2),
                         {"worker": 100.0, "others": 31.0, "top": [["parse", 60.0], ["find", 40.0]]})


if __name__ == "__main__":
    unittest.main()
