#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Sends changed transcripts to a server and checks what must hold for any input.

All that the transcripts send is cut, joined, flipped, repeated and split over
writes at random. Whatever comes in: the server lives; a new connection's
barrier is answered at once; a connection that is still open answers a barrier
once a blank line and enough bytes for the longest pending block have come, and
then says nothing more; a hang-up in the middle costs no descriptor and no
memory for good. The seed is printed; --seed plays the same again.
"""

import argparse
import os
import random
import select
import socket
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "lib"))

import play                             # noqa: E402
import server as server_module          # noqa: E402
import transcript                       # noqa: E402

INPUT_MAX = 40000                       # bytes of one mutated input
BARRIER_SECONDS = 2.0                   # a new connection's barrier; a loaded machine needs some
DRAIN_SECONDS = 0.01
SILENCE_SECONDS = 0.03                  # no answer for so long: the filler goes into a block
NUMBERS = (b"0", b"1", b"-1", b"250", b"251", b"2047", b"2048", b"2049", b"16384", b"65536",
           b"1048576", b"1048577", b"2147483647", b"2147483648", b"4294967295", b"4294967296",
           b"9223372036854775807", b"18446744073709551615", b"18446744073709551616",
           b"99999999999999999999999", b"00000000000000000000001", b"0x10", b"1e3", b"+5", b"")
WORDS = (b"noreply", b"get", b"gets", b"gat", b"gats", b"set", b"add", b"cas", b"append", b"incr",
         b"decr", b"touch", b"delete", b"mg", b"ms", b"md", b"ma", b"me", b"mn", b"stats",
         b"stats items", b"stats slabs", b"stats conns", b"stats settings", b"stats sizes",
         b"stats extstore", b"stats cachedump 1 10", b"slabs reassign 1 2", b"slabs automove 1",
         b"slabs automove window 0", b"lru tune 10 25 0.1 2.0", b"lru mode flat",
         b"lru_crawler metadump all", b"lru_crawler mgdump hash", b"lru_crawler crawl all",
         b"watch", b"watch fetchers", b"extstore free_memchunks 1 1", b"cache_memlimit 100",
         b"verbosity 1", b"version", b"q v k s t f c O123", b"N0 T0 R0 E1 C1", b"b", b"I", b"x",
         b"\x80", b"\x81", b"\0", b"\xff", b" ", b"  ", b"\r", b"\n", b"\r\n", b"\n\r")
FORBIDDEN = (b"flush_all 2147", b"shutdown")


class Broken(Exception):
    """An invariant does not hold."""


def inputs(files):
    """What each case sends, rendered once; binary and text apart."""
    text, binary = [], []
    for path in files:
        for case in transcript.read_cases(path):
            if case.udp:
                continue
            data = b""
            for step in case.steps:
                if step.kind != "send" or step.variable:
                    continue
                data += transcript.render(step.parts, transcript.Play())
            if 0 < len(data):
                (binary if case.binary else text).append(data[:INPUT_MAX])
    return text, binary


class Mutator:
    def __init__(self, rng, text, binary):
        self.rng = rng
        self.pools = (text, text, binary)

    def piece(self, pool):
        data = self.rng.choice(pool)
        if len(data) > 4000 and self.rng.random() < 0.8:
            at = self.rng.randrange(len(data))
            data = data[at:at + self.rng.randrange(1, 4000)]
        return data

    def _number(self, data):
        """Another number in the place of one."""
        digits = [i for i in range(len(data)) if 48 <= data[i] < 58]
        if not digits:
            return data
        start = end = self.rng.choice(digits)
        while start > 0 and 48 <= data[start - 1] < 58:
            start -= 1
        while end < len(data) and 48 <= data[end] < 58:
            end += 1
        return data[:start] + self.rng.choice(NUMBERS) + data[end:]

    def change(self, data):
        rng = self.rng
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(9)
        if kind == 0:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1:]
        if kind == 1:
            return data[:at] + data[at + rng.randrange(1, 30):]
        if kind == 2:
            return data[:at] + rng.choice(WORDS) + data[at:]
        if kind == 3:
            return data[:at]
        if kind == 4:
            end = at + rng.randrange(1, 200)
            return data[:at] + data[at:end] * rng.randrange(2, 6) + data[end:]
        if kind == 5:
            return self._number(data)
        if kind == 6:
            return data[:at] + bytes([rng.choice(b"\r\n \0")]) + data[at:]
        if kind == 7:
            return data[:at] + rng.randbytes(rng.randrange(1, 60)) + data[at:]
        return data[:at] + bytes([(data[at] if at < len(data) else 0) ^ (1 << rng.randrange(8))]) \
            + data[at + 1:]

    def make(self):
        pool = self.rng.choice(self.pools)
        data = b""
        for _ in range(self.rng.randrange(1, 5)):
            piece = self.piece(pool)
            for _ in range(self.rng.randrange(0, 5)):
                piece = self.change(piece)
            data += piece
        for word in FORBIDDEN:
            data = data.replace(word, b"version")
        return data[:INPUT_MAX]

    def split(self, data):
        """The writes that the input goes out in."""
        if self.rng.random() < 0.5:
            return [data]
        cuts = sorted(self.rng.randrange(len(data) + 1) for _ in range(self.rng.randrange(1, 12)))
        return [data[a:b] for a, b in zip([0] + cuts, cuts + [len(data)])]


def drain(sock, seconds):
    """Reads what comes within a time. (bytes, still open)"""
    got = []
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if left <= 0:
            return b"".join(got), True
        readable, _, _ = select.select([sock], [], [], left)
        if not readable:
            continue
        try:
            part = sock.recv(1 << 18)
        except ConnectionError:
            part = b""
        if not part:
            return b"".join(got), False
        got.append(part)


def send(sock, data):
    """Sends all, reading meanwhile. False when the server has closed."""
    sock.setblocking(False)
    view = memoryview(data)
    end = time.monotonic() + 10.0
    while view:
        readable, writable, _ = select.select([sock], [sock], [], 1.0)
        try:
            if readable and not sock.recv(1 << 18):
                return False
            if writable:
                view = view[sock.send(view):]
        except BlockingIOError:
            pass
        except OSError:
            return False
        if time.monotonic() > end:
            raise Broken("the server takes no input and does not close")
    return True


def check_new_connection(server):
    """A fresh connection is served at once."""
    try:
        sock = server.connect(BARRIER_SECONDS)
        try:
            sock.sendall(b"mn\r\n")
            data = b""
            while data != b"MN\r\n":
                part = sock.recv(64)
                data += part
                if not part or len(data) > 4:
                    raise Broken("a new connection's barrier got %r" % data)
        finally:
            sock.close()
    except OSError as error:
        raise Broken("a new connection is not served: %s" % error)


def resync(sock, binary, rng):
    """Ends whatever is pending, then a barrier must be answered exactly once.

    A pending text block takes at most what its length said; that is unknown here, so filler
    comes in rounds until a barrier is answered. Blocks of more than the rounds' sum are left.
    """
    for filler in (0, 2, 300, 5000, 70000, 1200000):
        number = rng.getrandbits(32)    # nothing else that was sent is answered with it
        if binary:
            opaque = number.to_bytes(4, "big")
            request = b"\0" * filler + b"\x80\x0a" + b"\0" * 10 + opaque + b"\0" * 8
            mark = b"\x81\x0a" + b"\0" * 10 + opaque + b"\0" * 8
        else:
            request = b"\r\n" + b"mn\r\n" * (filler // 4) + b"\r\nmg resync O%d\r\n" % number
            mark = b"EN O%d\r\n" % number
        if not send(sock, request):
            return True
        end = time.monotonic() + SILENCE_SECONDS
        data = b""
        while time.monotonic() < end:
            part, is_open = drain(sock, 0.002)
            data += part
            if not is_open:
                return True
            if part:
                end = time.monotonic() + SILENCE_SECONDS
            if mark in data:
                late, is_open = drain(sock, DRAIN_SECONDS)
                tail = (data + late)[data.index(mark) + len(mark):]
                if tail:
                    raise Broken("bytes after the last answer: %r" % tail[:200])
                return True
    return False


def one(server, mutator, rng):
    data = mutator.make()
    if not data:
        return data
    sock = server.connect(5.0)
    try:
        for part in mutator.split(data):
            if part and not send(sock, part):
                break
        else:
            how = rng.random()
            if how < 0.25:
                sock.close()                # in the middle of whatever it was
                return data
            if how < 0.35:
                sock.shutdown(socket.SHUT_WR)
                _, is_open = drain(sock, 2.0)
                if is_open:
                    raise Broken("half-closed and still open after 2 s")
                return data
            drain(sock, 0.001)
            if rng.random() < 0.3:
                resync(sock, data[:1] == b"\x80", rng)
    except OSError:
        pass                            # the server was first to close
    finally:
        sock.close()
    return data


def run(options, seed, files):
    rng = random.Random(seed)
    text, binary = inputs(files)
    mutator = Mutator(rng, text, binary)
    transport = rng.choice(("tcp", "unix"))
    server = server_module.Server(options.server, ["-m", "64", "-c", "512", "-t", "2"], transport)
    idle = int(server.stats()["curr_connections"])
    begun = time.monotonic()
    tried = 0
    data = b""
    try:
        while time.monotonic() < begun + options.seconds:
            data = one(server, mutator, rng)
            tried += 1
            if not server.alive():
                raise Broken("the server died with status %s\n%s" % (
                    server.process.returncode, server.stderr_tail()))
            if tried % 8 == 0:
                check_new_connection(server)
        check_new_connection(server)
        end = time.monotonic() + 5.0
        while int(server.stats()["curr_connections"]) > idle:
            if time.monotonic() > end:
                raise Broken("closed connections are still counted: %s"
                             % server.stats()["curr_connections"])
            time.sleep(0.05)
        status, tail = server.stop()
        if status != 0 or "Sanitizer" in tail or "runtime error" in tail:
            raise Broken("the server ended with status %s\n%s" % (status, tail))
    except Broken as broken:
        print("# last input: %r" % data[-2000:])
        print("not ok 1 - %d mutated inputs, seed %d" % (tried, seed))
        print("#   " + str(broken).replace("\n", "\n#   "))
        return 1
    finally:
        server.kill()
    print("ok 1 - %d mutated inputs, seed %d, %s" % (tried, seed, transport))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", default=os.environ.get("HALCYOND"),
                        help="the server's program (default: $HALCYOND)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("files", nargs="*", help="transcripts (default: cases/*.case)")
    options = parser.parse_args()
    if not options.server or not os.access(options.server, os.X_OK):
        print("Bail out! no server program (--server PATH)")
        return 1
    options.server = os.path.abspath(options.server)
    files = options.files or play.case_files()
    seed = options.seed if options.seed is not None else random.randrange(1 << 31)
    print("1..1")
    print("# seed %d" % seed)
    sys.stdout.flush()
    return run(options, seed, files)


if __name__ == "__main__":
    sys.exit(main())
