#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The daemon as a process: start, stop, signals, files, what systemd hands it, and what it says when something is
wrong: one line that names the thing, and an exit status that is not zero."""

import os
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import time

from common import Failed, Skip, Suite, ask, check, free_port, receive_exactly

suite = Suite(__doc__)

AS_NOBODY = ["-u", "nobody"] if os.geteuid() == 0 else []


def start(options, environment=None, **more):
    """The daemon with these options alone; stderr and stdout are gathered."""
    env = dict(os.environ)
    env.update(environment or {})
    return subprocess.Popen([suite.binary] + [str(option) for option in options], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd="/", **more)


def end(process, how=signal.SIGKILL):
    if process.poll() is None:
        process.send_signal(how)
    try:
        return process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Failed("did not end within 10 s of signal %s" % how)


def connect(port, process=None, timeout=10.0):
    limit = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            if process is not None and process.poll() is not None:
                raise Failed("the server ended at start: %s" % process.communicate()[1])
            if time.monotonic() > limit:
                raise Failed("the server does not listen on port %d" % port)
            time.sleep(0.002)


def wait_for(holds, text, timeout=5.0):
    limit = time.monotonic() + timeout
    while not holds():
        check(time.monotonic() < limit, text)
        time.sleep(0.01)


def check_answers(port, process=None):
    with connect(port, process) as sock:
        check(ask(sock, b"mn\r\n") == b"MN", "no answer to mn")


def check_refused(options, pattern, status=None):
    """It ends by itself, at once, with one line on stderr that matches."""
    process = start(options)
    try:
        out, err = process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        end(process)
        raise Failed("%s: accepted" % " ".join(map(str, options)))
    shown = "%s: exit status %d, stderr %r" % (" ".join(map(str, options)), process.returncode, err)
    check(process.returncode > 0, shown)
    check(status is None or process.returncode == status, shown)
    check(len(err.splitlines()) == 1 and out == "", "not one line: " + shown)
    check(re.search(pattern, err), "the line does not name %s: %s" % (pattern, shown))


def make_check_refused(name, options, pattern, status=None):
    def test():
        # Where the option is taken after all, nobody's default port is.
        place = {"-l": ["-p", free_port()], "-p": ["-l", "127.0.0.1"]}
        check_refused(AS_NOBODY + place.get(options[0], ["-l", "127.0.0.1", "-p", free_port()]) + options, pattern,
                      status)

    test.__name__ = name
    suite.test(test)


# What is out of range, of the wrong form, unknown, or yet to come: each is refused by name.
for options, pattern in (
        (["-t", "0"], "-t|threads"),
        (["-t", "many"], "-t|threads"),
        (["-c", "0"], "-c|conn"),
        (["-c", "-1"], "-c|conn"),
        (["-p", "70000"], "-p|port"),
        (["-p", "eleven"], "-p|port"),
        (["-U", "70000"], "-U|udp"),
        (["-m", "-5"], "-m|memory"),
        (["-m", "lots"], "-m|memory"),
        (["-m", "99999999999999999999"], "-m|memory"),
        (["-I", "100"], "-I|item"),
        (["-I", "2048m"], "-I|item"),
        (["-I", "large"], "-I|item"),
        (["-f", "1.0"], "-f|factor"),
        (["-n", "0"], "-n|slab-min|chunk"),
        (["-R", "0"], "-R|req"),
        (["-b", "0"], "-b|backlog"),
        (["-B", "http"], "-B|protocol"),
        (["-a", "9z9"], "-a|mask|mode"),
        (["-l", "300.0.0.1"], "300.0.0.1"),
        (["-l", "127.0.0.1:99999"], "99999"),
        (["-s", "/nowhere/at/all/socket"], "/nowhere/at/all/socket"),
        (["-s", "/tmp/" + "s" * 200], "socket|-s"),
        (["--no-such-option"], "no-such-option"),
        (["-j"], "j"),
        (["-o", "no_such_option"], "no_such_option"),
        (["-o", "hashpower=1000"], "hashpower"),
        (["-o", "idle_timeout=soon"], "idle.timeout"),
        (["-p"], "-p|port"),
        (["-Z"], "-Z|enable-ssl|TLS"),
        (["-S"], "-S|sasl|SASL"),
        (["-Y", "/etc/hostname"], "-Y|auth"),
        (["-e", "/tmp/memory"], "-e|memory-file"),
        (["-o", "ext_path=/tmp/flash"], "ext_path"),
        (["-o", "ext_path=/tmp/flash:64"], "ext_path"),
        (["-M", "--flash-path", "/tmp/flash", "--flash-size", "64m"], "disable-evictions"),
        (["-o", "ssl_chain_cert=/tmp/cert"], "ssl_chain_cert")):
    make_check_refused("refused: " + " ".join(options)[:40], options, pattern)


@suite.test
def an_unknown_user_is_refused_by_name():
    if os.geteuid() != 0:
        raise Skip("needs root")
    check_refused(["-u", "nobody-of-that-name"], "nobody-of-that-name")


@suite.test
def root_must_say_which_user():
    if os.geteuid() != 0:
        raise Skip("needs root")
    check_refused(["-l", "127.0.0.1", "-p", free_port()], r"-u\b", 64)


@suite.test
def root_can_say_root_and_others_need_nothing():
    if os.geteuid() != 0:
        raise Skip("needs root")
    for options, more in ((["-u", "root"], {}), ([], {"user": "nobody"})):
        port = free_port()
        process = start(options + ["-l", "127.0.0.1", "-p", port], **more)
        check_answers(port, process)
        end(process)


@suite.test
def with_dash_u_the_process_is_not_root():
    if os.geteuid() != 0:
        raise Skip("needs root")
    port = free_port()
    process = start(["-u", "nobody", "-l", "127.0.0.1", "-p", port])
    check_answers(port, process)
    with open("/proc/%d/status" % process.pid) as status:
        text = status.read()
    end(process)
    check(re.search(r"^Uid:\s+65534\s+65534\s+65534\s+65534$", text, re.M), "uid is not that of nobody")
    check(re.search(r"^Gid:\s+65534\s+65534\s+65534\s+65534$", text, re.M), "gid is not that of nobody")


@suite.test
def a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check_refused(AS_NOBODY + ["-l", "127.0.0.1", "-p", port, "-U", 0], r"127\.0\.0\.1.*\b%d\b.*in use" % port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        check_refused(AS_NOBODY + ["-l", "127.0.0.1", "-p", 0, "-U", port], r"127\.0\.0\.1.*\b%d\b.*in use" % port)


@suite.test
def a_second_server_on_a_unix_socket_does_not_take_the_first_ones_place():
    with suite.server(transport="unix") as server:
        process = start(AS_NOBODY + ["-s", server.path])
        try:
            process.communicate(timeout=1)
            check(process.returncode != 0, "the second server ended with 0")
        except subprocess.TimeoutExpired:
            end(process)
            raise Failed("the second server started on %s" % server.path)
        server.check_answers()


@suite.test
def a_stale_unix_socket_is_replaced():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "socket")
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(path)
        os.chown(path, 65534, 65534) if os.geteuid() == 0 else None
        process = start(AS_NOBODY + ["-s", path, "-a", "0770"])
        try:
            for _ in range(500):
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(5)
                    try:
                        sock.connect(path)
                    except OSError:
                        check(process.poll() is None, "ended at start")
                        time.sleep(0.01)
                        continue
                    check(ask(sock, b"mn\r\n") == b"MN", "no answer")
                    break
            else:
                raise Failed("does not listen")
            check(os.stat(path).st_mode & 0o777 == 0o770, "mode is %o" % (os.stat(path).st_mode & 0o777))
        finally:
            end(process)


def start_seconds(options, address):
    """From exec to the answer to the first mn."""
    begin = time.monotonic()
    process = start(options)
    try:
        while True:
            sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
            sock.settimeout(5)
            try:
                sock.connect(address)
                sock.sendall(b"mn\r\n")
                check(receive_exactly(sock, 4) == b"MN\r\n", "no answer to mn")
                return time.monotonic() - begin
            except OSError:
                check(process.poll() is None, "ended at start")
                check(time.monotonic() - begin < 10, "does not listen")
                time.sleep(0.0005)
            finally:
                sock.close()
    finally:
        end(process)


@suite.test
def starts_in_a_fifth_of_a_second():
    for megabytes in (64, 4096):
        times = []
        for _ in range(5):
            port = free_port()
            times.append(start_seconds(AS_NOBODY + ["-l", "127.0.0.1", "-p", port, "-m", megabytes],
                                       ("127.0.0.1", port)))
        median = statistics.median(times)
        print("  -m %d: median of 5 starts %.1f ms" % (megabytes, median * 1000))
        check(median < 0.2, "-m %d: %s s" % (megabytes, times))


def make_signal_test(name, number, stops):
    def test():
        port = free_port()
        process = start(AS_NOBODY + ["-l", "127.0.0.1", "-p", port])
        with connect(port, process) as sock:
            check(ask(sock, b"set s 0 0 1\r\nx\r\n") == b"STORED", "not stored")
            process.send_signal(number)
            if not stops:
                time.sleep(0.2)
                check(ask(sock, b"touch s 0\r\n") == b"TOUCHED", "the item is gone")
                end(process)
                return
            _, err = end(process, number)
            check(process.returncode == 0, "exit status %s, stderr %r" % (process.returncode, err))

    test.__name__ = name
    suite.test(test)


make_signal_test("SIGTERM_ends_it", signal.SIGTERM, True)
make_signal_test("SIGINT_ends_it", signal.SIGINT, True)
make_signal_test("SIGUSR1_ends_it_gracefully", signal.SIGUSR1, True)
make_signal_test("SIGHUP_leaves_it_alone", signal.SIGHUP, False)
make_signal_test("SIGPIPE_leaves_it_alone", signal.SIGPIPE, False)


@suite.test
def the_end_is_quick_even_with_clients_and_uploads_under_way():
    port = free_port()
    process = start(AS_NOBODY + ["-l", "127.0.0.1", "-p", port])
    socks = [connect(port, process) for _ in range(50)]
    for sock in socks:
        sock.sendall(b"set u 0 0 100000\r\nabc")
    begin = time.monotonic()
    end(process, signal.SIGTERM)
    check(process.returncode == 0, "exit status %s" % process.returncode)
    check(time.monotonic() - begin < 2, "took %.1f s" % (time.monotonic() - begin))
    for sock in socks:
        sock.close()


@suite.test
def as_a_daemon_with_a_pid_file():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "pid")
        port = free_port()
        process = start(AS_NOBODY + ["-d", "-P", path, "-l", "127.0.0.1", "-p", port])
        _, err = process.communicate(timeout=10)
        check(process.returncode == 0, "the parent's exit status is %d: %s" % (process.returncode, err))
        check_answers(port)
        limit = time.monotonic() + 5
        while not os.path.exists(path) or not open(path).read().endswith("\n"):
            check(time.monotonic() < limit, "no pid file")
            time.sleep(0.01)
        pid = int(open(path).read())
        check(os.path.samefile("/proc/%d/exe" % pid, suite.binary), "the pid file names another process")
        check(os.readlink("/proc/%d/cwd" % pid) == "/", "working directory is not /")
        check(os.getsid(pid) != os.getsid(0), "is in our session")
        os.kill(pid, signal.SIGTERM)
        while os.path.exists("/proc/%d" % pid):
            check(time.monotonic() < limit + 10, "does not end")
            time.sleep(0.01)
        check(not os.path.exists(path), "the pid file is still there")


@suite.test
def a_second_start_leaves_the_first_ones_pid_file_alone():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path, sockets = os.path.join(folder, "pid"), os.path.join(folder, "socket")
        port = free_port()
        options = AS_NOBODY + ["-P", path, "-s", sockets]
        process = start(options)
        try:
            wait_for(lambda: os.path.exists(path) and open(path).read() == "%d\n" % process.pid, "no pid file")
            # One fails before, the other after the pid file was opened.
            check_refused(options, "socket")
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", port))
                taken.listen()
                check_refused(AS_NOBODY + ["-P", path, "-l", "127.0.0.1", "-p", port], "in use")
            check(open(path).read() == "%d\n" % process.pid, "the first one's pid file is gone")
        finally:
            end(process, signal.SIGTERM)
        check(not os.path.exists(path), "the pid file is still there")
        check_refused(AS_NOBODY + ["-P", path, "-s", "/nowhere/at/all/socket"], "nowhere")
        check(not os.path.exists(path), "a failed start left a pid file")


@suite.test
def a_pid_file_in_roots_folder_becomes_empty():
    if os.geteuid() != 0:
        raise Skip("needs root")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "pid")
        process = start(["-u", "nobody", "-P", path, "-l", "127.0.0.1", "-p", free_port()])
        wait_for(lambda: os.path.exists(path) and open(path).read() == "%d\n" % process.pid, "no pid file")
        end(process, signal.SIGTERM)
        check(process.returncode == 0, "exit status %d" % process.returncode)
        check(not os.path.exists(path) or open(path).read() == "", "the pid file names a process that is gone")


@suite.test
def a_log_that_root_opened_can_be_opened_anew():
    if os.geteuid() != 0:
        raise Skip("needs root")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        log = os.path.join(folder, "log")
        port = free_port()
        process = start(["-u", "nobody", "--log-file", log, "-l", "127.0.0.1", "-p", port])
        try:
            check_answers(port, process)
            process.send_signal(signal.SIGHUP)
            time.sleep(0.2)
        finally:
            end(process, signal.SIGTERM)
        text = open(log).read()
        check("stopping" in text and "cannot" not in text, "the log: %r" % text)


@suite.test
def a_daemon_with_closed_standard_descriptors_and_relative_paths():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = " ".join([suite.binary] + AS_NOBODY + ["-d", "-P", "pid", "--log-file", "log", "-s", "socket"])
        port = free_port()
        done = subprocess.run(["sh", "-c", "%s <&- >&- 2>&-" % command], cwd=folder, timeout=10)
        check(done.returncode == 0, "exit status %d" % done.returncode)
        path, log = os.path.join(folder, "pid"), os.path.join(folder, "log")
        pid = int(open(path).read())
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(5)
                sock.connect(os.path.join(folder, "socket"))
                check(ask(sock, b"mn\r\n") == b"MN", "no answer")
            os.rename(log, log + ".1")
            os.kill(pid, signal.SIGHUP)
            wait_for(lambda: os.path.exists(log), "no new log after SIGHUP")
        finally:
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not os.path.exists("/proc/%d" % pid), "does not end")
        check(sorted(os.listdir(folder)) == ["log", "log.1"], "left behind: %s" % os.listdir(folder))
        # TCP, the same way: the listeners must not get the numbers of the standard descriptors.
        command = " ".join([suite.binary] + AS_NOBODY + ["-d", "-P", path, "-l", "127.0.0.1", "-p", str(port)])
        done = subprocess.run(["sh", "-c", "%s <&- >&- 2>&-" % command], cwd=folder, timeout=10)
        check(done.returncode == 0, "exit status %d" % done.returncode)
        try:
            check_answers(port)
        finally:
            os.kill(int(open(path).read()), signal.SIGTERM)


@suite.test
def a_failed_start_as_a_daemon_is_told_to_the_caller():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check_refused(AS_NOBODY + ["-d", "-l", "127.0.0.1", "-p", port], r"\b%d\b" % port)


@suite.test
def the_ports_are_written_where_the_environment_asks():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "ports")
        # -1 asks for any free port: then the file is the only way to learn which.
        process = start(AS_NOBODY + ["-l", "127.0.0.1", "-p", "-1", "-U", "-1"], {"MEMCACHED_PORT_FILENAME": path})
        try:
            limit = time.monotonic() + 5
            while not os.path.exists(path):
                check(time.monotonic() < limit and process.poll() is None, "the file was not written")
                time.sleep(0.01)
            text = open(path).read()
            tcp = re.search(r"^TCP INET: (\d+)$", text, re.M)
            udp = re.search(r"^UDP INET: (\d+)$", text, re.M)
            check(tcp and udp, "contents: %r" % text)
            check_answers(int(tcp.group(1)))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.settimeout(5)
                sock.connect(("127.0.0.1", int(udp.group(1))))
                sock.send(b"\0\1\0\0\0\1\0\0mn\r\n")
                check(sock.recv(100) == b"\0\1\0\0\0\1\0\0MN\r\n", "no answer over UDP")
        finally:
            end(process)


@suite.test
def systemd_is_told_when_it_is_ready_and_when_it_stops():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(path)
            os.chmod(path, 0o777)
            notify.settimeout(5)
            port = free_port()
            process = start(AS_NOBODY + ["-l", "127.0.0.1", "-p", port], {"NOTIFY_SOCKET": path})
            try:
                lines = []
                while "READY=1" not in lines:
                    lines += notify.recv(4096).decode().split("\n")
                # Ready means that a client can connect, at the first try.
                with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
                    check(ask(sock, b"mn\r\n") == b"MN", "no answer after READY=1")
                process.send_signal(signal.SIGTERM)
                while "STOPPING=1" not in lines:
                    lines += notify.recv(4096).decode().split("\n")
            finally:
                end(process)


@suite.test
def sockets_come_from_systemd():
    """LISTEN_FDS: descriptors from 3 on, and LISTEN_PID is the daemon's own."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        path = os.path.join(folder, "socket")
        tcp.bind(("127.0.0.1", 0))
        tcp.listen(100)
        unix.bind(path)
        unix.listen(100)
        port = tcp.getsockname()[1]
        # A shell puts the descriptors where systemd does, and exec keeps its pid.
        command = 'exec 3<&%d 4<&%d; export LISTEN_FDS=2 LISTEN_PID=$$; exec "$@"' % (tcp.fileno(), unix.fileno())
        process = subprocess.Popen(["bash", "-c", command, "bash", suite.binary] + AS_NOBODY,
                                   pass_fds=[tcp.fileno(), unix.fileno()], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        try:
            tcp.settimeout(5)
            with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
                check(ask(sock, b"set l 0 0 1\r\nx\r\n") == b"STORED", "no answer over TCP")
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(5)
                sock.connect(path)
                check(ask(sock, b"touch l 0\r\n") == b"TOUCHED", "the Unix socket is not the same server's")
            # The sockets are the only ones: nobody listens on the default port on this process's behalf.
            listening = listening_inodes(process.pid)
            check(len(listening) == 2, "%d listening sockets" % len(listening))
        finally:
            end(process)
        check(os.path.exists(path), "the socket file belongs to systemd, it must not be removed")


def listening_inodes(pid):
    listening = set()
    for table, state, state_column, inode_column in (("tcp", "0A", 3, 9), ("tcp6", "0A", 3, 9), ("unix", "01", 5, 6)):
        for line in open("/proc/%d/net/%s" % (pid, table)).read().splitlines()[1:]:
            words = line.split()
            # For a Unix socket, flag 0x10000 (__SO_ACCEPTCON) says that it listens.
            if words[state_column] == state and (table != "unix" or int(words[3], 16) & 0x10000):
                listening.add(words[inode_column])
    mine = set()
    for fd in os.listdir("/proc/%d/fd" % pid):
        match = re.match(r"socket:\[(\d+)\]", os.readlink("/proc/%d/fd/%s" % (pid, fd)))
        if match:
            mine.add(match.group(1))
    return listening & mine


@suite.test
def a_full_disk_for_the_log_stops_nothing():
    if os.geteuid() != 0:
        raise Skip("needs root to mount a tmpfs")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder], check=True)
        try:
            # All but one page is taken, and half of that, so that even few lines fill it.
            with open(os.path.join(folder, "log"), "wb") as log:
                log.write(b"x" * 6000)
                log.flush()
                with open(os.path.join(folder, "other"), "wb") as other:
                    os.set_blocking(other.fileno(), False)
                    try:
                        other.write(b"x" * 100000)
                        other.flush()
                    except OSError:
                        pass
                check(os.statvfs(folder).f_bfree == 0, "the disk is not full: the test shows nothing")
                os.ftruncate(log.fileno(), 8192)
                os.lseek(log.fileno(), 0, os.SEEK_END)
                talkative(log)
                check(os.fstat(log.fileno()).st_size == 8192, "something was logged: the test shows nothing")
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@suite.test
def a_log_that_takes_nothing_stops_nothing():
    with open("/dev/full", "wb") as log:
        talkative(log)


@suite.test
def a_log_that_is_a_closed_pipe_stops_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as log:
        talkative(log)


@suite.test
def a_log_that_nobody_reads_stops_nothing():
    """A full pipe: who writes to it without a thought waits for ever."""
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as log:
            talkative(log)
    finally:
        os.close(reader)


def talkative(log):
    """A server that logs all it can, much work for it, and it must stay well."""
    port = free_port()
    process = subprocess.Popen([suite.binary] + AS_NOBODY + ["-vvv", "-l", "127.0.0.1", "-p", str(port)],
                               stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
    try:
        for turn in range(3):
            with connect(port) as sock:
                for i in range(300):
                    check(ask(sock, b"set key%d 0 0 1\r\nx\r\n" % i) == b"STORED", "not stored")
                    check(ask(sock, b"nonsense %d\r\n" % i) == b"ERROR", "not refused")
        check(process.poll() is None, "the server died")
        check_answers(port)
        process.send_signal(signal.SIGTERM)
        check(process.wait(10) == 0, "exit status %d" % process.returncode)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@suite.test
def options_without_a_meaning_here_are_accepted():
    for options in (["-L"], ["-f", "1.5"], ["-n", "64"], ["-o", "slab_reassign,slab_automove=1,lru_crawler"],
                    ["-o", "modern"], ["-r"], ["-k"] if os.geteuid() == 0 else ["-L"]):
        port = free_port()
        process = start(AS_NOBODY + ["-l", "127.0.0.1", "-p", port, "-m", 64] + options)
        check_answers(port, process)
        end(process, signal.SIGTERM)
        check(process.returncode == 0, "%s: exit status %d" % (options, process.returncode))


@suite.test
def help_and_version_end_with_zero():
    for option, pattern in (("-h", r"(?s)-p.*-m.*-t"), ("-V", r"\d+\.\d+"), ("-i", r"\S")):
        process = start([option])
        out, err = process.communicate(timeout=5)
        check(process.returncode == 0, "%s: exit status %d" % (option, process.returncode))
        check(re.search(pattern, out), "%s printed %r" % (option, out[:200]))
        check(err == "", "%s: stderr %r" % (option, err))


suite.main()
