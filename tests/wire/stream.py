# SPDX-License-Identifier: BSD-2-Clause
"""Plays one case over one connection (or UDP socket) and says what went wrong."""

import select
import socket
import time

import match
import transcript
from transcript import Play, expected, render

REPEATS = 100                           # pipelined repetitions of a case
PIPELINE_BYTES_MAX = 2 << 20            # ... as long as all of them stay under this
BYTEWISE_EDGE = 3000                    # longer writes: only the ends go byte by byte
FILL_REPLY_MAX = 4096
LONG_PAUSE = 0.5                        # seconds: such a pause is about the server's clock

BARRIER_TEXT = b"mn\r\n"
BARRIER_TEXT_REPLY = b"MN\r\n"
_OPAQUE = b"\x0b\xad\xca\xfe"
BARRIER_BINARY = b"\x80\x0a" + b"\0" * 10 + _OPAQUE + b"\0" * 8
BARRIER_BINARY_REPLY = b"\x81\x0a" + b"\0" * 10 + _OPAQUE + b"\0" * 8


class Failure(Exception):
    """A case did not go as its transcript says."""


class Stream:
    """A connection that never blocks on writing while the server wants to write."""

    def __init__(self, sock, timeout):
        self.sock = sock
        self.sock.setblocking(False)
        self.timeout = timeout
        self.data = b""
        self.at = 0                     # bytes before this are matched
        self.eof = False
        self.last_send = time.monotonic()

    def close(self):
        self.sock.close()

    def _receive(self):
        try:
            part = self.sock.recv(1 << 18)
        except BlockingIOError:
            return False
        except ConnectionError:
            part = b""
        if not part:
            self.eof = True
            return False
        self.data += part
        return True

    def _write(self, data):
        view = memoryview(data)
        end = time.monotonic() + self.timeout
        while view and not self.eof:
            try:
                view = view[self.sock.send(view):]
                end = time.monotonic() + self.timeout
                continue
            except BlockingIOError:
                pass
            except OSError:
                # The server closed; what it said before may still be read.
                while self._receive():
                    pass
                self.eof = True
                return
            readable, _, _ = select.select([self.sock], [self.sock], [], 1.0)
            if readable:
                self._receive()
            if time.monotonic() > end:
                raise Failure("the server takes no more input (%d bytes left)" % len(view))

    def send(self, data, bytewise):
        if not bytewise:
            self._write(data)
        else:
            edge = BYTEWISE_EDGE
            if len(data) <= 2 * edge:
                head, middle, tail = data, b"", b""
            else:
                head, middle, tail = data[:edge], data[edge:-edge], data[-edge:]
            for run in (head, tail):
                for at in range(len(run)):
                    self._write(run[at:at + 1])
                if run is head and middle:
                    self._write(middle)
        self.last_send = time.monotonic()

    def wait(self, end):
        """Waits until `end` for input. False when there is nothing more to come."""
        if self.eof:
            return False
        left = end - time.monotonic()
        if left <= 0:
            return False
        readable, _, _ = select.select([self.sock], [], [], left)
        if readable:
            self._receive()
        return True

    def expect(self, parts, play):
        """Reads until parts are matched."""
        end = time.monotonic() + self.timeout
        while True:
            result = match.match(parts, self.data, self.at, play, self.eof)
            if result.status == match.FULL:
                self.data = self.data[result.end:]
                self.at = 0
                return
            if result.status == match.WRONG:
                raise Failure("%s, got %s (after %s)" % (
                    result.detail, match.show(self.data[result.end:]),
                    match.show(self.data[max(0, result.end - 60):result.end])))
            if not self.wait(end):
                why = "connection closed" if self.eof else "nothing more came"
                raise Failure("%s; wanted %s, got %s" % (
                    why, _wanted(parts, play), match.show(self.data)))

    def expect_closed(self):
        end = time.monotonic() + self.timeout
        while not self.eof and self.wait(end):
            pass
        if not self.eof:
            raise Failure("not closed; got %s" % match.show(self.data))
        if self.data:
            raise Failure("extra bytes before the close: %s" % match.show(self.data))

    def expect_quiet(self):
        self._receive()
        if self.data:
            raise Failure("bytes that nobody asked for: %s" % match.show(self.data))
        if self.eof:
            raise Failure("closed after the last answer")


def _wanted(parts, play):
    text = b""
    for part in parts:
        if isinstance(part, bytes):
            text += part
        elif hasattr(part, "render"):
            text += part.render(play)
        else:
            text += b"{" + type(part).__name__.encode() + b"}"
    return match.show(text)


def barrier(case):
    if case.binary:
        return BARRIER_BINARY, BARRIER_BINARY_REPLY
    return BARRIER_TEXT, BARRIER_TEXT_REPLY


def _fill(stream, step, play):
    """Stores values until the server refuses one; its answer is left to be matched."""
    for index in range(step.limit):
        key = b"fill%d_%s" % (index, play.uid)
        stream.send(b"set %s 0 0 %d\r\n%s\r\n" % (key, step.size, b"f" * step.size), False)
        end = time.monotonic() + stream.timeout
        while not stream.data.endswith(b"\r\n"):
            if len(stream.data) > FILL_REPLY_MAX or not stream.wait(end):
                raise Failure("no answer to a set: %s" % match.show(stream.data))
        if stream.data != b"STORED\r\n":
            return
        stream.data = b""
    raise Failure("%d values of %d bytes were all stored" % (step.limit, step.size))


def _flood(server, step, held, timeout):
    """Opens connections until one is refused with exactly step.text."""
    for accepted in range(step.high + 1):
        sock = server.connect(timeout)
        held.append(sock)
        reply = b""
        try:
            sock.sendall(BARRIER_TEXT)
        except OSError:
            pass                        # refused already: what it said can still be read
        try:
            while reply != BARRIER_TEXT_REPLY:
                part = sock.recv(4096)
                if not part:
                    break
                reply += part
        except ConnectionError:
            pass
        if reply == BARRIER_TEXT_REPLY:
            continue
        if reply != step.text:
            raise Failure("refused with %s" % match.show(reply))
        if accepted < step.low:
            raise Failure("refused after only %d connections" % accepted)
        return
    raise Failure("%d connections and none refused" % (step.high + 1))


def _open(server, step, held, timeout):
    for _ in range(step.count):
        sock = server.connect(timeout)
        held.append(sock)
        sock.sendall(BARRIER_TEXT)
        if sock.recv(64) != BARRIER_TEXT_REPLY:
            raise Failure("one of %d connections got no answer" % step.count)


def play_once(server, case, bytewise, version, timeout):
    """The case once, in segments as written or one byte per write."""
    play = Play()
    held = []
    stream = None
    try:
        stream = Stream(server.connect(timeout), timeout)
        pending = []
        out = []

        def push():
            if out:
                stream.send(b"".join(out), bytewise)
                out.clear()

        def settle():
            push()
            stream.expect(pending, play)
            pending.clear()

        for step in case.steps:
            if step.kind == "send":
                if step.variable:
                    settle()
                out.append(render(step.parts, play))
            elif step.kind == "expect":
                pending.extend(expected(step, version))
            elif step.kind == "pause":
                if step.seconds >= LONG_PAUSE:
                    settle()            # the server's seconds count from its answer
                else:
                    push()
                time.sleep(step.seconds)
            elif step.kind == "sync":
                settle()
            elif step.kind == "open":
                settle()
                _open(server, step, held, timeout)
            elif step.kind == "flood":
                settle()
                _flood(server, step, held, timeout)
            elif step.kind == "fill":
                settle()
                _fill(stream, step, play)
        if case.closed:
            settle()
            stream.expect_closed()
        else:
            request, reply = barrier(case)
            out.append(request)
            pending.append(reply)
            settle()
            took = time.monotonic() - stream.last_send
            stream.expect_quiet()
            if case.within and took > case.within:
                raise Failure("answered after %.4f s, allowed %g" % (took, case.within))
        return 1
    finally:
        if stream is not None:
            stream.close()
        for sock in held:
            sock.close()


def play_pipelined(server, case, version, timeout):
    """The case many times in one write, each time with keys of its own."""
    stream = None
    try:
        stream = Stream(server.connect(timeout), timeout)
        plays = []
        out = b""
        requests = []
        for _ in range(REPEATS):
            play = Play()
            data = b"".join(render(s.parts, play) for s in case.steps if s.kind == "send")
            requests.append(data)
            plays.append(play)
            if sum(map(len, requests[-1:])) * (len(plays) + 1) > PIPELINE_BYTES_MAX:
                break
        request, reply = barrier(case)
        out = b"".join(requests) + request
        stream.send(out, False)
        parts = []
        for step in case.steps:
            if step.kind == "expect":
                parts.extend(expected(step, version))
        for number, play in enumerate(plays):
            try:
                stream.expect(parts, play)
            except Failure as failure:
                raise Failure("repetition %d of %d: %s" % (number + 1, len(plays), failure))
        stream.expect([reply], Play())
        stream.expect_quiet()
        return len(plays)
    finally:
        if stream is not None:
            stream.close()


class _Udp:
    HEADER = 8
    DATAGRAM_MAX = 1400

    def __init__(self, sock, timeout):
        self.sock = sock
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.timeout = timeout
        self.id = 0x1000

    def send(self, header, body):
        self.id = (self.id + 1) & 0xffff
        values = {"id": self.id, "seq": 0, "tot": 1, "res": 0}
        values.update(header or {})
        self.id = values["id"]
        self.sock.send(b"".join(values[n].to_bytes(2, "big") for n in ("id", "seq", "tot", "res"))
                       + body)

    def receive(self, parts, play, datagrams):
        """Puts the datagrams of one answer together and matches it."""
        got = {}
        end = time.monotonic() + self.timeout
        total = None
        while total is None or len(got) < total:
            self.sock.settimeout(max(0.001, end - time.monotonic()))
            try:
                data = self.sock.recv(65536)
            except socket.timeout:
                raise Failure("%s of %s datagrams came; wanted %s" % (
                    len(got), total, _wanted(parts, play)))
            if len(data) < self.HEADER or len(data) > self.DATAGRAM_MAX:
                raise Failure("a datagram of %d bytes" % len(data))
            ident, seq, tot, res = (int.from_bytes(data[i:i + 2], "big") for i in (0, 2, 4, 6))
            if ident != self.id:
                raise Failure("request id %#x, wanted %#x: %s" % (
                    ident, self.id, match.show(data[self.HEADER:])))
            if res != 0:
                raise Failure("reserved is %d" % res)
            if total is None:
                total = tot
            if tot != total or seq >= tot or seq in got:
                raise Failure("sequence %d of %d (first said %d)" % (seq, tot, total))
            got[seq] = data[self.HEADER:]
        if datagrams is not None and total != datagrams:
            raise Failure("%d datagrams, wanted %d" % (total, datagrams))
        answer = b"".join(got[i] for i in range(total))
        result = match.match(parts, answer, 0, play, True)
        if result.status != match.FULL or result.end != len(answer):
            raise Failure("%s; wanted %s, got %s" % (
                result.detail, _wanted(parts, play), match.show(answer)))


def play_udp(server, case, version, timeout, repeats=5):
    """The case over UDP, a few times on one socket."""
    udp = _Udp(server.connect_udp(timeout), timeout)
    try:
        for _ in range(repeats):
            play = Play()
            for step in case.steps:
                if step.kind == "send":
                    body = render(step.parts, play)
                    if step.header is not None and step.header.get("raw"):
                        udp.sock.send(body)
                    else:
                        udp.send(step.header, body)
                elif step.kind == "expect":
                    udp.receive(expected(step, version), play, step.datagrams)
                elif step.kind == "pause":
                    time.sleep(step.seconds)
                else:
                    raise transcript.TranscriptError(
                        "%s: no '%s' over UDP" % (case.where, step.kind))
            udp.send(None, BARRIER_TEXT)
            udp.receive([BARRIER_TEXT_REPLY], play, 1)
        return repeats
    finally:
        udp.sock.close()
