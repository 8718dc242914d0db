#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The player itself: what it accepts, and above all what it must refuse."""

import os
import socket
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import match                            # noqa: E402
import stream                           # noqa: E402
import transcript                       # noqa: E402


def case_of(text):
    """The one case of a transcript."""
    with tempfile.NamedTemporaryFile("w", suffix=".case", delete=False) as file:
        file.write(text)
    try:
        return transcript.read_cases(file.name)[0]
    finally:
        os.unlink(file.name)


class Scripted:
    """Answers every connection with the same bytes, whatever is sent, then closes or not."""

    def __init__(self, answer, close=False):
        self.answer = answer
        self.close_after = close
        self.ends = []

    def connect(self, timeout):
        mine, theirs = socket.socketpair()
        mine.settimeout(timeout)
        self.ends.append(theirs)
        threading.Thread(target=self._serve, args=(theirs,), daemon=True).start()
        return mine

    def _serve(self, sock):
        try:
            sock.recv(65536)
            sock.sendall(self.answer)
            if self.close_after:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def stop(self):
        for sock in self.ends:
            sock.close()


def matches(text, data, eof=True):
    play = transcript.Play()
    result = match.match(transcript.compile_template(text, "here", True), data, 0, play, eof)
    return result.status, result.end


class Matching(unittest.TestCase):
    def test_literal(self):
        self.assertEqual(matches("END\\r\\n", b"END\r\n"), (match.FULL, 5))
        self.assertEqual(matches("END\\r\\n", b"EN")[0], match.PARTIAL)
        self.assertEqual(matches("END\\r\\n", b"EN\r\n"), (match.WRONG, 2))
        self.assertEqual(matches("END\\r\\n", b"ERROR\r\n"), (match.WRONG, 1))

    def test_number(self):
        self.assertEqual(matches("c{#}\\r\\n", b"c123\r\n")[0], match.FULL)
        self.assertEqual(matches("c{#}\\r\\n", b"cx\r\n")[0], match.WRONG)
        self.assertEqual(matches("c{#}\\r\\n", b"c12", False)[0], match.PARTIAL)
        self.assertEqual(matches("t{~100}\\r\\n", b"t99\r\n")[0], match.FULL)
        self.assertEqual(matches("t{~100}\\r\\n", b"t96\r\n")[0], match.WRONG)
        self.assertEqual(matches("t{~100}\\r\\n", b"t-1\r\n")[0], match.WRONG)

    def test_lines(self):
        self.assertEqual(matches("{lines}END\\r\\n", b"A\r\nB\r\nEND\r\n")[0], match.FULL)
        self.assertEqual(matches("{lines}END\\r\\n", b"A\r\nB\r\n")[0], match.PARTIAL)
        self.assertEqual(matches("A{*}\\r\\nEND\\r\\n", b"A b c\r\nB\r\nEND\r\n")[0], match.WRONG)

    def test_binary(self):
        good = b"\x81\x00" + b"\0\0\4\0\0\0" + b"\0\0\0\5" + b"\0\0\0\7" + b"\0" * 7 + b"\x09" \
            + b"\0\0\0\1x"
        head = "op=0x00 ext=4 opaque=7 cas=N body=\\0\\0\\0\\x01x"

        def status(text, data):
            answer = transcript.BinaryAnswer(transcript._fields(text, "here"), "here")
            return match.match([answer], data, 0, transcript.Play(), False).status
        self.assertEqual(status(head, good), match.FULL)
        self.assertEqual(status(head, good[:-1]), match.PARTIAL)
        for wrong in (head.replace("0x00", "0x01"), head.replace("ext=4", "ext=0"),
                      head.replace("=7", "=8"), head.replace("cas=N ", ""),
                      head.replace("01x", "01y"), head + "z", head.replace("op", "status=1 op", 1)):
            self.assertEqual(status(wrong, good), match.WRONG, wrong)
        self.assertEqual(status(head, b"\x80" + good[1:]), match.WRONG)
        self.assertEqual(status(head, good[:5] + b"\1" + good[6:]), match.WRONG)


class Templates(unittest.TestCase):
    def test_expansion(self):
        play = transcript.Play()

        def text(template):
            return transcript.render(transcript.compile_template(template, "here", False), play)
        self.assertEqual(text("{ab*3}\\x41\\s\\{"), b"abababA {")
        self.assertEqual(text("{for 3:<#>}"), b"<0><1><2>")
        self.assertEqual(len(text("{@k*250}")), 250)
        self.assertEqual(text("@k"), b"k_" + play.uid)
        self.assertNotEqual(text("@k"), b"k_" + transcript.Play().uid)
        self.assertEqual(text("{b64:{xxx*2}}"), b"eHh4eHh4")
        self.assertEqual(text("{?5*1000}"), text("{?5*1000}"))

    def test_refused(self):
        for bad in ("{", "{x}", "\\q", "@"):
            with self.assertRaises(transcript.TranscriptError):
                transcript.compile_template(bad, "here", False)
        for bad in (">> x\n", "case a\nnonsense\n", "case a\n| 1.6: x\n", "binary a\n>> key=1\n"):
            with self.assertRaises(transcript.TranscriptError):
                case_of(bad)

    def test_versions(self):
        self.assertTrue(transcript.version_in("1.6.18", "1.6.18-1.6.38"))
        self.assertTrue(transcript.version_in("1.6.21", "1.6.18-1.6.38"))
        self.assertFalse(transcript.version_in("1.6.45", "1.6.18-1.6.38"))
        self.assertTrue(transcript.version_in("1.6.45", "1.6.45+"))
        self.assertFalse(transcript.version_in(None, "1.6.18+"))


class Playing(unittest.TestCase):
    def play(self, text, answer, close=False, pipelined=False):
        server = Scripted(answer, close)
        try:
            if pipelined:
                stream.play_pipelined(server, case_of(text), None, 0.3)
            else:
                stream.play_once(server, case_of(text), False, None, 0.3)
        finally:
            server.stop()

    def test_good(self):
        self.play("case a\n>> get x\\r\\n\n<< END\\r\\n\n", b"END\r\nMN\r\n")
        hundred = b"END\r\n" * 100 + b"MN\r\n"
        self.play("case a\n>> get x\\r\\n\n<< END\\r\\n\n", hundred, False, True)
        self.play("case a\n>> quit\\r\\n\nclosed\n", b"", True)

    def test_bad(self):
        get = "case a\n>> get x\\r\\n\n<< END\\r\\n\n"
        for text, answer, close in (
                (get, b"END\r\n", False),               # no barrier
                (get, b"MN\r\n", False),                # no answer
                (get, b"END\r\nEND\r\nMN\r\n", False),  # one answer too many
                (get, b"END\r\nMN\r\nMN\r\n", False),   # bytes behind the barrier
                (get, b"END\r\n", True),                # closed
                (get, b"ERROR\r\nMN\r\n", False),
                ("case a\n>> quit\\r\\n\nclosed\n", b"", False),
                ("case a\n>> quit\\r\\n\nclosed\n", b"OK\r\n", True)):
            with self.assertRaises(stream.Failure, msg=answer):
                self.play(text, answer, close)
        with self.assertRaises(stream.Failure):
            self.play(get, b"END\r\n" * 99 + b"MN\r\n", False, True)


if __name__ == "__main__":
    unittest.main()
