# SPDX-License-Identifier: BSD-2-Clause
"""What a cache may answer after it was killed: a model of keys, writers that keep it, and the check.

Every key is written by one connection, so its changes have an order. A key's possible states are

    states   after the last change that was acknowledged: one, or a few where a quiet change met an unknown one
    pending  changes that were sent and not acknowledged, in their order

and what may be found after a crash is: nothing; any of states; what any number of the first of pending make of them. Never
anything older, and nothing at all after a delete that was acknowledged. What another connection was shown is as good as
acknowledged, for the server promises to show only what a crash can't undo.

A state has the value, the client flags, the expiry and the CAS number where the server told it: all four are compared.
"""

import collections
import os
import random
import selectors
import socket
import time

ABSENT = None
CLOCK_SLACK_S = 3
HISTORY_S = 3.0
POOL = random.Random(7).randbytes(1 << 17).replace(b"\r", b"x").replace(b"\n", b"y")

# expires: Unix seconds, 0: never; late: it may be so much later, for a time to live counts from when the server sees it
State = collections.namedtuple("State", "value flags expires cas late", defaults=(0.0,))


class Wrong(Exception):
    """The server answered what it must not."""


class Op:
    """One request. verb: set, cas, delete, touch, incr, append, flush (changes); get, mn (none)."""

    __slots__ = ("verb", "key", "value", "flags", "ttl", "token", "quiet", "sent", "meta", "foreign", "number", "done")

    numbers = 0

    def __init__(self, verb, key=None, value=b"", flags=0, ttl=0, token=0, quiet=False, meta=True, foreign=False):
        self.verb, self.key, self.value, self.flags, self.ttl = verb, key, value, flags, ttl
        self.token, self.quiet, self.meta, self.foreign = token, quiet, meta, foreign
        self.sent = 0.0
        self.done = None  # when it was answered
        self.number = Op.numbers = Op.numbers + 1

    def expires(self):
        return self.sent + self.ttl if self.ttl else 0

    def late(self):
        return (self.done or time.time()) - self.sent

    def new_state(self):
        return State(self.value, self.flags, self.expires(), None, self.late())

    def results(self, state):
        """The states that the change may leave; two where the model can't know."""
        if self.verb == "set":
            return [self.new_state()]
        if self.verb == "delete":
            return [ABSENT]
        if state is ABSENT:
            return [ABSENT]
        if self.verb == "touch":
            return [state._replace(expires=self.expires(), late=self.late())]
        if self.verb == "incr":
            return [state._replace(value=b"%d" % (int(state.value) + int(self.value)), cas=None)]
        if self.verb == "append":
            return [state._replace(value=state.value + self.value, cas=None)]
        if self.verb == "cas":
            new = self.new_state()
            return [new] if state.cas == self.token else [state, new] if state.cas is None else [state]
        raise AssertionError(self.verb)

    def encode(self):
        key = self.key.name if self.key else b""
        if self.verb == "mn":
            return b"mn\r\n"
        if self.verb == "get":
            return b"mg %s v f t c\r\n" % key
        if self.meta and self.verb in ("set", "cas"):
            return b"ms %s %d c F%d T%d%s%s\r\n%s\r\n" % (
                key, len(self.value), self.flags, self.ttl,
                b" C%d" % self.token if self.verb == "cas" else b"", b" q" if self.quiet else b"", self.value)
        if self.meta and self.verb == "delete":
            # A quiet one tells that nothing was there: the opaque says which.
            return b"md %s%s\r\n" % (key, b" q O%d" % self.number if self.quiet else b"")
        tail = b" noreply\r\n" if self.quiet else b"\r\n"
        if self.verb == "set":
            return b"set %s %d %d %d%s%s\r\n" % (key, self.flags, self.ttl, len(self.value), tail, self.value)
        if self.verb == "cas":
            return b"cas %s %d %d %d %d%s%s\r\n" % (
                key, self.flags, self.ttl, len(self.value), self.token, tail, self.value)
        if self.verb == "append":
            return b"append %s 0 0 %d%s%s\r\n" % (key, len(self.value), tail, self.value)
        if self.verb == "touch":
            return b"touch %s %d%s" % (key, self.ttl, tail)
        if self.verb == "incr":
            return b"incr %s %s%s" % (key, self.value, tail)
        return b"delete %s%s" % (key, tail)


class Key:
    __slots__ = ("name", "kind", "version", "states", "pending", "history", "shown")

    def __init__(self, name, kind):
        self.name, self.kind = name, kind
        self.version = 0
        self.states = [ABSENT]
        self.pending = collections.deque()
        self.history = collections.deque()  # (when they ceased to be, states)
        self.shown = 0  # so many of pending were seen by another connection

    def replace_states(self, states, now):
        self.history.append((now, self.states))
        while self.history[0][0] < now - HISTORY_S:
            self.history.popleft()
        self.states = states

    def steps(self):
        """The possible states after 0, 1, .. of the pending changes."""
        current = list(self.states)
        yield current
        for op in self.pending:
            current = unique(result for state in current for result in op.results(state))
            yield current


def unique(states):
    found = []
    for state in states:
        if state not in found:
            found.append(state)
    return found


def agrees(state, found, now):
    """Whether what was found is this state."""
    if state is ABSENT or state.value != found.value or state.flags != found.flags:
        return False
    if (state.expires == 0) != (found.expires == 0) or \
            not -CLOCK_SLACK_S < found.expires - state.expires < state.late + CLOCK_SLACK_S:
        return False
    if state.expires and state.expires + state.late < now - CLOCK_SLACK_S:
        return False
    return state.cas is None or state.cas == found.cas


def describe(state):
    if state is ABSENT:
        return "nothing"
    return "%r.. of %d bytes, flags %d, expires %s, cas %s" % (
        state.value[:32], len(state.value), state.flags, state.expires and int(state.expires), state.cas)


class Connection:
    """A stream on which many requests are under way; answers come in order."""

    def __init__(self, sock, model):
        self.sock = sock
        self.model = model
        self.sock.setblocking(False)
        self.out = bytearray()
        self.data = bytearray()
        self.waiting = collections.deque()
        self.closed = False

    def add(self, ops):
        now = time.time()
        for op in ops:
            op.sent = now
            if op.key and op.verb != "get":
                op.key.pending.append(op)
            self.waiting.append(op)
            self.out += op.encode()

    def send(self):
        while self.out:
            try:
                sent = self.sock.send(memoryview(self.out)[:1 << 18])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.closed = True
                return
            del self.out[:sent]

    def receive(self):
        """Takes what has come. At the end of the stream, what was sent before it too."""
        for attempt in range(2):
            try:
                while True:
                    part = self.sock.recv(1 << 18)
                    if not part:
                        self.closed = True
                        break
                    self.data += part
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self.closed = True
                continue  # what was queued before the reset is still there
            break
        self.take()

    def take(self):
        at = 0
        while self.waiting:
            end = self.data.find(b"\r\n", at)
            if end < 0:
                break
            line = bytes(self.data[at:end])
            value = None
            next_at = end + 2
            if line.startswith(b"VA "):
                size = int(line.split(b" ", 2)[1])
                if len(self.data) < next_at + size + 2:
                    break
                value = bytes(self.data[next_at:next_at + size])
                next_at += size + 2
            at = next_at
            opaque = int(line[4:]) if line.startswith(b"NF O") else None
            # In order: what was quiet before the one that is answered was done.
            while self.waiting and self.waiting[0].quiet and self.waiting[0].number != opaque:
                self.model.acknowledge(self.waiting.popleft(), None, None)
            if not self.waiting:
                raise Wrong("an answer to nothing: %r" % line[:100])
            self.model.acknowledge(self.waiting.popleft(), None if opaque else line, value)
        del self.data[:at]


EXPECTED = {
    "set": (b"HD", b"STORED"), "cas": (b"HD", b"STORED", b"EX", b"EXISTS", b"NF", b"NOT_FOUND"),
    "delete": (b"HD", b"DELETED", b"NF", b"NOT_FOUND"), "touch": (b"TOUCHED", b"NOT_FOUND"),
    "append": (b"STORED", b"NOT_STORED"), "mn": (b"MN",), "get": (b"VA", b"EN"),
}


class Model:
    """All keys, and what was counted."""

    def __init__(self):
        self.keys = {}
        self.counts = collections.Counter()
        self.cas_max = 0
        self.wrongs = []
        self.refusals = False  # a change may be answered SERVER_ERROR, and is then none

    def key(self, name, kind):
        found = self.keys.get(name)
        if found is None:
            found = self.keys[name] = Key(name, kind)
        return found

    def wrong(self, text):
        self.counts["wrong"] += 1
        if len(self.wrongs) < 20:
            self.wrongs.append(text)

    def acknowledge(self, op, line, value):
        """An answer came; line is None where the request was quiet, and everything before the next answer is done."""
        now = time.time()
        op.done = now
        word = line.split(b" ", 1)[0] if line is not None else None
        self.counts[op.verb + (" quiet" if op.quiet else "")] += 1
        if word == b"SERVER_ERROR" and self.refusals:
            self.counts["refused"] += 1
            if op.key and op.verb != "get":
                op.key.pending.popleft()
            return
        if word is not None and op.verb in EXPECTED and word not in EXPECTED[op.verb] or \
                op.verb == "incr" and word is not None and not word.isdigit() and word != b"NOT_FOUND":
            raise Wrong("%s answered %r" % (op.encode()[:80], line[:100]))
        if op.verb == "mn":
            return
        if op.verb == "get":
            if word == b"VA":
                self.live_read(op, parse_found(line, value, now), now)
            else:
                self.counts["live misses"] += 1
            return
        key = op.key
        assert key.pending[0] is op
        key.pending.popleft()
        key.shown = max(0, key.shown - 1)
        if word in (b"NOT_FOUND", b"NF", b"EX", b"EXISTS", b"NOT_STORED") and op.verb != "delete":
            return
        states = unique(result for state in key.states for result in op.results(state))
        if op.verb == "incr" and word is not None:
            states = [state for state in states if state is not ABSENT and state.value == word]
            if not states:
                self.wrong("%s: incr by %s gave %s; before: %s" % (
                    key.name.decode(), op.value.decode(), word.decode(), "; ".join(map(describe, key.states))))
        if op.verb in ("set", "cas") and word in (b"HD", b"STORED"):
            states = [op.new_state()]
            if word == b"HD":
                cas = next(int(flag[1:]) for flag in line.split() if flag[:1] == b"c")
                self.cas_max = max(self.cas_max, cas)
                states = [states[0]._replace(cas=cas)]
        elif word is not None and op.verb in ("touch", "append"):
            states = [state for state in states if state is not ABSENT]
        key.replace_states(states, now)

    def live_read(self, op, found, now):
        """A value that was read while everything runs."""
        key = op.key
        self.counts["live hits"] += 1
        self.cas_max = max(self.cas_max, found.cas)
        for count, states in enumerate(key.steps()):
            for state in states:
                if not agrees(state, found, now):
                    continue
                if not op.foreign:  # what was asked before it was done before it, and nothing else
                    key.states = [state._replace(cas=found.cas)]
                elif count > 0:
                    key.shown = max(key.shown, count)
                    self.counts["shown early"] += 1
                return
            if not op.foreign:
                break
        if op.foreign:  # it may be from before what was acknowledged between the read and now
            for when, states in key.history:
                if when >= op.sent - 0.001 and any(agrees(state, found, now) for state in states):
                    return
        self.wrong("%s: read %s; may be: %s" % (key.name.decode(), describe(found), self.candidates(key)))

    @staticmethod
    def candidates(key):
        return " | ".join("; ".join(map(describe, states)) for states in key.steps())

    def after_crash(self, key, found, crashed, now, window):
        """
        What is found after a crash at that time. window: seconds of acknowledged changes that may be lost. The key's state
        is known again afterwards.
        """
        kept = key.states
        steps = list(key.steps())
        if window:
            key.shown = 0
        key.pending.clear()
        if found is ABSENT:
            self.counts["absent"] += 1
            key.states = unique(state for states in steps[key.shown:] for state in states)
            key.shown = 0
            return
        self.cas_max = max(self.cas_max, found.cas)
        good = [state for states in steps[key.shown:] for state in states if agrees(state, found, now)]
        if good:
            self.counts["hits"] += 1
            if not any(agrees(state, found, now) for state in kept):
                self.counts["hits of what wasn't acknowledged"] += 1
        elif window and any(when >= crashed - window and any(agrees(state, found, now) for state in states)
                            for when, states in key.history):
            self.counts["hits"] += 1
            self.counts["older, in the window"] += 1
        elif any(agrees(state, found, now) for states in steps[:key.shown] for state in states):
            self.wrong("%s: undone though it was shown: found %s; may be: %s" % (
                key.name.decode(), describe(found),
                " | ".join("; ".join(map(describe, states)) for states in steps[key.shown:])))
        else:
            before = [round((crashed - when) * 1000) for when, states in key.history
                      if any(agrees(state, found, now) for state in states)]
            self.wrong("%s: found %s (%s); may be: %s" % (
                key.name.decode(), describe(found),
                "acknowledged as replaced %s ms before the crash" % before[-1] if before else "not of late",
                " | ".join("; ".join(map(describe, states)) for states in steps[key.shown:])))
        key.states = [found]
        key.shown = 0
        key.history.clear()


def parse_found(line, value, now):
    flags, ttl, cas = 0, -1, 0
    for word in line.split()[2:]:
        if word[:1] == b"f":
            flags = int(word[1:])
        elif word[:1] == b"t":
            ttl = int(word[1:])
        elif word[:1] == b"c":
            cas = int(word[1:])
    return State(value, flags, 0 if ttl < 0 else now + ttl, cas)


class Mix:
    """What a writer asks next, by chance, of keys of its own."""

    spent = False  # True: there is no more

    def __init__(self, rng, model, prefix, count, sizes, quiet=0.25):
        self.rng, self.model, self.sizes, self.quiet = rng, model, sizes, quiet
        kinds = ("blob", "blob", "counter", "text")
        self.keys = [model.key(b"%s-%05d" % (prefix, i), kinds[i % 4]) for i in range(count)]

    def pick(self):
        # A few popular ones, which stay in DRAM and are promoted, and many that are on flash.
        count = len(self.keys)
        if self.rng.random() < 0.3:
            count = max(1, count // 20)
        return self.keys[int(self.rng.random() * count)]

    def blob(self, key):
        key.version += 1
        head = b"%s %d " % (key.name, key.version)
        low, high = self.sizes
        size = int(low * (high / low) ** self.rng.random())
        at = int(self.rng.random() * ((1 << 17) - size))
        return head + POOL[at:at + size]

    def ttl(self):
        draw = self.rng.random()
        if draw < 0.6:
            return 0
        return 2 if draw < 0.62 else 1000 + 20 * int(self.rng.random() * 50000)

    def op(self):
        rng, key = self.rng, self.pick()
        draw, quiet, meta = rng.random(), rng.random() < self.quiet, rng.random() < 0.5
        if draw < 0.22:
            return Op("get", key)
        if draw < 0.30:
            return Op("delete", key, quiet=quiet, meta=meta)
        if draw < 0.38:
            return Op("touch", key, ttl=self.ttl() or 500, quiet=quiet, meta=False)
        if draw < 0.60 and key.kind == "counter":
            return Op("incr", key, b"%d" % (1 + int(rng.random() * 1000)), quiet=quiet, meta=False)
        if draw < 0.60 and key.kind == "text":
            key.version += 1
            return Op("append", key, b"+%d" % key.version, quiet=quiet, meta=False)
        if draw < 0.48 and len(key.states) == 1 and key.states[0] is not ABSENT and key.states[0].cas:
            token = key.states[0].cas + (rng.random() < 0.2)
            return Op("cas", key, self.blob(key), int(rng.random() * 3), self.ttl(), token, meta=meta)
        if key.kind == "counter":
            # Numbers only rise, so that an older one is never right by chance.
            key.version += 1
            value = b"%d" % (key.version * 10000000)
        else:
            value = self.blob(key)
        return Op("set", key, value, int(rng.random() * 3) * (rng.random() < 0.3), self.ttl(), quiet=quiet, meta=meta)

    def batch(self):
        ops = [self.op() for _ in range(1 + int(self.rng.random() * 24))]
        if ops[-1].quiet:
            ops.append(Op("mn"))
        return ops


class Pusher(Mix):
    """Large values that push everything to flash."""

    def pick(self):
        return self.keys[int(self.rng.random() * len(self.keys))]

    def batch(self):
        ops, quiet = [], self.quiet > 0
        for _ in range(16):
            key = self.pick()
            if self.rng.random() < 0.03:
                ops.append(Op("delete", key, quiet=quiet, meta=False))
            else:
                ops.append(Op("set", key, self.blob(key), quiet=quiet, meta=False))
        return ops + [Op("mn")]


class Looker(Mix):
    """Reads keys that others write."""

    def __init__(self, rng, model, others):
        self.rng, self.model = rng, model
        self.keys = [key for mix in others for key in mix.keys]

    def batch(self):
        return [Op("get", self.pick(), foreign=True) for _ in range(8)]


def drive(connect, model, mixes, until, started=None, patience_s=30):
    """
    Runs the mixes, each on a connection, until the time (monotonic) or until they are spent, and until everything is
    answered, or until all connections are closed. Returns whether the server closed them.
    """
    connections = [Connection(connect(), model) for _ in mixes]
    selector = selectors.DefaultSelector()
    for connection, mix in zip(connections, mixes):
        selector.register(connection.sock, selectors.EVENT_READ, (connection, mix))
    if started:
        started()
    try:
        left = set(connections)
        while left:
            stop = time.monotonic() >= until
            if time.monotonic() > until + patience_s:
                raise Wrong("%d requests have no answer" % sum(len(connection.waiting) for connection in left))
            for connection, mix in zip(connections, mixes):
                if connection not in left:
                    continue
                if not connection.closed and not stop and len(connection.waiting) < 48 and not connection.out:
                    connection.add(mix.batch())
                connection.send()
                if (stop or mix.spent) and not connection.waiting and not connection.out:
                    left.discard(connection)
            for event, _ in selector.select(0.002):
                event.data[0].receive()
            for connection in list(left):
                if connection.closed:
                    connection.receive()
                    left.discard(connection)
        return any(connection.closed for connection in connections)
    finally:
        selector.close()
        for connection in connections:
            connection.sock.close()


def read_all(connect, keys, take, depth=64):
    """Reads every key; take(key, found or ABSENT, now) gets each."""
    sock = connect()
    sock.settimeout(30)
    stream = sock.makefile("rb", 1 << 18)
    try:
        for first in range(0, len(keys), depth):
            part = keys[first:first + depth]
            sock.sendall(b"".join(b"mg %s v f t c\r\n" % key.name for key in part))
            for key in part:
                line = stream.readline()
                now = time.time()
                if line == b"EN\r\n":
                    take(key, ABSENT, now)
                    continue
                if not line.startswith(b"VA "):
                    raise Wrong("mg answered %r" % line[:100])
                size = int(line.split(b" ", 2)[1])
                value = stream.read(size + 2)
                if len(value) != size + 2:
                    raise Wrong("the stream ended in a value")
                take(key, parse_found(line, value[:-2], now), now)
    finally:
        stream.close()
        sock.close()


def ask(connect, request):
    """One line's answer."""
    with connect() as sock:
        sock.settimeout(30)
        sock.sendall(request)
        with sock.makefile("rb") as stream:
            return stream.readline().rstrip(b"\r\n")


def unix_connect(path):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(10)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def seed_of(text):
    """The seed to run with: given, else a new one."""
    return int(text) if text else int.from_bytes(os.urandom(4), "little")
