#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Every command on items that stand on flash, and what outlives a stop and a kill, over both ways to ask the kernel.

    flash.py [HALCYOND] [--only TEXT]

An item gets to flash by a stop, which leaves nothing in memory, or by what memory gets after it: fillers, twice the memory;
what was read before stays in memory then. That it is there is seen by flash_hits, which counts look-ups that an item on flash
answered.
"""

import collections
import os
import random
import shutil
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import Suite, check  # noqa: E402
from flash_common import Daemon, scratch, supports_flash  # noqa: E402

MEMORY_MB = 16
FLASH_MB = 768
FILLER = b"f" * 3000
BACKENDS = ("io_uring", "threads")
POOL = random.Random(11).randbytes(1 << 20)

suite = Suite(__doc__)


def value_of(size, seed=0):
    """size bytes that differ by size and seed; any byte may be in it."""
    start = (size * 7919 + seed * 104729) % 65536
    return (POOL[start:start + min(size, 900000)] * (size // 900000 + 1))[:size]


class Client:
    """One connection: requests as bytes, answers as lines and blocks."""

    def __init__(self, daemon, timeout=20):
        self.sock = daemon.connect()
        self.sock.settimeout(timeout)
        self.data = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, request):
        self.sock.sendall(request)

    def more(self):
        part = self.sock.recv(1 << 20)
        check(part, "the connection was closed after %r" % self.data[-80:])
        self.data += part

    def take(self, size):
        if len(self.data) < size:
            parts, have = [self.data], len(self.data)
            while have < size:
                part = self.sock.recv(1 << 20)
                check(part, "the connection was closed in a block")
                parts.append(part)
                have += len(part)
            self.data = b"".join(parts)
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def line(self):
        while b"\r\n" not in self.data:
            self.more()
        line, self.data = self.data.split(b"\r\n", 1)
        return line

    def ask(self, request):
        """A request whose answer is one line."""
        self.send(request + b"\r\n")
        return self.line()

    def expect(self, request, answer):
        got = self.ask(request)
        check(got == answer, "%r: %r, not %r" % (request[:80], got[:80], answer))

    def values(self):
        """What get answers, to END: [(key, flags, value, CAS or None)]."""
        found = []
        while True:
            words = self.line().split(b" ")
            if words == [b"END"]:
                return found
            check(words[0] == b"VALUE", "%r instead of a value" % words)
            value = self.take(int(words[3]) + 2)
            check(value.endswith(b"\r\n"), "a value of %r doesn't end" % words)
            found.append((words[1], int(words[2]), value[:-2], int(words[4]) if len(words) > 4 else None))

    def get(self, *keys, verb=b"gets"):
        self.send(verb + b" " + b" ".join(keys) + b"\r\n")
        return self.values()

    def store(self, key, value, flags=0, ttl=0, verb=b"set", cas=None):
        words = b"%s %s %d %d %d" % (verb, key, flags, ttl, len(value))
        return self.ask(words + (b" %d" % cas if cas is not None else b"") + b"\r\n" + value)

    def store_cas(self, key, value, flags=0, ttl=0):
        """Stores, and gives the new CAS number: without a read, after which it would stay in memory."""
        words, _ = self.meta(b"ms %s %d F%d T%d c\r\n%s" % (key, len(value), flags, ttl, value))
        check(words[0] == b"HD", "%r: %r" % (key, words))
        return int(words[1][1:])

    def meta(self, request):
        """The answer's words, and its value or None."""
        self.send(request + b"\r\n")
        return self.meta_answer()

    def meta_answer(self):
        words = self.line().split(b" ")
        if words[0] != b"VA":
            return words, None
        return words[:1] + words[2:], self.take(int(words[1]) + 2)[:-2]

    def binary(self, opcode, key=b"", extras=b"", value=b"", cas=0, opaque=0):
        self.send(struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0,
                              len(key) + len(extras) + len(value), opaque, cas) + extras + key + value)

    def binary_answer(self):
        """(opcode, status, opaque, CAS, extras, key, value)"""
        magic, opcode, key, extras, _, status, body, opaque, cas = struct.unpack(">BBHBBHIIQ", self.take(24))
        check(magic == 0x81, "magic %#x" % magic)
        rest = self.take(body)
        return opcode, status, opaque, cas, rest[:extras], rest[extras:extras + key], rest[extras + key:]

    def ask_binary(self, opcode, **parts):
        self.binary(opcode, **parts)
        return self.binary_answer()


class Tier:
    """A daemon with flash in a folder of its own, for a with statement."""

    def __init__(self, io, options=(), memory_mb=MEMORY_MB, flash_mb=FLASH_MB, journal="sync", second_mb=0):
        supports_flash(suite.binary)
        self.folder = scratch()
        self.second = os.path.join(self.folder, "second")
        if second_mb:
            options = [*options, "--flash-path", self.second, "--flash-size", "%dm" % second_mb]
        self.memory_mb = memory_mb
        self.fillers = 0
        self.daemon = Daemon(suite.binary, self.folder, flash_mb, journal,
                             ["--flash-io", io, *options], memory_mb=memory_mb)

    def __enter__(self):
        self.daemon.start()
        self.client = Client(self.daemon)
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print("  the end of the log: %s" % self.daemon.tail())
        self.client.sock.close()
        self.daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def again(self, how):
        """Ends the daemon by how() and starts it on the same file."""
        self.client.sock.close()
        how()
        self.daemon.start()
        self.client = Client(self.daemon)

    def counter(self, name):
        return int(self.daemon.stats("halcyon")[name])

    def settle(self):
        """Everything that was in memory is on flash afterwards, and nothing is in memory."""
        self.again(self.daemon.stop)
        own = self.daemon.stats("halcyon")
        check(own["flash_objects"] == self.daemon.stats("")["curr_items"] and own["flash_recovered_clean"] == "yes",
              "a stop didn't bring everything to flash")

    def spill(self):
        """What nobody has read leaves memory for flash: not faster than flash can write it, for then it would be dropped."""
        busy = self.counter("flash_busy")
        for number in range(2 * self.memory_mb * (1 << 20) // (len(FILLER) * 64)):
            batch = []
            for _ in range(64):
                batch.append(b"set filler%d 0 0 %d noreply\r\n%s\r\n" % (self.fillers, len(FILLER), FILLER))
                self.fillers += 1
            self.client.send(b"".join(batch) + b"mn\r\n")
            check(self.client.line() == b"MN", "no answer to mn")
            time.sleep(0.003)
            if number % 8 == 0 and self.counter("flash_busy") > busy:
                time.sleep(0.1)
                busy = self.counter("flash_busy")

    def from_flash(self, keys, act):
        """act() answers for so many keys, each from flash."""
        before = self.counter("flash_hits")
        result = act()
        hits = self.counter("flash_hits") - before
        check(hits == len(keys), "%d of %d keys were on flash" % (hits, len(keys)))
        return result

    def see_there(self, keys):
        """All of these are on flash: a look-up of each, without its value."""
        def look():
            for key in keys:
                words, _ = self.client.meta(b"mg %s" % key)
                check(words == [b"HD"], "%r: %r" % (key, words))
        self.from_flash(keys, look)


def on_both(test):
    """The test with each backend, by its name."""
    for io in BACKENDS:
        def run(backend=io):
            test(backend)
        run.__name__ = "%s_%s" % (test.__name__, io)
        suite.test(run)
    return test


# --- text --------------------------------------------------------------------------------------------------------------


@on_both
def values_survive_exactly(io):
    """Values of many sizes, flags, TTL and CAS as they were; a multi-get in order; and what is read twice likewise."""
    sizes = [0, 1, 2, 7, 8, 20, 100, 255, 300, 511, 1000, 2000, 4000, 4095, 4096, 5000, 8192, 20000, 70000, 200000, 700000,
             1048000]
    with Tier(io) as tier:
        keys, was = {}, {}
        for number, size in enumerate(sizes):
            key = b"key%d" % number + b"k" * (number * 11 % 240)
            keys[key] = (number * 0x10001 % (1 << 32), value_of(size), 0 if number % 3 else 5000 + number)
            was[key] = tier.client.store_cas(key, keys[key][1], keys[key][0], keys[key][2])
        tier.spill()
        for turn in range(3):
            found = tier.from_flash(keys, lambda: tier.client.get(*keys)) if turn == 0 else tier.client.get(*keys)
            check([entry[0] for entry in found] == list(keys), "turn %d: keys missing or out of order" % turn)
            for key, flags, value, cas in found:
                check((flags, value) == keys[key][:2], "turn %d: %r: flags or value differ" % (turn, key))
                check(cas == was[key], "turn %d: %r: CAS %d, was %d" % (turn, key, cas, was[key]))
        for key, (_, value, ttl) in keys.items():
            words, got = tier.client.meta(b"mg %s v t" % key)
            left = int(words[1][1:])
            check(got == value and (left == -1 if ttl == 0 else ttl - 60 <= left <= ttl), "%r: %r" % (key, words))
        # A miss among them, and a key asked for twice.
        some = list(keys)[:5]
        found = tier.client.get(some[0], b"nosuch", some[1], some[0], some[2], verb=b"get")
        check([entry[0] for entry in found] == [some[0], some[1], some[0], some[2]], "a miss in between")


@on_both
def text_changes(io):
    with Tier(io) as tier:
        client = tier.client
        names = [b"set", b"add", b"replace", b"append", b"prepend", b"cas", b"badcas", b"delete", b"touch", b"gat", b"gats",
                 b"noreply", b"quiet_delete", b"untouched"]
        for name in names:
            check(client.store(name, b"old-" + name, 77, 900) == b"STORED", "not stored")
        for name, number in ((b"incr", b"41"), (b"decr", b"10"), (b"wrap", b"18446744073709551615"), (b"longer", b"99")):
            check(client.store(name, number, 5, 900) == b"STORED", "not stored")
        check(client.store(b"text", b"abc") == b"STORED", "not stored")
        cas = {key: number for key, _, _, number in client.get(*names)}
        tier.settle()
        client = tier.client
        tier.see_there(names + [b"incr", b"decr", b"wrap", b"longer", b"text"])

        check(client.store(b"set", b"new", 1) == b"STORED", "set")
        check(client.store(b"add", b"new", verb=b"add") == b"NOT_STORED", "add of a key that is there")
        check(client.store(b"replace", b"new", 2, verb=b"replace") == b"STORED", "replace")
        check(client.store(b"append", b"+", 3, verb=b"append") == b"STORED", "append")
        check(client.store(b"prepend", b"+", 3, verb=b"prepend") == b"STORED", "prepend")
        check(client.store(b"badcas", b"new", cas=cas[b"badcas"] + 1, verb=b"cas") == b"EXISTS", "cas with another number")
        check(client.store(b"cas", b"new", 9, cas=cas[b"cas"], verb=b"cas") == b"STORED", "cas")
        check(client.store(b"cas", b"newer", cas=cas[b"cas"], verb=b"cas") == b"EXISTS", "cas with an old number")
        client.expect(b"delete delete", b"DELETED")
        client.expect(b"delete delete", b"NOT_FOUND")
        client.expect(b"touch touch 300", b"TOUCHED")
        client.send(b"set noreply 4 0 3 noreply\r\nnew\r\ndelete quiet_delete noreply\r\n")
        client.expect(b"incr incr 1", b"42")
        client.expect(b"decr decr 11", b"0")
        client.expect(b"incr wrap 2", b"1")
        client.expect(b"incr longer 1", b"100")
        client.expect(b"incr text 1", b"CLIENT_ERROR cannot increment or decrement non-numeric value")
        client.send(b"gat 250 gat\r\n")
        check([entry[:3] for entry in client.values()] == [(b"gat", 77, b"old-gat")], "gat")
        client.send(b"gats 260 gats\r\n")
        check(client.values() == [(b"gats", 77, b"old-gats", cas[b"gats"])], "gats")

        expected = {
            b"set": (1, b"new", 0), b"add": (77, b"old-add", 900), b"replace": (2, b"new", 0),
            b"append": (77, b"old-append+", 900), b"prepend": (77, b"+old-prepend", 900), b"cas": (9, b"new", 0),
            b"badcas": (77, b"old-badcas", 900), b"delete": None, b"touch": (77, b"old-touch", 300),
            b"gat": (77, b"old-gat", 250), b"gats": (77, b"old-gats", 260), b"noreply": (4, b"new", 0),
            b"quiet_delete": None, b"untouched": (77, b"old-untouched", 900), b"incr": (5, b"42", 900),
            b"decr": (5, b"0 ", 900), b"wrap": (5, b"1" + b" " * 19, 900), b"longer": (5, b"100", 900), b"text": (0, b"abc", 0)}

        def verify(when):
            for key, state in expected.items():
                words, value = client.meta(b"mg %s v f t" % key)
                if state is None:
                    check(words == [b"EN"], "%s: %r is there: %r" % (when, key, value))
                    continue
                check(value is not None, "%s: %r is not there" % (when, key))
                flags, left = int(words[1][1:]), int(words[2][1:])
                if key in (b"decr", b"wrap"):
                    value, state = value.rstrip(), (state[0], state[1].rstrip(), state[2])
                check((flags, value) == state[:2], "%s: %r: %d %r" % (when, key, flags, value))
                check(left == -1 if state[2] == 0 else state[2] - 60 <= left <= state[2],
                      "%s: %r: TTL %d, not %d" % (when, key, left, state[2]))

        verify("changed")
        tier.settle()
        client = tier.client
        verify("changed, and on flash again")
        # Once more from flash: add of what is gone, set of what was deleted.
        check(client.store(b"delete", b"reborn", 6, 900, verb=b"add") == b"STORED", "add of a deleted key")
        check(client.store(b"nothing", b"x", verb=b"replace") == b"NOT_STORED", "replace of nothing")
        expected[b"delete"] = (6, b"reborn", 900)
        verify("reborn")
        tier.again(tier.daemon.stop)
        client = tier.client
        verify("after a stop")
        tier.again(tier.daemon.kill)
        client = tier.client
        for key, state in expected.items():
            words, value = client.meta(b"mg %s v f" % key)
            check(words == [b"EN"] or state is not None and value.rstrip() == state[1].rstrip(),
                  "after a kill: %r: %r" % (key, value))


@on_both
def times_and_flush(io):
    """What expires on flash is gone; a flush_all, also a delayed one, takes what is on flash."""
    with Tier(io) as tier:
        client = tier.client
        check(client.store(b"short", b"x", 0, 4) == b"STORED", "not stored")
        check(client.store(b"long", b"y", 0, 400) == b"STORED", "not stored")
        check(client.store(b"shortened", b"z", 0, 400) == b"STORED", "not stored")
        stored = time.monotonic()
        tier.spill()
        client.expect(b"touch shortened 1", b"TOUCHED")
        time.sleep(max(0, stored + 6 - time.monotonic()))
        check([entry[0] for entry in client.get(b"short", b"long", b"shortened")] == [b"long"], "expired on flash")
        client.expect(b"flush_all 2", b"OK")
        check(len(client.get(b"long")) == 1, "flushed at once by a delayed flush")
        time.sleep(3.2)
        check(client.get(b"long") == [], "there after a delayed flush")
        for number in range(50):
            check(client.store(b"again%d" % number, b"v") == b"STORED", "not stored")
        tier.spill()
        tier.see_there([b"again%d" % number for number in range(25)])
        client.expect(b"flush_all", b"OK")
        check(client.get(*[b"again%d" % number for number in range(50)]) == [], "there after flush_all")
        check(client.store(b"again3", b"new", verb=b"add") == b"STORED", "add after flush_all")
        tier.again(tier.daemon.kill)
        found = tier.client.get(*[b"again%d" % number for number in range(50)], b"long", b"short", b"shortened")
        check([entry for entry in found if entry[:1] != (b"again3",)] == [], "flushed, and back after a kill")


# --- meta --------------------------------------------------------------------------------------------------------------


@on_both
def meta_on_flash(io):
    with Tier(io) as tier:
        client = tier.client

        def meta(request, words, value=None):
            got = client.meta(request)
            check(got == (words, value), "%r: %r, not %r" % (request, got, (words, value)))

        for name in (b"all", b"stale", b"stale2", b"quiet", b"vanish", b"recache", b"app", b"modes", b"inval", b"keep",
                     b"empty"):
            meta(b"ms %s 5 F33 T900\r\nvalue" % name, [b"HD"])
        meta(b"ms num 2 T900\r\n10", [b"HD"])
        words, _ = client.meta(b"mg vivify v N300 t")
        check(b"W" in words, "vivify: %r" % words)
        cas = int(client.meta(b"mg stale c")[0][1][1:])
        keep = int(client.meta(b"mg keep c")[0][1][1:])
        meta(b"md stale I T300", [b"HD"])
        tier.settle()
        client = tier.client
        names = [b"all", b"stale2", b"quiet", b"vanish", b"recache", b"app", b"modes", b"inval", b"empty", b"num"]
        # h, l and t of what was never fetched, and then was.
        words, value = client.meta(b"mg all v f s k h l t q O123 c")
        check(value == b"value" and b"f33" in words and b"s5" in words and b"kall" in words and b"O123" in words and
              b"h0" in words, "mg all: %r" % words)
        words, _ = client.meta(b"mg all h l t")
        check(words[1] == b"h1" and 0 <= int(words[2][1:]) < 60 and 800 < int(words[3][1:]) <= 900, "mg again: %r" % words)
        tier.see_there(names[1:])
        # Stale and win: one wins, the others lose; the stale value is shown.
        words, value = client.meta(b"mg stale v c f t")
        check(value == b"value" and b"W" in words and b"X" in words and b"Z" not in words and b"f33" in words, "%r" % words)
        check(0 < int(words[3][1:]) <= 300, "the TTL of an invalidation: %r" % words)
        tier.settle()
        client = tier.client
        words, value = client.meta(b"mg stale v c")
        check(value == b"value" and b"Z" in words and b"X" in words and b"W" not in words, "%r" % words)
        now = int(words[1][1:])
        check(now > cas, "an invalidation gives a new CAS")
        meta(b"ms stale 3 C%d\r\nnew" % now, [b"HD"])
        meta(b"mg stale v", [b"VA"], b"new")
        # Vivified before: nobody else wins, also from flash.
        words, value = client.meta(b"mg vivify v t N300")
        check(value == b"" and b"Z" in words and b"W" not in words and 0 < int(words[1][1:]) <= 300, "%r" % words)
        meta(b"ms vivify 2 T0\r\nok", [b"HD"])
        meta(b"mg vivify v", [b"VA"], b"ok")
        # Recache: the TTL is short enough, one wins.
        words, _ = client.meta(b"mg recache R1000 t")
        check(b"W" in words, "%r" % words)
        words, _ = client.meta(b"mg recache R1000")
        check(b"Z" in words and b"W" not in words, "%r" % words)
        # An older CAS with I makes a stale item of it; a wrong one without is refused.
        meta(b"ms keep 5 C%d\r\nwrong" % (keep + 1), [b"EX"])
        meta(b"mg keep v c", [b"VA", b"c%d" % keep], b"value")
        meta(b"ms inval 5 I C1\r\nstale", [b"HD"])
        words, value = client.meta(b"mg inval v")
        check(value == b"stale" and b"X" in words and b"W" in words, "%r" % words)
        # Modes, and what becomes of flags and TTL.
        meta(b"ms app 1 MA\r\n+", [b"HD"])
        meta(b"ms app 1 MP\r\n-", [b"HD"])
        words, value = client.meta(b"mg app v f t")
        check(value == b"-value+" and words[1] == b"f33" and 800 < int(words[2][1:]) <= 900, "%r %r" % (words, value))
        meta(b"ms modes 1 ME\r\nx", [b"NS"])
        meta(b"ms modes 3 MR F7\r\nnew", [b"HD"])
        meta(b"mg modes v f", [b"VA", b"f7"], b"new")
        # Arithmetic.
        words, value = client.meta(b"ma num v t c")
        check(value == b"11" and 800 < int(words[1][1:]) <= 900, "%r %r" % (words, value))
        meta(b"ma num MD D5 v", [b"VA"], b"6")
        # Deletes: by CAS, quietly, and of the value alone.
        meta(b"md stale2 C1", [b"EX"])
        meta(b"md stale2", [b"HD"])
        meta(b"md empty x", [b"HD"])
        meta(b"mg empty v f", [b"VA", b"f0"], b"")
        client.send(b"md vanish q\r\nmg vanish v q\r\nmg quiet v q k\r\nms quiet 1 q\r\nz\r\nmg quiet v\r\nmn\r\n")
        check(client.meta_answer() == ([b"VA", b"kquiet"], b"value"), "quiet get")
        check(client.meta_answer() == ([b"VA"], b"z"), "a get behind a quiet set")
        check(client.meta_answer()[0] == [b"MN"], "the barrier")
        client.send(b"me num\r\n")
        check(client.line().startswith(b"ME num "), "me")


# --- binary ------------------------------------------------------------------------------------------------------------


@on_both
def binary_on_flash(io):
    get, set_, add, replace, delete, incr, decr, getq, noop, getk = 0, 1, 2, 3, 4, 5, 6, 9, 10, 12
    append, prepend, touch, gat, getkq, setq, deleteq = 14, 15, 0x1c, 0x1d, 13, 17, 20
    ok, absent, exists, not_stored = 0, 1, 2, 5
    with Tier(io) as tier:
        client = Client(tier.daemon)

        def ask(opcode, key, status, wanted=None, **parts):
            answer = client.ask_binary(opcode, key=key, **parts)
            check(answer[1] == status, "opcode %#x of %r: status %d, not %d" % (opcode, key, answer[1], status))
            check(wanted is None or answer[6] == wanted, "opcode %#x of %r: %r" % (opcode, key, answer[6][:80]))
            return answer

        extras = struct.pack(">II", 0xdeadbeef, 900)
        names = [b"get", b"set", b"add", b"replace", b"delete", b"append", b"prepend", b"touch", b"gat", b"cas", b"setq",
                 b"deleteq"]
        cas = {name: ask(set_, name, ok, extras=extras, value=b"old-" + name)[3] for name in names}
        ask(set_, b"number", ok, extras=extras, value=b"7")
        client.sock.close()
        tier.settle()
        client = Client(tier.daemon)
        tier.see_there(names + [b"number"])
        answer = ask(get, b"get", ok, b"old-get")
        check(answer[3] == cas[b"get"] and answer[4] == struct.pack(">I", 0xdeadbeef), "CAS or flags: %r" % (answer,))
        check(ask(getk, b"get", ok, b"old-get")[5] == b"get", "getk")
        ask(set_, b"set", ok, extras=extras, value=b"new")
        ask(add, b"add", exists, extras=extras, value=b"new")
        ask(replace, b"replace", ok, extras=extras, value=b"new")
        ask(replace, b"nosuch", absent, extras=extras, value=b"new")
        ask(append, b"nosuch", not_stored, value=b"new")
        ask(append, b"append", ok, value=b"+")
        ask(prepend, b"prepend", ok, value=b"+")
        ask(set_, b"cas", exists, extras=extras, value=b"new", cas=cas[b"cas"] + 1)
        ask(set_, b"cas", ok, extras=extras, value=b"new", cas=cas[b"cas"])
        ask(delete, b"delete", exists, cas=cas[b"delete"] + 1)
        ask(delete, b"delete", ok, cas=cas[b"delete"])
        ask(get, b"delete", absent)
        ask(touch, b"touch", ok, extras=struct.pack(">I", 300))
        ask(gat, b"gat", ok, b"old-gat", extras=struct.pack(">I", 250))
        ask(incr, b"number", ok, struct.pack(">Q", 12), extras=struct.pack(">QQI", 5, 0, 0))
        ask(decr, b"number", ok, struct.pack(">Q", 10), extras=struct.pack(">QQI", 2, 0, 0))
        client.binary(setq, key=b"setq", extras=extras, value=b"new")
        client.binary(deleteq, key=b"deleteq")
        for opaque, name in enumerate(names):
            client.binary(getkq if opaque % 2 else getq, key=name, opaque=opaque)
        client.binary(noop, opaque=99)
        expected = [(opaque, name) for opaque, name in enumerate(names) if name not in (b"delete", b"deleteq")]
        values = {b"set": b"new", b"replace": b"new", b"append": b"old-append+", b"prepend": b"+old-prepend", b"cas": b"new",
                  b"setq": b"new"}
        for opaque, name in expected:
            answer = client.binary_answer()
            check(answer[1] == ok and answer[2] == opaque, "a pipeline: %r instead of %r" % (answer[:3], name))
            check(answer[6] == values.get(name, b"old-" + name), "a pipeline: %r: %r" % (name, answer[6]))
        check(client.binary_answer()[0] == noop, "the no-op ends a pipeline")
        for name, ttl in ((b"touch", 300), (b"gat", 250), (b"append", 900)):
            left = int(tier.client.meta(b"mg %s t" % name)[0][1][1:])
            check(ttl - 60 <= left <= ttl, "%r: TTL %d" % (name, left))
        client.sock.close()


# --- order, size, many connections -------------------------------------------------------------------------------------


@on_both
def pipelines_in_order(io):
    """Thousands of requests at once over items on flash, in memory and nowhere, with changes between; eight connections."""
    with Tier(io) as tier:
        count = 3000
        for number in range(count):
            tier.client.send(b"ms p%d %d F%d q\r\n%s\r\n" % (number, len(value_of(number)), number, value_of(number)))
        check(tier.client.ask(b"mn") == b"MN", "stored")
        tier.spill()
        tier.see_there([b"p%d" % number for number in range(0, count, 10)])
        failures = []

        def send(client, rng, seed, wanted):
            """Requests, and in wanted what must come back; a connection only sends here, and only reads in read."""
            own = {}
            for turn in range(1500):
                what = rng.random()
                number = rng.randrange(count)
                key = b"own%d-%d" % (seed, number % 20)
                if what < 0.75:
                    wanted.append((client.meta_answer, [b"VA", b"f%d" % number, b"kp%d" % number, b"O%d" % turn],
                                   value_of(number)))
                    client.send(b"mg p%d v f k O%d\r\n" % (number, turn))
                elif what < 0.85:
                    wanted.append((client.meta_answer, [b"EN", b"O%d" % turn], None))
                    client.send(b"mg nosuch%d v O%d\r\n" % (number, turn))
                elif what < 0.93 or key not in own:
                    own[key] = b"%06d" % turn
                    wanted.append((client.meta_answer, [b"HD", b"O%d" % turn], None))
                    client.send(b"ms %s 6 O%d\r\n%06d\r\n" % (key, turn, turn))
                else:
                    wanted.append((client.meta_answer, [b"VA", b"O%d" % turn], own[key]))
                    client.send(b"mg %s v O%d\r\n" % (key, turn))
                if turn % 100 == 99:
                    keys = rng.sample(range(count), 32)
                    wanted.append((lambda: [entry[:3] for entry in client.values()],
                                   [(b"p%d" % key, key, value_of(key)) for key in keys], None))
                    client.send(b"get " + b" ".join(b"p%d" % key for key in keys) + b"\r\n")
            client.send(b"mn\r\n")

        def send_all(client, rng, seed, wanted):
            try:
                send(client, rng, seed, wanted)
            except OSError as reason:  # the reader has said why, or waits in vain and does
                failures.append("connection %d: %s" % (seed, reason))

        def read(seed):
            try:
                with Client(tier.daemon) as client:
                    wanted = collections.deque()
                    sender = threading.Thread(target=send_all, args=(client, random.Random(seed), seed, wanted))
                    sender.start()
                    done = 0
                    while done < 1515:
                        if not wanted:
                            time.sleep(0.001)
                            continue
                        answer, words, value = wanted.popleft()
                        got = answer()
                        check(got == (words if isinstance(got, list) else (words, value)),
                              "answer %d: %r instead of %r" % (done, got[:1], words))
                        done += 1
                    check(client.line() == b"MN", "the last answer")
                    sender.join()
            except Exception as reason:  # pylint: disable=broad-except
                failures.append("connection %d: %s" % (seed, reason))

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        check(not failures, "; ".join(failures[:3]))
        check(tier.counter("flash_hits") > 2000, "the reads were not of flash")


@on_both
def pipelined_changes_share_commits(io):
    """Overwrites of a pipeline put their records into the journal together; what they acknowledge outlives a kill."""
    with Tier(io) as tier:
        count = 800
        for number in range(count):
            tier.client.store(b"q%d" % number, value_of(number))
        tier.spill()
        tier.see_there([b"q%d" % number for number in range(0, count, 10)])
        records, commits = tier.counter("flash_journal_records"), tier.counter("flash_journal_commits")
        for first in range(0, count, 50):
            for number in range(first, first + 50):
                request = [b"set q%d 0 0 3\r\nnew\r\n", b"delete q%d\r\n", b"touch q%d 0\r\n"][number % 3]
                tier.client.send(request % number)
            for number in range(first, first + 50):
                answer = tier.client.line()
                check(answer in (b"STORED", b"DELETED", b"TOUCHED"), "change %d: %r" % (number, answer))
        records, commits = (tier.counter("flash_journal_records") - records,
                            tier.counter("flash_journal_commits") - commits)
        check(records >= count / 2, "%d records for %d changes of keys on flash" % (records, count))
        check(commits < records / 4, "%d commits for %d records" % (commits, records))
        tier.again(tier.daemon.kill)
        for number in range(count):
            for _, _, value, _ in tier.client.get(b"q%d" % number):
                check(number % 3 != 1, "q%d came back" % number)
                check(value == (b"new" if number % 3 == 0 else value_of(number)), "q%d: an old value" % number)


@on_both
def large_values(io):
    """Up to -I 8m; a large one does not keep small ones of another connection waiting for seconds."""
    sizes = [(1 << 20) + 1, 1500000, 2 << 20, 3000001, 4 << 20, 6000000, (8 << 20) - 600]
    with Tier(io, ["-I", "8m"], memory_mb=128, flash_mb=2048) as tier:
        was = []
        for number, size in enumerate(sizes):
            was.append(tier.client.store_cas(b"large%d" % number, value_of(size, number), number))
        check(tier.client.store(b"small", b"s") == b"STORED", "small")
        tier.settle()
        keys = [b"large%d" % number for number in range(len(sizes))]
        with Client(tier.daemon) as other:
            tier.client.send(b"gets " + b" ".join(keys) + b"\r\n")
            began = time.monotonic()
            check(other.get(b"small")[0][2] == b"s", "small")
            check(time.monotonic() - began < 2, "a small get waited for large ones")
            found = tier.client.values()
        check([entry[0] for entry in found] == keys, "of the large ones came %r" % [entry[0] for entry in found])
        for number, (_, flags, value, cas) in enumerate(found):
            check(flags == number and value == value_of(sizes[number], number) and cas == was[number],
                  "%d bytes: they differ" % sizes[number])
        check(tier.counter("flash_hits") >= len(keys), "the large ones were not on flash")
        check(tier.client.store(b"large0", b"+", verb=b"append") == b"STORED", "append")
        check(tier.client.get(b"large0")[0][2] == value_of(sizes[0], 0) + b"+", "append to a large one on flash")
        tier.client.expect(b"delete large1", b"DELETED")
        tier.again(tier.daemon.stop)
        found = tier.client.get(*keys)
        check([entry[0] for entry in found] == [key for key in keys if key != b"large1"], "after a stop")
        check(found[-1][2] == value_of(sizes[-1], len(sizes) - 1), "after a stop the last differs")


# --- starts ------------------------------------------------------------------------------------------------------------


@on_both
def stop_keeps_everything(io):
    """Memory included: values, flags, CAS, TTL; twice in a row, and CAS numbers go on rising."""
    with Tier(io) as tier:
        flash = [b"flash%d" % number for number in range(500)]
        memory = [b"memory%d" % number for number in range(500)]
        for number, key in enumerate(flash):
            check(tier.client.store(key, value_of(number * 7), number, 5000) == b"STORED", "not stored")
        tier.spill()
        for number, key in enumerate(memory):
            check(tier.client.store(key, value_of(number * 5, 1), number, 6000) == b"STORED", "not stored")
        items = int(tier.daemon.stats("")["curr_items"])
        was = {entry[0]: entry for entry in tier.client.get(*flash, *memory)}
        check(len(was) == 1000, "%d of 1000 are there before the stop" % len(was))
        for turn in range(2):
            tier.again(tier.daemon.stop)
            own = tier.daemon.stats("halcyon")
            check(own["flash_recovered_clean"] == "yes", "turn %d: the log was replayed" % turn)
            check(int(tier.daemon.stats("")["curr_items"]) == items == int(own["flash_objects"]),
                  "turn %d: %s items, were %d" % (turn, own["flash_objects"], items))
            now = {entry[0]: entry for entry in tier.client.get(*flash, *memory)}
            check(now == was, "turn %d: %d of 1000 are there, or differ" % (turn, len(now)))
            left = int(tier.client.meta(b"mg memory7 t")[0][1][1:])
            check(5900 < left <= 6000, "TTL %d" % left)
        check(tier.client.store(b"new", b"x") == b"STORED", "not stored")
        check(tier.client.get(b"new")[0][3] > max(entry[3] for entry in was.values()), "CAS numbers come again")


@on_both
def kill_keeps_what_was_staged(io):
    with Tier(io) as tier:
        keys = [b"key%d" % number for number in range(2000)]
        for number, key in enumerate(keys):
            check(tier.client.store(key, value_of(number % 900), number, 5000) == b"STORED", "not stored")
        tier.settle()
        tier.see_there(keys)
        deleted, changed = keys[::20], keys[1::20]
        for key in deleted:
            tier.client.expect(b"delete " + key, b"DELETED")
        for key in changed:
            check(tier.client.store(key, b"changed", 1) == b"STORED", "not stored")
        # More leaves memory meanwhile: where it was going to, a kill finds it or not.
        tier.spill()
        was = {entry[0]: entry for entry in tier.client.get(*keys)}
        tier.again(tier.daemon.kill)
        own = tier.daemon.stats("halcyon")
        check(own["flash_recovered_clean"] == "no" and int(own["flash_recovered_items"]) > 1000,
              "recovered: %s items, clean %s" % (own["flash_recovered_items"], own["flash_recovered_clean"]))
        check(int(own["flash_recovery_killed"]) > 0, "no record of the journal killed anything")
        found = {entry[0]: entry for entry in tier.client.get(*keys)}
        for key, entry in found.items():
            check(key in was and entry == was[key], "%r is %r, was %r" % (key, entry[1:3], was.get(key, (0, 0, 0))[1:3]))
        untouched = [key for key in keys if key not in deleted and key not in changed]
        kept = sum(key in found for key in untouched)
        # Of two keys with one tag in one bucket a replay of the log keeps the younger: one in a thousand goes.
        check(kept >= len(untouched) * 0.99, "%d of %d that stood on flash were kept" % (kept, len(untouched)))


# --- options and files -------------------------------------------------------------------------------------------------


def refused(options, *names):
    """The daemon ends at start by itself, and says each name; nothing is waited for."""
    command = [suite.binary, *(["-u", "nobody"] if os.geteuid() == 0 else []), "-l", "127.0.0.1", "-p", "0", "-s",
               os.path.join(scratch_folder[0], "unused"), *options]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    check(ended.returncode != 0, "it started and stopped by itself: %s" % " ".join(command))
    for name in names:
        check(name in ended.stdout, "%r is not in: %s" % (name, ended.stdout))
    return ended.stdout


scratch_folder = [""]


@suite.test
def memcached_names_of_the_options():
    """-o ext_path=FILE:SIZE,ext_* is the same as --flash-path, and the file of one is the other's."""
    supports_flash(suite.binary)
    folder = scratch()
    path = os.path.join(folder, "flash")
    daemon = Daemon(suite.binary, folder, 0, "sync",
                    ["-o", "ext_path=%s:64m,ext_item_size=512,ext_threads=2,ext_page_size=8,ext_recache_rate=1000" % path])
    del daemon.command[daemon.command.index("--flash-path"):daemon.command.index("--flash-path") + 2]
    try:
        daemon.start()
        check(os.stat(path).st_size == 64 << 20, "a file of 64 megabytes")
        settings = daemon.stats("settings")
        check(settings["ext_item_size"] == "512" and settings["ext_recache_rate"] == "1000", "stats settings")
        with Client(daemon) as client:
            check(client.store(b"key", b"v" * 600, 3) == b"STORED", "not stored")
        daemon.stop()
        daemon = Daemon(suite.binary, folder, 0, "sync")
        daemon.start()
        with Client(daemon) as client:
            check([entry[:3] for entry in client.get(b"key")] == [(b"key", 3, b"v" * 600)], "by --flash-path")
    finally:
        daemon.kill()
        shutil.rmtree(folder)


@suite.test
def files_that_are_refused():
    """A foreign file, one of another size and one in use are refused by name, and left as they are."""
    supports_flash(suite.binary)
    folder = scratch_folder[0] = scratch()
    try:
        foreign = os.path.join(folder, "foreign")
        with open(foreign, "wb") as file:
            file.write(POOL * 64)
        os.chmod(foreign, 0o666)
        refused(["-m", "16", "--flash-path", foreign, "--flash-size", "64m"], foreign, "--flash-format")
        with open(foreign, "rb") as file:
            check(file.read() == POOL * 64, "a foreign file was written to")
        refused(["-m", "16", "-M", "--flash-path", foreign], "--disable-evictions")
        refused(["-m", "16", "--flash-path", os.path.join(folder, "no", "such")], os.path.join(folder, "no", "such"))
        refused(["-m", "16", "--flash-path", os.path.join(folder, "nothing")], "nothing")

        daemon = Daemon(suite.binary, folder, 64, "sync", ["--flash-format"], flash=foreign)
        daemon.start()
        refused(["-m", "16", "--flash-path", foreign, "--flash-size", "64m"], foreign)
        refused(["-m", "16", "--flash-path", foreign, "--flash-size", "64m", "--flash-format"], foreign)
        with Client(daemon) as client:
            check(client.store(b"key", b"value") == b"STORED", "not stored")
            check(client.get(b"key")[0][2] == b"value", "the daemon whose file was asked for")
        daemon.stop()
        # Of two superblocks one may be damaged; of neither the file is foreign.
        with open(foreign, "r+b") as file:
            file.write(b"\0" * 4096)
        daemon = Daemon(suite.binary, folder, 64, "sync", flash=foreign)
        daemon.start()
        with Client(daemon) as client:
            check(client.get(b"key")[0][2] == b"value", "with one superblock")
        daemon.stop()
        with open(foreign, "r+b") as file:
            file.write(b"junk" * 16384)
        refused(["-m", "16", "--flash-path", foreign, "--flash-size", "64m"], foreign)
    finally:
        daemon.kill()
        shutil.rmtree(folder)


@suite.test
def several_files_and_modes():
    """Regions over two files; async and off: a clean stop keeps everything with each."""
    supports_flash(suite.binary)
    for journal in ("async", "off"):
        with Tier("auto", flash_mb=128, journal=journal, second_mb=96) as tier:
            for number in range(300):
                check(tier.client.store(b"key%d" % number, value_of(number * 9)) == b"STORED", "not stored")
            tier.spill()
            for number in range(0, 300, 3):
                tier.client.expect(b"delete key%d" % number, b"DELETED")
            check(os.stat(tier.second).st_size == 96 << 20, "a second file of 96 megabytes")
            tier.again(tier.daemon.stop)
            check(tier.daemon.stats("halcyon")["flash_journal_mode"] == journal, "the mode")
            found = tier.client.get(*[b"key%d" % number for number in range(300)])
            check([(entry[0], entry[2]) for entry in found] ==
                  [(b"key%d" % number, value_of(number * 9)) for number in range(300) if number % 3], "after a stop")
            tier.again(tier.daemon.kill)
            found = tier.client.get(*[b"key%d" % number for number in range(300)])
            if journal == "off":
                check(found == [], "without a journal a kill loses everything")
            else:
                check(len(found) == 200, "%d of 200 after a kill" % len(found))


@suite.test
def statistics():
    """extstore's names are there with flash, and their figures agree."""
    supports_flash(suite.binary)
    with Tier("auto") as tier:
        keys = [b"key%d" % number for number in range(400)]
        for key in keys:
            check(tier.client.store(key, value_of(2000)) == b"STORED", "not stored")
        tier.spill()
        tier.see_there(keys)
        plain, own = tier.daemon.stats(""), tier.daemon.stats("halcyon")
        check(int(plain["get_extstore"]) == 400 and plain["miss_from_extstore"] == "0", "get_extstore")
        check(plain["extstore_objects_used"] == own["flash_objects"], "objects")
        check(int(plain["curr_items"]) == 400 + tier.fillers - int(own["flash_lost_busy"]), "curr_items")
        check(int(plain["extstore_limit_maxbytes"]) == int(own["flash_regions"]) * int(own["flash_region_bytes"]), "limit")
        check(0 < int(plain["extstore_bytes_written"]) <= int(own["flash_written_bytes"]), "bytes written")
        check(float(own["flash_read_device_p50_us"]) <= float(own["flash_read_device_p99_us"]), "device times")
        check(0 < float(own["flash_read_device_p99_us"]) < 1e6, "device times")
        check(own["flash_state"] == "alive" and own["flash_backend"] in BACKENDS, "state")
        parts = sum(int(own["flash_" + part]) for part in
                    ("item_bytes_written", "item_bytes_reinserted", "journal_bytes", "overhead_bytes"))
        check(parts == int(own["flash_written_bytes"]), "the parts of what was written")
        pages = tier.daemon.stats("extstore")
        check(len(pages) == 4 * int(own["flash_regions"]), "stats extstore")
        check(sum(int(pages[name]) > 0 for name in pages if name.endswith(":version")) >= 2, "versions")
        for name in ("items", "slabs", "sizes"):
            check(tier.daemon.stats(name), "stats %s" % name)
    with suite.server(["-m", "16"]) as server:
        check(not [name for name in server.stats() if "extstore" in name], "extstore's names without flash")
        check(server.stats("extstore") == {}, "stats extstore without flash")


if __name__ == "__main__":
    suite.main()
