# SPDX-License-Identifier: BSD-2-Clause
"""The index: lines a hit and bytes an object, by the model and as measured, and the pause of its growth."""

import json
import os
import re
import subprocess
import sys

from memory_lib import ServerError

BYTES_MUST = 12
LINES_MUST = 1.3
PAUSE_MUST_US = 1000

COST = re.compile(r"model ([\d.]+) bytes, ([\d.]+) lines; index ([\d.]+) bytes, ([\d.]+) lines")


def run_cost(context, table):
    command = os.path.join(context.build, "tests", "model", "index_cost")
    run = subprocess.run([command], stdout=subprocess.PIPE, text=True, check=False)
    found = COST.search(run.stdout)
    if not found:
        raise ServerError("index_cost ended with %d:\n%s" % (run.returncode, run.stdout))
    model_bytes, model_lines, bytes_, lines = (float(text) for text in found.groups())
    more = {"command": "tests/model/index_cost", "model_bytes": model_bytes, "model_lines": model_lines}
    table.add("cache lines a hit (model %.3f)" % model_lines, "", "%.3f" % lines, lines, LINES_MUST, more=more)
    table.add("index bytes an object (model %.2f)" % model_bytes, "8", "%.2f" % bytes_, bytes_, BYTES_MUST, more=more)


def run_growth(context, table):
    command = [sys.executable, os.path.join(context.source, "tests", "bench", "growth.py"), "--json",
               "--items", str(context.growth_items), context.halcyond, "--bench", context.bench]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        figures = json.loads(run.stdout)
    except ValueError:
        raise ServerError("growth.py ended with %d:\n%s" % (run.returncode, run.stdout)) from None
    pause_us, splits = figures["pause_cpu_us"], int(figures["own"]["index_splits"])
    if splits == 0:
        raise ServerError("the index did not grow at %d items" % context.growth_items)
    table.add("growth to %.0f M items, %.1f M steps: longest, ms" % (context.growth_items / 1e6, splits / 1e6), "none",
              "%.3f" % (pause_us / 1000), pause_us / 1000, PAUSE_MUST_US / 1000, more={"figures": figures})
