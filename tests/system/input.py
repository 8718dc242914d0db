#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Input that is wrong, endless, or lies about its length: one answer that says so, the stream in sync, no growth, and
nothing lost of what others have stored."""

import errno
import random
import socket
import struct

from common import MIB, Failed, MemoryWatch, Suite, ask, check, check_memory, receive_exactly

suite = Suite(__doc__)


def kept(server):
    """Puts 1000 items where they can be looked for afterwards."""
    options = ["--connections", 5, "--keys", 1000, "--key-prefix", "kept", "--verify", "--strict"]
    suite.bench(server, *options, "--fill-only")

    def still_there():
        found = suite.bench(server, *options, "--ratio", "0:1", "--requests", 5000)
        check(found["hits"] == 5000, "only %d of 5000 gets hit" % found["hits"])
        server.check_answers()

    return still_there


def read_to_end(sock):
    data = b""
    try:
        while True:
            part = sock.recv(65536)
            if not part:
                return data
            data += part
    except ConnectionResetError:
        return data


@suite.test
def an_endless_line_is_cut_off():
    with suite.server(["-m", 64]) as server:
        still_there = kept(server)
        with MemoryWatch(server.pid) as watch:
            for beginning in (b"", b"set ", b"get ", b"mg ", b" ", b"stats "):
                with server.connect(10) as sock:
                    sent = 0
                    try:
                        sock.sendall(beginning)
                        while sent < 64 * MIB:
                            sock.sendall(b"x" * 65536)
                            sent += 65536
                    except (BrokenPipeError, ConnectionResetError):
                        pass
                    check(sent < 64 * MIB, "%d bytes of a line that begins with %r were taken" % (sent, beginning))
        check_memory(watch, 64, "endless lines")
        still_there()


@suite.test
def a_get_of_very_many_keys():
    """A get may have more keys than any other line may have bytes; without an end it is cut off, or holds nothing."""
    with suite.server(["-m", 64]) as server:
        still_there = kept(server)
        with server.connect(20) as sock:
            check(ask(sock, b"set key 0 0 3\r\nval\r\n") == b"STORED", "not stored")
            keys = [b"miss%d" % i for i in range(4000)]
            keys[::100] = [b"key"] * 40
            sock.sendall(b"get " + b" ".join(keys) + b"\r\nmn\r\n")
            expected = b"VALUE key 0 3\r\nval\r\n" * 40 + b"END\r\nMN\r\n"
            check(receive_exactly(sock, len(expected)) == expected, "not the 40 values of 4000 keys")
        with MemoryWatch(server.pid) as watch, server.connect(20) as sock:
            try:
                sock.sendall(b"get")
                for i in range(10000):
                    sock.sendall(b" " + b" ".join(b"miss%d.%d" % (i, n) for n in range(100)))
            except (BrokenPipeError, ConnectionResetError):
                pass
        check_memory(watch, 64, "a million keys in one line")
        still_there()


@suite.test
def values_that_are_too_large_are_swallowed():
    with suite.server(["-m", 64]) as server:
        still_there = kept(server)
        with MemoryWatch(server.pid) as watch, server.connect(60) as sock:
            for size in (MIB + 1, 64 * MIB, 1024 * MIB):
                sock.sendall(b"set large 0 0 %d\r\n" % size)
                block = b"flush_all\r\n" * 5000  # nothing of it may be taken for a command
                left = size
                while left > 0:
                    sock.sendall(block[:left])
                    left -= min(left, len(block))
                sock.sendall(b"\r\nmn\r\n")
                expected = b"SERVER_ERROR object too large for cache\r\nMN\r\n"
                got = receive_exactly(sock, len(expected))
                check(got == expected, "%d bytes: %r" % (size, got))
        check_memory(watch, 64, "swallowed values")
        still_there()


@suite.test
def lengths_that_lie_in_text():
    with suite.server(["-m", 64]) as server:
        still_there = kept(server)
        for line, first in ((b"set k 0 0 -1", b"CLIENT_ERROR"), (b"set k 0 0 4294967296", b"CLIENT_ERROR"),
                            (b"set k 0 0 99999999999999999999", b"CLIENT_ERROR"), (b"set k 0 0 1x", b"CLIENT_ERROR"),
                            (b"ms k -1", b"CLIENT_ERROR"), (b"ms k 99999999999999999999", b"CLIENT_ERROR"),
                            (b"ms k 4294967296", b"CLIENT_ERROR")):
            with server.connect() as sock:
                try:
                    answer = ask(sock, line + b"\r\n")
                    check(answer.startswith(first), "%r was answered %r" % (line, answer))
                    check(ask(sock, b"mn\r\n") == b"MN", "%r: out of step" % line)
                except socket.timeout:
                    raise Failed("%r: no answer, or what follows is swallowed" % line)
        # Shorter and longer than said: an error, and the next command that starts a line is understood.
        with server.connect() as sock:
            sock.sendall(b"set k 0 0 2\r\nabcdef\r\nmn\r\n")
            got = b""
            while not got.endswith(b"MN\r\n"):
                part = sock.recv(4096)
                check(part, "closed after %r" % got)
                got += part
            check(got.startswith(b"CLIENT_ERROR bad data chunk\r\n"), "%r" % got)
            check(ask(sock, b"get k\r\n") == b"END", "a value of the wrong length was stored")
        still_there()


def binary(opcode, key=b"", extras=b"", value=b"", magic=0x80, lie=None):
    """A binary request; lie replaces the total length of the body."""
    body = len(extras) + len(key) + len(value) if lie is None else lie
    return struct.pack(">BBHBBHIIQ", magic, opcode, len(key), len(extras), 0, 0, body, 0, 0) + extras + key + value


@suite.test
def lengths_that_lie_in_binary():
    with suite.server(["-m", 64]) as server:
        still_there = kept(server)
        cases = [binary(1, b"key", b"\0" * 8, b"value", lie=lie) for lie in (0, 3, 0x7fffffff, 0x80000000, 0xffffffff)]
        cases += [binary(opcode, b"key", b"", b"", lie=0xfffffff0) for opcode in (0x00, 0x0a, 0x0b, 0x10, 0x1c, 0x41)]
        cases += [binary(0, b"k" * 251), binary(0, b""), binary(1, b"", b"\0" * 8, b"v"), binary(0x05, b"k", b"\0" * 3),
                  binary(0, magic=0x81), binary(0x0a, b"k" * 65535)]
        with MemoryWatch(server.pid) as watch:
            for case in cases:
                with server.connect(10) as sock:
                    try:
                        sock.sendall(case + b"\0" * 10000)
                        sock.shutdown(socket.SHUT_WR)
                    except (BrokenPipeError, ConnectionResetError):
                        pass
                    except OSError:
                        pass
                    answer = read_to_end(sock)
                    check(answer == b"" or answer[0] == 0x81, "%r was answered %r" % (case[:30], answer[:30]))
        check_memory(watch, 64, "binary lies")
        still_there()


@suite.test
def bytes_at_random():
    """Whatever comes, the server lives and the others' items stay. The seed is printed, so that it can be had again."""
    seed = random.randrange(1 << 32)
    print("  seed %d" % seed, flush=True)
    chance = random.Random(seed)
    words = [b"get", b"set", b"mg", b"ms", b"ma", b"md", b"me", b"add", b"append", b"cas", b"incr", b"touch", b"gat",
             b"delete", b"verbosity", b"version", b"stats", b"a", b"bb", b"k" * 250, b"k" * 251, b"0", b"1", b"-1", b"7",
             b"4294967295", b"18446744073709551616", b"noreply", b"v", b"t", b"q", b"k", b"b", b"Oabc", b"N30", b"\r\n",
             b"\r\n", b"\r\n", b"\n", b"\r", b"\0", b"\x80", b"\x81", b"value", b"  ", b"T0", b"MA", b"I", b"detail on"]
    with suite.server(["-m", 64]) as server:
        still_there = kept(server)
        with MemoryWatch(server.pid) as watch:
            for _ in range(1500):
                kind = chance.randrange(3)
                if kind == 0:
                    data = b" ".join(chance.choice(words) for _ in range(chance.randrange(1, 60)))
                elif kind == 1:
                    data = chance.randbytes(chance.randrange(1, 3000))
                else:
                    data = b"".join(binary(chance.randrange(0x26) if chance.random() < 0.9 else chance.randrange(256),
                                           chance.randbytes(chance.randrange(12)),
                                           chance.randbytes(chance.choice([0, 4, 8, 20, 3])),
                                           chance.randbytes(chance.randrange(20)),
                                           lie=chance.choice([None, None, None, chance.randrange(100)]))
                                    for _ in range(chance.randrange(1, 8)))
                # Those would be right to lose the others' items.
                if b"flush_all" in data or (b"\x80\x08" in data) or (b"\x80\x18" in data):
                    continue
                with server.connect(10) as sock:
                    try:
                        for at in range(0, len(data), 700):
                            sock.sendall(data[at:at + 700])
                        sock.shutdown(socket.SHUT_WR)
                        read_to_end(sock)
                    except OSError as error:
                        # The server may close at any byte.
                        if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                            raise
                check(server.alive(), "the server died of %r" % data)
        check_memory(watch, 64, "bytes at random")
        still_there()


suite.main()
