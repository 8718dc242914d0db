# SPDX-License-Identifier: BSD-2-Clause
"""Reads wire transcripts (*.case): what is sent, what must come back.

README.md in this folder describes the language. Everything is compiled once;
a play renders a case with its own set of keys, so any number of plays of any
number of cases can share one server.
"""

import base64
import itertools
import random
import re
import string
import threading

_DIGITS = string.digits + string.ascii_lowercase
UID_WIDTH = 5                           # characters that make a key unique
_uid_lock = threading.Lock()
_uid_next = 0


def next_uid():
    """A string of UID_WIDTH characters that no other play has."""
    global _uid_next
    with _uid_lock:
        number = _uid_next
        _uid_next += 1
    out = ""
    for _ in range(UID_WIDTH):
        number, digit = divmod(number, 36)
        out = _DIGITS[digit] + out
    return out.encode()


class TranscriptError(Exception):
    """A transcript that cannot be read."""


# What a template is made of. A literal is bytes; the others are these.

class Key:
    """A key of this play's own; padded to `length` bytes when that is given."""

    def __init__(self, name, length=0):
        self.name = name.encode()
        self.length = length

    def render(self, play):
        text = self.name + b"_" + play.uid
        if self.length and len(text) > self.length:
            raise TranscriptError("key @%s is longer than %d" % (self.name.decode(), self.length))
        return text.ljust(self.length, b"k")


class Base64:
    def __init__(self, parts):
        self.parts = parts

    def render(self, play):
        return base64.b64encode(render(self.parts, play))


class Variable:
    """A number that an earlier answer gave."""

    def __init__(self, name):
        self.name = name

    def render(self, play):
        return play.variables[self.name]


class Number:
    """In an answer: any decimal number, kept under `name` if there is one."""

    def __init__(self, name=None):
        self.name = name


class Near:
    """In an answer: a number of seconds, at most SECONDS_OFF from this one."""

    SECONDS_OFF = 2

    def __init__(self, number):
        self.number = number


class Rest:
    """In an answer: whatever is left of the line, without its CR LF."""


class Lines:
    """In an answer: any number of whole lines, as few as possible."""


class BinaryAnswer:
    """One decoded binary response."""

    def __init__(self, fields, where):
        known = {"op", "status", "ext", "keylen", "opaque", "cas", "body", "magic", "dt"}
        for name in fields:
            if name not in known:
                raise TranscriptError("%s: no field '%s' in an answer" % (where, name))
        self.op = int(fields["op"], 0)
        self.status = int(fields.get("status", "0"), 0)
        self.ext = int(fields.get("ext", "0"), 0)
        self.keylen = int(fields["keylen"], 0) if "keylen" in fields else None
        self.opaque = int(fields.get("opaque", "0"), 0)
        self.cas = fields.get("cas", "0")
        self.body = compile_template(fields.get("body", ""), where, True)
        self.any_body = len(self.body) == 1 and isinstance(self.body[0], Rest)


class Play:
    """The state of one play of one case."""

    def __init__(self):
        self.uid = next_uid()
        self.variables = {}


def render(parts, play):
    """The bytes of a template without answer wildcards."""
    return b"".join(p if isinstance(p, bytes) else p.render(play) for p in parts)


_ESCAPES = {"r": b"\r", "n": b"\n", "t": b"\t", "0": b"\0", "s": b" ", "\\": b"\\",
            "{": b"{", "}": b"}", "@": b"@", "#": b"#", "|": b"|"}
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*")


def _matching_brace(text, start, where):
    depth = 0
    at = start
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise TranscriptError("%s: '{' without '}'" % where)


def _index_substituted(text, index):
    """Replaces each # that isn't escaped (nor the whole of {#}) by the index."""
    out = re.sub(r"\{#\}", "\0", text)
    out = re.sub(r"(?<!\\)#", str(index), out)
    return out.replace("\0", "{#}")


def _brace(inner, where, answer):
    if inner.startswith("for "):
        count, _, body = inner[4:].partition(":")
        parts = []
        for index in range(int(count)):
            parts += compile_template(_index_substituted(body, index), where, answer)
        return parts
    if inner.startswith("b64:"):
        return [Base64(compile_template(inner[4:], where, False))]
    if inner.startswith("$"):
        return [Variable(inner[1:])]
    if answer:
        if inner == "#":
            return [Number()]
        if inner.startswith(">"):
            return [Number(inner[1:])]
        if inner.startswith("~"):
            return [Near(int(inner[1:]))]
        if inner == "*":
            return [Rest()]
        if inner == "lines":
            return [Lines()]
    body, star, count = inner.rpartition("*")
    if star and count.isdigit():
        count = int(count)
        if body.startswith("@"):
            return [Key(body[1:], count)]
        if body.startswith("?"):
            return [random.Random(int(body[1:])).randbytes(count)]
        parts = compile_template(body, where, answer)
        if all(isinstance(part, bytes) for part in parts):
            return [b"".join(parts) * count]
        return parts * count
    raise TranscriptError("%s: cannot read {%s}" % (where, inner))


def compile_template(text, where, answer):
    """Text with escapes, {...} and @keys, as a list of parts; literals are joined."""
    parts = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            kind = text[at + 1:at + 2]
            if kind == "x":
                parts.append(bytes([int(text[at + 2:at + 4], 16)]))
                at += 4
                continue
            if kind not in _ESCAPES:
                raise TranscriptError("%s: unknown escape \\%s" % (where, kind))
            parts.append(_ESCAPES[kind])
            at += 2
        elif char == "{":
            end = _matching_brace(text, at, where)
            parts += _brace(text[at + 1:end], where, answer)
            at = end + 1
        elif char == "@":
            match = _KEY.match(text, at + 1)
            if not match:
                raise TranscriptError("%s: '@' without a key's name" % where)
            parts.append(Key(match.group(0)))
            at = match.end()
        else:
            end = at
            while end < len(text) and text[end] not in "\\{@":
                end += 1
            parts.append(text[at:end].encode("latin-1"))
            at = end
    joined = []
    for literal, run in itertools.groupby(parts, lambda part: isinstance(part, bytes)):
        if literal:
            joined.append(b"".join(run))
        else:
            joined.extend(run)
    return joined


def _fields(text, where):
    """'op=0x01 key=a val=b' as a dict; body= takes the rest of the line."""
    found = {}
    head, has_body, body = text.partition("body=")
    if has_body:
        found["body"] = body
    for word in head.split():
        name, equals, value = word.partition("=")
        if not equals:
            raise TranscriptError("%s: '%s' is not name=value" % (where, word))
        found[name] = value
    if "op" not in found:
        raise TranscriptError("%s: no op=" % where)
    return found


class BinaryRequest:
    """One binary request from fields; lengths may lie on purpose."""

    _known = {"op", "key", "ext", "val", "opaque", "cas", "keylen", "extlen",
              "bodylen", "magic", "dt", "vb"}

    def __init__(self, fields, where):
        for name in fields:
            if name not in self._known:
                raise TranscriptError("%s: no field '%s' in a request" % (where, name))
        self.fields = fields
        self.key = compile_template(fields.get("key", ""), where, False)
        self.ext = bytes.fromhex(fields.get("ext", ""))
        self.val = compile_template(fields.get("val", ""), where, False)

    def _int(self, name, default, width):
        number = int(self.fields[name], 0) if name in self.fields else default
        return number.to_bytes(width, "big")

    def render(self, play):
        key = render(self.key, play)
        val = render(self.val, play)
        cas = self.fields.get("cas", "0")
        cas = int(play.variables[cas[1:]]) if cas.startswith("$") else int(cas, 0)
        return b"".join((
            self._int("magic", 0x80, 1), self._int("op", 0, 1),
            self._int("keylen", len(key), 2), self._int("extlen", len(self.ext), 1),
            self._int("dt", 0, 1), self._int("vb", 0, 2),
            self._int("bodylen", len(key) + len(self.ext) + len(val), 4),
            self._int("opaque", 0, 4), cas.to_bytes(8, "big"),
            self.ext, key, val))

    def variable(self):
        return self.fields.get("cas", "").startswith("$")


class Step:
    """One line of a case: kind is send, expect, pause, sync, open, flood or fill."""

    def __init__(self, kind, **values):
        self.kind = kind
        self.where = ""
        self.__dict__.update(values)


class Case:
    def __init__(self, name, title, where, binary):
        self.name = name
        self.title = title
        self.where = where
        self.binary = binary
        self.steps = []
        self.options = ""
        self.once = False               # not repeatable
        self.alone = False              # changes the state of the whole server
        self.closed = False
        self.udp = False
        self.exits = False              # the server ends in this case
        self.only = None                # the one transport that it is for
        self.within = 0.0
        self.counters = []              # (name, amount, at least?)
        self.skips = []                 # (version range, reason)

    def pauses(self):
        return sum(s.seconds for s in self.steps if s.kind == "pause")

    def repeatable(self):
        if self.once or self.closed or self.exits or self.udp or self.pauses() > 0:
            return False
        for step in self.steps:
            if step.kind not in ("send", "expect"):
                return False
            if step.kind == "send" and step.variable:
                return False
        return True

    def skipped(self, version):
        for versions, reason in self.skips:
            if version_in(version, versions):
                return reason
        return None


def _version_key(version):
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def version_in(version, versions):
    """Whether a memcached's version lies in '1.6.18', '1.6.18-1.6.38' or '1.6.45+'.

    The version of the server under test proper is None: it is in no range but 'own'.
    """
    if version is None:
        return versions == "own"
    if versions == "own":
        return False
    if versions.endswith("+"):
        return _version_key(version) >= _version_key(versions)
    low, _, high = versions.partition("-")
    return _version_key(low) <= _version_key(version) <= _version_key(high or low)


class _Reader:
    def __init__(self, path):
        self.path = path
        self.cases = []
        self.case = None
        self.binary_request = None
        self.options = ""
        self.flags = []

    def fail(self, number, message):
        raise TranscriptError("%s:%d: %s" % (self.path, number, message))

    def read(self):
        with open(self.path, encoding="latin-1") as file:
            for number, line in enumerate(file, 1):
                line = line.rstrip("\n")
                if line.strip() and not line.startswith("#"):
                    self._line(number, line)
        return self.cases

    def _line(self, number, line):
        word, _, rest = line.partition(" ")
        where = "%s:%d" % (self.path, number)
        if word in ("case", "binary"):
            name, _, title = rest.partition(" ")
            self.case = Case(name, title, where, word == "binary")
            self.cases.append(self.case)
            return
        case = self.case
        if case is None:
            self.fail(number, "before the first case")
        if word == ">>":
            self._send(case, rest, where)
        elif word in ("<<", "|"):
            self._expect(case, word, rest, where)
        elif word == "~":
            case.steps.append(Step("pause", seconds=float(rest)))
        elif word == "sync":
            case.steps.append(Step("sync"))
        elif word == "open":
            case.steps.append(Step("open", count=int(rest)))
        elif word == "flood":
            low, high, text = rest.split(" ", 2)
            case.steps.append(Step("flood", low=int(low), high=int(high),
                                   text=render(compile_template(text, where, False), Play())))
        elif word == "fill":
            size, limit = rest.split()
            case.steps.append(Step("fill", size=int(size), limit=int(limit)))
        elif word == "+":
            name, amount = rest.split()
            case.counters.append((name, int(amount.lstrip(">=")), amount.startswith(">=")))
            case.alone = True
        elif word == "opts":
            case.options = rest.strip()
        elif word == "skip":
            versions, _, reason = rest.partition(": ")
            case.skips.append((versions, reason))
        elif word == "only":
            case.only = rest.strip()
        elif word == "within":
            case.within = float(rest)
        elif word in ("closed", "once", "alone", "udp", "exits") and not rest:
            setattr(case, word, True)
        else:
            self.fail(number, "unknown line '%s'" % word)

    @staticmethod
    def _has_variable(parts):
        for part in parts:
            if isinstance(part, Variable):
                return True
            if isinstance(part, Base64) and _Reader._has_variable(part.parts):
                return True
        return False

    def _send(self, case, rest, where):
        if case.binary:
            if rest.startswith("raw:"):
                parts, variable = [bytes.fromhex(rest[4:])], False
            else:
                request = BinaryRequest(_fields(rest, where), where)
                parts, variable = [request], request.variable()
        else:
            header = None
            if case.udp and rest.startswith("udp "):
                head, _, rest = rest[4:].partition(": ")
                header = {k: int(v, 0) for k, v in (w.split("=") for w in head.split())}
            parts = compile_template(rest, where, False)
            variable = self._has_variable(parts)
            if case.udp:
                case.steps.append(Step("send", parts=parts, variable=variable, header=header))
                return
        last = case.steps[-1] if case.steps else None
        if last is not None and last.kind == "send" and not variable:
            last.parts += parts
        else:
            case.steps.append(Step("send", parts=list(parts), variable=variable))

    def _expect(self, case, word, rest, where):
        last = case.steps[-1] if case.steps else None
        if word == "|":
            versions, colon, rest = rest.partition(":")
            if not colon or last is None or last.kind != "expect":
                raise TranscriptError("%s: '|' needs a version, ':' and '<<' lines before" % where)
            rest = rest[1:] if rest.startswith(" ") else rest
            parts = self._answer(case, rest, where)
            for have, alternative in last.drift:
                if have == versions:
                    alternative += parts
                    return
            last.drift.append((versions, parts))
            return
        datagrams = None
        if case.udp and rest.startswith("datagrams="):
            count, _, rest = rest[10:].partition(": ")
            datagrams = int(count)
        parts = self._answer(case, rest, where)
        if last is not None and last.kind == "expect" and not last.drift and not case.udp:
            last.parts += parts
        else:
            case.steps.append(Step("expect", parts=parts, drift=[], datagrams=datagrams))

    @staticmethod
    def _answer(case, rest, where):
        if case.binary and rest.startswith("op="):
            return [BinaryAnswer(_fields(rest, where), where)]
        return compile_template(rest, where, True)


def read_cases(path):
    """All cases of one file, or TranscriptError with file and line."""
    return _Reader(path).read()


def expected(step, version):
    """The parts of an expect step for a memcached version (None: the server proper)."""
    for versions, parts in step.drift:
        if version_in(version, versions):
            return parts
    return step.parts
