# SPDX-License-Identifier: BSD-2-Clause
"""bench-flash: a cache in DRAM that misses now and then against one on flash that never does.

64 B keys, 8 KiB values, 50 workers with one request at a time; a miss costs its worker 5 ms. memcached has its whole key space
in DRAM, and a share of requests asks for keys that it can't have. Halcyon has the key space on flash.

Of 50 workers, a share m of whose requests takes 5 ms more, come at most 50 / (5 ms * m) requests a second: 200 k at 5%. A server
must do about as many from flash to be the faster one there, whatever memcached does.
"""

from flash_lib import MIB, Row, flash_share
from rig import Figures, rate_text

KEY_SIZE, VALUE_SIZE, CONNECTIONS, PENALTY_US = 64, 8192, 50, 5000
MISS_RATES = (0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10)
NO_SCAN = 1e-9  # key numbers are written alike with and without misses


def crossing(curve, level):
    """
    The miss rate at which the curve, (rate, requests a second) in rising order, falls to the level: between two points the
    time a request is a straight line, for a miss adds its penalty. None: it doesn't within the curve; 0: at once.
    """
    if not curve or not level:
        return None
    if curve[0][1] <= level:
        return 0.0
    for (left, above), (right, below) in zip(curve, curve[1:]):
        if below <= level:
            return left + (right - left) * (1 / level - 1 / above) / (1 / below - 1 / above)
    return None


def part_crossover(context):
    data_mb = context.pick(384, 2048)
    count = data_mb * MIB // (VALUE_SIZE + KEY_SIZE)
    load = ["-k", str(count), "-K", str(KEY_SIZE), "-V", str(VALUE_SIZE)]
    fill = [*load, "--scan", str(NO_SCAN)]
    seconds, rounds = context.pick(1, 3), context.pick(2, 3)
    halcyon = context.halcyon.start(64, 2 * data_mb, transport=context.transport)
    memcached = None
    found = {"halcyon": [], **{rate: [] for rate in MISS_RATES}}
    try:
        missing = context.fill_whole(halcyon, fill, count, "crossover")
        if context.memcached:
            memcached = context.memcached.start(int(data_mb * 1.5) + 64, transport=context.transport)
            context.fill(memcached, fill, "crossover")

        def measure(server, rate):
            return context.run(server, [*load, "--mix", "get=1", "-c", str(CONNECTIONS), "-P", "1", "--scan",
                                        str(max(rate, NO_SCAN)), "--miss-penalty-us", str(PENALTY_US), "-T", str(seconds)],
                               f"crossover, {server.label}, {rate:g} missed")
        for _ in range(rounds):
            found["halcyon"].append(measure(halcyon, 0))
            for rate in MISS_RATES if memcached else ():
                found[rate].append(measure(memcached, rate))
                found["halcyon"].append(measure(halcyon, 0))
    finally:
        halcyon.stop()
        if memcached:
            memcached.stop()
    mine = found["halcyon"]
    level = Figures(run["requests_per_second"] for run in mine)
    missed = sum(run["misses"] for run in mine) / sum(run["gets"] for run in mine)
    share = Figures(flash_share(run) for run in mine)
    curve = [(sum(run["misses"] for run in found[rate]) / sum(run["gets"] for run in found[rate]),
              Figures(run["requests_per_second"] for run in found[rate]).median) for rate in MISS_RATES if found[rate]]
    at = crossing(curve, level.median)
    context.runs.append({"what": "crossover", "curve": curve, "halcyon": level.values, "crossing": at,
                         "csv": "\n".join(["miss_rate,memcached,halcyon"] + [
                             f"{rate:.4f},{value:.0f},{level.median:.0f}" for rate, value in curve])})
    if context.plot and curve:
        with open(context.plot, "w", encoding="utf-8") as out:
            out.write(plot(curve, level.median, at))
    text = "; ".join(f"{rate:.1%} {rate_text(value)}" for rate, value in curve)
    return [Row("crossover: DRAM cache's misses", f"{rate_text(level.median)}/s", f"{rate_text(curve[0][1])}/s without misses"
                if curve else "-", at if at is not None or not curve else curve[-1][0], 0.05, 0.03, low=True, form="{:.4f}",
                note=f"{count} keys, {CONNECTIONS} workers over {context.transport}, {PENALTY_US / 1000:g} ms a miss; Halcyon -m 64, {share.median:.1%} from "
                f"flash, {missed:.3%} missed ({missing:.2%} missing at the start); memcached at {text}"
                + ("" if at is not None or not curve else "; they don't cross up to 10%, so it is more than that"))]


# --- the plot -------------------------------------------------------------------------------------------------------


def plot(curve, level, at):
    """The two curves as SVG."""
    width, height, left, top, right, bottom = 640, 400, 80, 30, 20, 60
    x_max = curve[-1][0] or 1
    y_max = 1.1 * max([level] + [value for _, value in curve])

    def x(rate):
        return left + (width - left - right) * rate / x_max

    def y(value):
        return height - bottom - (height - top - bottom) * value / y_max
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<path d="M{left} {top}V{height - bottom}H{width - right}" fill="none" stroke="black"/>']
    for i in range(6):
        rate, value = x_max * i / 5, y_max * i / 5
        parts.append(f'<text x="{x(rate):.1f}" y="{height - bottom + 18}" text-anchor="middle">{rate:.1%}</text>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value / 1000:.0f} k/s</text>')
        parts.append(f'<path d="M{left} {y(value):.1f}H{width - right}" stroke="#ddd"/>')
    points = " ".join(f"{x(rate):.1f},{y(value):.1f}" for rate, value in curve)
    parts.append(f'<polyline points="{points}" fill="none" stroke="#c33" stroke-width="2"/>')
    parts.extend(f'<circle cx="{x(rate):.1f}" cy="{y(value):.1f}" r="3" fill="#c33"/>' for rate, value in curve)
    parts.append(f'<path d="M{left} {y(level):.1f}H{width - right}" stroke="#36c" stroke-width="2"/>')
    parts.append(f'<text x="{width - right - 4}" y="{y(level) - 6:.1f}" text-anchor="end" fill="#36c">Halcyon, all on flash, no '
                 f'misses: {level / 1000:.0f} k/s</text>')
    parts.append(f'<text x="{x(curve[0][0]) + 8:.1f}" y="{y(curve[0][1]) - 6:.1f}" fill="#c33">memcached, DRAM</text>')
    if at is not None:
        parts.append(f'<path d="M{x(at):.1f} {y(level):.1f}V{height - bottom}" stroke="#555" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{x(at) + 4:.1f}" y="{height - bottom - 6}" fill="#555">{at:.2%}</text>')
    parts.append(f'<text x="{(left + width) / 2:.0f}" y="{height - 14}" text-anchor="middle">requests that memcached misses, at '
                 f'{PENALTY_US / 1000:g} ms each; {VALUE_SIZE // 1024} KiB values, {CONNECTIONS} workers</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
