# SPDX-License-Identifier: BSD-2-Clause
"""A small cache server that lies on demand, in the text, meta and binary protocols, on a Unix socket.

A codec turns bytes into requests and answers into bytes; the Liar has the items. What the load generator may send is
all that they understand: get (of several keys too), set, gat, touch, incr, append and delete."""

import os
import socketserver
import struct
import tempfile
import threading


class Request:
    def __init__(self, command, keys, value=None, flags=0):
        self.command = command
        self.keys = keys
        self.value = value
        self.flags = flags


class Text:
    name = "text"

    def read(self, reader):
        words = reader.readline().split()
        if not words:
            return None
        command, keys = words[0], words[1:]
        if command == b"get":
            return Request("get", keys)
        if command == b"gat":
            return Request("gat", keys[1:])
        if command in (b"set", b"append"):
            return Request(command.decode(), keys[:1], reader.read(int(words[4]) + 2)[:-2], int(words[2]))
        return Request(command.decode(), keys[:1])

    @staticmethod
    def value(key, value, flags):
        return b"VALUE %s %d %d\r\n%s\r\n" % (key, flags, len(value), value)

    def hit(self, request, key, value, flags=0):
        """The whole answer to a get of one key."""
        return self.value(key, value, flags) + b"END\r\n"

    def hits(self, request, found):
        return b"".join(self.value(*item) for item in found) + b"END\r\n"

    def miss(self, request):
        return b"END\r\n" if request.command in ("get", "gat") else b"NOT_FOUND\r\n"

    def done(self, request):
        return {"touch": b"TOUCHED\r\n", "delete": b"DELETED\r\n"}.get(request.command, b"STORED\r\n")

    def not_stored(self, request):
        return b"NOT_STORED\r\n"

    def number(self, request, value):
        return b"%d\r\n" % value

    def error(self, request):
        return b"SERVER_ERROR no\r\n"

    def refused(self, request):
        return b"SERVER_ERROR out of memory storing object\r\n"


class Meta(Text):
    name = "meta"

    def read(self, reader):
        words = reader.readline().split()
        if not words:
            return None
        command, key, flags = words[0], words[1:2], words[2:]
        if command == b"ms":
            value = reader.read(int(words[2]) + 2)[:-2]
            client = next((int(word[1:]) for word in flags if word[:1] == b"F"), 0)
            return Request("append" if b"MA" in flags else "set", key, value, client)
        if command == b"mg" and b"q" in flags:
            keys = list(key)
            for line in iter(reader.readline, b"mn\r\n"):
                keys.append(line.split()[1])
            return Request("get", keys)
        if command == b"mg":
            timed = any(word[:1] == b"T" for word in flags)
            return Request(("gat" if timed else "get") if b"v" in flags else "touch", key)
        return Request({b"ma": "incr", b"md": "delete"}[command], key)

    @staticmethod
    def value(key, value, flags):
        return b"VA %d f%d k%s\r\n%s\r\n" % (len(value), flags, key, value)

    def hit(self, request, key, value, flags=0):
        return self.value(key, value, flags)

    def hits(self, request, found):
        return b"".join(self.value(*item) for item in found) + b"MN\r\n"

    def miss(self, request):
        if request.command in ("get", "gat"):
            return b"EN k%s\r\n" % request.keys[0]
        return b"EN\r\n" if request.command == "touch" else b"NF\r\n"

    def done(self, request):
        return b"HD\r\n"

    def not_stored(self, request):
        return b"NS\r\n"

    def number(self, request, value):
        return b"VA %d\r\n%d\r\n" % (len(b"%d" % value), value)


class Binary:
    name = "binary"
    header = struct.Struct(">BBHBBHIIQ")
    commands = {0x0c: "get", 0x01: "set", 0x23: "gat", 0x1c: "touch", 0x05: "incr", 0x0e: "append", 0x04: "delete"}

    def read_one(self, reader):
        """opcode, opaque, extras, key, value"""
        head = reader.read(24)
        if len(head) < 24:
            return None
        _, opcode, key_size, extras_size, _, _, body_size, opaque, _ = self.header.unpack(head)
        body = reader.read(body_size)
        return opcode, opaque, body[:extras_size], body[extras_size:extras_size + key_size], \
            body[extras_size + key_size:]

    def read(self, reader):
        one = self.read_one(reader)
        if one is None:
            return None
        opcode, opaque, extras, key, value = one
        request = Request("get", [key], value, int.from_bytes(extras[:4], "big"))
        request.opcode, request.opaque = opcode, opaque
        while one[0] == 0x0d:
            one = self.read_one(reader)
            if one[0] == 0x0d:
                request.keys.append(one[3])
            else:
                request.noop_opaque = one[1]
        if opcode != 0x0d:
            request.command = self.commands[opcode]
        return request

    def pack(self, request, status=0, extras=b"", key=b"", value=b"", opcode=None, opaque=None):
        return self.header.pack(0x81, request.opcode if opcode is None else opcode, len(key), len(extras), 0, status,
                                len(extras) + len(key) + len(value), request.opaque if opaque is None else opaque,
                                7) + extras + key + value

    def hit(self, request, key, value, flags=0):
        return self.pack(request, 0, struct.pack(">I", flags), key, value)

    def hits(self, request, found):
        return b"".join(self.hit(request, *item) for item in found) + \
            self.pack(request, opcode=0x0a, opaque=request.noop_opaque)

    def miss(self, request):
        return self.pack(request, 1, key=request.keys[0] if request.command in ("get", "gat") else b"")

    def done(self, request):
        return self.pack(request, extras=bytes(4) if request.command == "touch" else b"")

    def not_stored(self, request):
        return self.pack(request, 5, value=b"Not stored.")

    def number(self, request, value):
        return self.pack(request, value=struct.pack(">Q", value))

    def error(self, request):
        return self.pack(request, 0x84, value=b"Internal error")

    def refused(self, request):
        return self.pack(request, 0x82, value=b"Out of memory")


CODECS = {codec.name: codec for codec in (Text(), Meta(), Binary())}


class Liar:
    """lie(server, request, reply) may change any reply, or return None to close the connection; server.count is then
    the running number of the request, from 1 on."""

    def __init__(self, lie, protocol="text"):
        self.transport = "unix"
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "socket")
        self.codec = CODECS[protocol]
        self.items = {}  # key: value, flags
        self.older = {}
        self.count = 0
        self.lie = lie
        self.lock = threading.Lock()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                try:
                    outer.serve(self.rfile, self.wfile)
                except (BrokenPipeError, ConnectionResetError):
                    pass

        class Threads(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            request_queue_size = 100

        self.server = Threads(self.path, Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.server.shutdown()
        self.server.server_close()
        self.folder.cleanup()

    def serve(self, reader, writer):
        for request in iter(lambda: self.codec.read(reader), None):
            with self.lock:
                reply = self.answer(request)
                self.count += 1
                reply = self.lie(self, request, reply)
            if reply is None:
                return
            writer.write(reply)

    def answer(self, request):
        codec, command, key = self.codec, request.command, request.keys[0]
        if command == "get" and len(request.keys) > 1:
            return codec.hits(request, [(one,) + self.items[one] for one in request.keys if one in self.items])
        if command == "set":
            if key in self.items:
                self.older[key] = self.items[key]
            self.items[key] = (request.value, request.flags)
            return codec.done(request)
        if key not in self.items:
            return codec.not_stored(request) if command == "append" else codec.miss(request)
        value, flags = self.items[key]
        if command in ("get", "gat"):
            return codec.hit(request, key, value, flags)
        if command == "delete":
            del self.items[key]
        elif command == "append":
            self.items[key] = (value + request.value, flags)
        elif command == "incr":
            number = int(value) + 1
            self.items[key] = (b"%d" % number, flags)
            return codec.number(request, number)
        return codec.done(request)
