"""A server that speaks enough of ZooKeeper's protocol to be accepted, and then sends damaged answers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Self

from zkgroups.testing.proxy import Op, Xid

CONNECT = 0
"""Instead of an operation: the first request of a connection."""

NAMES = [f"n{number}" for number in range(20)]
"""The children of every node."""

STAT = struct.pack(">qqqqiiiqiiq", 1, 1, 0, 0, 0, 0, 0, 0, 1, 20, 1)
END = struct.pack(">i?i", -1, True, -1)

Lie = Callable[[bytes], Iterable[bytes] | None]
"""Takes a correct frame with its length, and returns the chunks to send instead. None to hang up."""


def text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return struct.pack(">i", len(value)) + value


def header(xid: int, error: int = 0) -> bytes:
    return struct.pack(">iqi", xid, 7, error)


def framed(answer: bytes) -> bytes:
    return struct.pack(">i", len(answer)) + answer


def listing(names: Iterable[str] = NAMES) -> bytes:
    names = list(names)
    return struct.pack(">i", len(names)) + b"".join(map(text, names))


BODIES: dict[int, bytes] = {
    Op.EXISTS: STAT,
    Op.GET_DATA: text("7") + STAT,
    Op.GET_CHILDREN: listing(),
    Op.SYNC: text("/"),
    Op.GET_ACL: struct.pack(">ii", 1, 31) + text("world") + text("anyone") + STAT,
    Op.MULTI: struct.pack(">i?i", 1, False, 0) + text("/made") + END,
    Op.SASL: text(b'realm="zk-sasl-md5",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess'),
}


class Liar:
    """Answers correctly, except for the operations with a lie. `with Liar({Op.EXISTS: lie}) as liar:`"""

    def __init__(self, lies: dict[int, Lie], *, version: str = "3.9.5") -> None:
        self._lies = lies
        self._version = version
        self._open: set[socket.socket] = set()
        self._closing = threading.Event()
        self.connections = 0

    def __enter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = "{}:{}".format(*self._listening.getsockname())
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(client)
            self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, struct.error):
            first = _exactly(client, 4)
            if first == b"srvr":
                client.sendall(f"Zookeeper version: {self._version}-0, built on\n".encode())
                return
            request = _exactly(client, struct.unpack(">i", first)[0])
            wish = struct.unpack_from(">iqiq", request)[2]
            session = struct.pack(">iiq", 0, wish, 0x1234) + text(bytes(range(16))) + b"\0"
            going_on = self._send(client, CONNECT, framed(session))
            while going_on:
                request = _exactly(client, struct.unpack(">i", _exactly(client, 4))[0])
                going_on = self._answer(client, request)
        self._open.discard(client)

    def _answer(self, client: socket.socket, request: bytes) -> bool:
        xid, op = struct.unpack_from(">ii", request)
        body = _many(request[8:]) if op == Op.MULTI_READ else BODIES.get(op, b"")
        going_on = self._send(client, op if xid != Xid.AUTH else Xid.AUTH, framed(header(xid) + body))
        if op == Op.EXISTS and request[-1]:  # it sets a watch
            path = request[12:-1]
            event = header(Xid.WATCH_EVENT) + struct.pack(">iii", 2, 3, len(path)) + path
            going_on = going_on and self._send(client, Xid.WATCH_EVENT, framed(event))
        return going_on and op != Op.CLOSE_SESSION

    def _send(self, client: socket.socket, op: int, frame: bytes) -> bool:
        """Return False to close the connection."""
        lie = self._lies.get(op)
        if lie is None:
            client.sendall(frame)
            return True
        chunks = lie(frame)
        for chunk in chunks or ():
            client.sendall(chunk)
            if self._closing.is_set():
                return False
        return chunks is not None


def _exactly(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        if not (more := client.recv(count - len(found))):
            raise ConnectionError
        found += more
    return found


def _many(questions: bytes) -> bytes:
    """Return the correct answer to many reads."""
    parts, position = [], 0
    while (kind := struct.unpack_from(">i", questions, position)[0]) != -1:
        parts.append(struct.pack(">i?i", kind, False, 0) + BODIES[kind])
        position += 9
        position += 4 + struct.unpack_from(">i", questions, position)[0] + 1
    return b"".join(parts) + END


# Lies


def with_length(length: int) -> Lie:
    """Announce another length than is sent, and then wait."""
    return lambda frame: [struct.pack(">i", length) + frame[4:]]


def with_body(change: Callable[[bytes], bytes]) -> Lie:
    """Change the body, but not the length and the header."""
    return lambda frame: [framed(frame[4:20] + change(frame[20:]))]


def with_header(xid: int | None = None, error: int = 0) -> Lie:
    """Send the answer to another request, or an error."""

    def lie(frame: bytes) -> list[bytes]:
        true = struct.unpack_from(">i", frame, 4)[0]
        return [framed(header(true if xid is None else true + xid, error) + frame[20:])]

    return lie


def instead(*chunks: bytes) -> Lie:
    """Send something other than an answer."""
    return lambda _frame: chunks


def cut(frame: bytes) -> None:
    """Hang up instead of answering."""


def half(frame: bytes) -> Iterable[bytes]:
    """Hang up in the middle of the answer."""
    yield frame[: len(frame) // 2]
    raise ConnectionError


def dribble(frame: bytes) -> Iterable[bytes]:
    """Announce a long answer, and send a byte now and then."""
    yield struct.pack(">i", 1 << 20)
    pause = threading.Event()
    while not pause.wait(0.05):
        yield b"\0"


def flood(announced: int) -> Lie:
    """Announce so many bytes, and send bytes endlessly."""

    def lie(_frame: bytes) -> Iterable[bytes]:
        yield struct.pack(">i", announced)
        while True:
            yield bytes(1 << 20)

    return lie


def zeros(_frame: bytes) -> Iterable[bytes]:
    """Send zero bytes endlessly."""
    while True:
        yield bytes(4096)


DAMAGES: dict[str, Lie] = {
    "a negative length": with_length(-5),
    "no length": with_length(0),
    "2 GB": with_length(2**31 - 1),
    "a header that is cut off": lambda frame: [framed(frame[4:14])],
    "another xid": with_header(xid=5),
    "an unknown error": with_header(error=-99),
    "a web server": instead(b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n\r\n"),
    "an SSH server": instead(b"SSH-2.0-OpenSSH_9.2p1\r\n"),
    "a TLS alert": instead(b"\x15\x03\x03\x00\x02\x02\x28"),
    "zero bytes": zeros,
}
"""Answers that no ZooKeeper server sends."""

ABSENCES: dict[str, Lie] = {
    "hangs up": cut,
    "hangs up in the middle": half,
    "a byte now and then": dribble,
    "less than announced": with_length(500),
}
"""Faults that a broken network can cause, too."""
