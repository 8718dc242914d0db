# SPDX-License-Identifier: BSD-2-Clause
"""Compares what came back with what a transcript expects, as far as it has come."""

import re

import transcript

FULL, PARTIAL, WRONG = "full", "partial", "wrong"
_NUMBER = re.compile(rb"-?\d+")


class Result:
    def __init__(self, status, end, detail=""):
        self.status = status
        self.end = end                  # where the match ended, or got stuck
        self.detail = detail


def _literal(want, data, at):
    have = data[at:at + len(want)]
    if have == want:
        return Result(FULL, at + len(want))
    if want.startswith(have):
        return Result(PARTIAL, len(data))
    same = 0
    while have[same] == want[same]:
        same += 1
    return Result(WRONG, at + same, "wanted %s" % show(want[same:]))


def _number(part, data, at, play, eof):
    match = _NUMBER.match(data, at)
    if not match:
        if at >= len(data) or (data[at:at + 1] == b"-" and at + 1 >= len(data)):
            return Result(PARTIAL, len(data))
        return Result(WRONG, at, "wanted a number")
    if match.end() == len(data) and not eof:
        return Result(PARTIAL, len(data))
    if isinstance(part, transcript.Near):
        if abs(int(match.group(0)) - part.number) > part.SECONDS_OFF:
            return Result(WRONG, at, "wanted about %d" % part.number)
    elif part.name:
        play.variables[part.name] = match.group(0)
    return Result(FULL, match.end())


def _binary(part, data, at, play):
    header = data[at:at + 24]
    if len(header) < 24:
        if header[:1] not in (b"", b"\x81"):
            return Result(WRONG, at, "wanted magic 0x81")
        return Result(PARTIAL, len(data))
    if header[0] != 0x81:
        return Result(WRONG, at, "wanted magic 0x81")
    bodylen = int.from_bytes(header[8:12], "big")
    if len(data) < at + 24 + bodylen:
        return Result(PARTIAL, len(data))
    body = data[at + 24:at + 24 + bodylen]
    cas = int.from_bytes(header[16:24], "big")
    wrong = []

    def check(name, have, want):
        if have != want:
            wrong.append("%s is %s, wanted %s" % (name, have, want))
    check("op", hex(header[1]), hex(part.op))
    check("status", hex(int.from_bytes(header[6:8], "big")), hex(part.status))
    check("extras", header[4], part.ext)
    check("datatype", header[5], 0)
    keylen = int.from_bytes(header[2:4], "big")
    if part.keylen is not None:
        check("keylen", keylen, part.keylen)
    elif not part.any_body:
        check("keylen", keylen, 0)
    check("opaque", int.from_bytes(header[12:16], "big"), part.opaque)
    if part.cas == "N":
        if cas == 0:
            wrong.append("cas is 0")
    elif part.cas.startswith(">"):
        play.variables[part.cas[1:]] = b"%d" % cas
    elif part.cas.startswith("$"):
        check("cas", cas, int(play.variables[part.cas[1:]]))
    elif part.cas != "*":
        check("cas", cas, int(part.cas, 0))
    if not part.any_body:
        inner = match(part.body, body, 0, play, True)
        if inner.status != FULL or inner.end != len(body):
            wrong.append("body is %s" % show(body))
    if wrong:
        return Result(WRONG, at, "; ".join(wrong))
    return Result(FULL, at + 24 + bodylen)


def _lines(parts, index, data, at, play, eof):
    """Fewest lines first: the rest of the parts decides when they end."""
    while True:
        tail = match(parts, data, at, play, eof, index + 1)
        if tail.status != WRONG:
            return tail
        end = data.find(b"\n", at)
        if end < 0:
            return Result(PARTIAL, len(data))
        at = end + 1


def match(parts, data, at, play, eof, index=0):
    """Matches parts[index:] against data[at:]."""
    while index < len(parts):
        part = parts[index]
        if isinstance(part, bytes):
            step = _literal(part, data, at)
        elif isinstance(part, (transcript.Number, transcript.Near)):
            step = _number(part, data, at, play, eof)
        elif isinstance(part, transcript.Rest):
            end = data.find(b"\r\n", at)
            if end < 0:
                end = len(data)
                step = Result(FULL if eof else PARTIAL, end)
            else:
                step = Result(FULL, end)
        elif isinstance(part, transcript.Lines):
            return _lines(parts, index, data, at, play, eof)
        elif isinstance(part, transcript.BinaryAnswer):
            step = _binary(part, data, at, play)
        else:
            step = _literal(part.render(play), data, at)
        if step.status != FULL:
            return step
        at = step.end
        index += 1
    return Result(FULL, at)


def show(data, limit=120):
    """Bytes as a transcript would write them, shortened."""
    text = "".join(chr(b) if 32 <= b < 127 and b != 92 else
                   {13: "\\r", 10: "\\n", 92: "\\\\"}.get(b, "\\x%02x" % b)
                   for b in data[:limit])
    return text + ("... (%d bytes)" % len(data) if len(data) > limit else "")
